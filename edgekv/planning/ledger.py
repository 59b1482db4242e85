"""The ledger: who holds the bytes of a runtime, and in which order they are given up. All that may grow asks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from edgekv.memory import process
from edgekv.memory.sizes import format_size

from .plan import Plan

GIVEN_UP = ("swap", "kv")  # the order in which a lower ceiling takes memory; all else stays
REST = "python"  # holds what nobody else does: code, objects, and what the program allocated itself


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """The bytes of one owner.

    owner: a part of the plan, by the name that `edgekv plan` and docs/plans.md have for it
    planned_bytes: what it may hold at the peak
    held_bytes: what it holds now. `kv` holds the cells with tokens, `swap` the sessions that are swapped out to memory,
        and `python` whatever no other owner does; together they are all that is resident
    rank: its place in the order of giving up, from 1 on; 0 = it stays, however low the ceiling is
    """

    owner: str
    planned_bytes: int
    held_bytes: int
    rank: int


class Ledger:
    """The plan of a runtime, and what its owners hold of it now.

    plan: of now; another one takes its place when the ceiling moves
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._opened = plan
        self._held: dict[str, Callable[[], int]] = {}

    def count(self, owner: str, held: Callable[[], int]) -> None:
        """Have a function say what an owner holds. Those without one hold all that is planned."""
        self._held[owner] = held

    def held(self, owner: str) -> int:
        """Return what an owner holds now, other than REST."""
        return self._held[owner]() if owner in self._held else int(getattr(self.plan.parts, owner))

    def entries(self) -> tuple[LedgerEntry, ...]:
        """Return all entries, in the order of the plan's parts."""
        planned = asdict(self.plan.parts)
        held = {owner: self.held(owner) for owner in planned if owner != REST}
        held[REST] = max(0, process.resident_bytes() - sum(held.values()))
        ranks = {owner: rank for rank, owner in enumerate(GIVEN_UP, 1)}
        return tuple(LedgerEntry(it, planned[it], held[it], ranks.get(it, 0)) for it in planned)

    @property
    def reserved_bytes(self) -> int:
        """Bytes that are planned for swapped-out sessions, and not held yet."""
        return max(0, self.plan.parts.swap - self.held("swap"))

    def swap_limit(self, named: int | None) -> int:
        """Return what swapped-out sessions may hold in memory now, with what they have.

        named: bytes that the user named, of which a lower ceiling takes some; None = all that is free
        """
        if named is not None:
            return max(0, named - (self._opened.parts.swap - self.plan.parts.swap))
        others = max(self.plan.peak_bytes, process.resident_bytes() - self.held("swap"))  # the host took some meanwhile
        return max(0, self.plan.ceiling_bytes - others)

    def swap_words(self, named: int | None) -> str:
        """Return that limit, as errors name it."""
        if named is not None:
            return f"swap_memory={format_size(self.swap_limit(named))}"
        return f"what memory={format_size(self.plan.ceiling_bytes)} leaves free"
