"""The ceiling of an open model, which moves while sessions go on: by a call, or by itself if the system is short."""

from __future__ import annotations

import logging
import weakref
from dataclasses import replace
from typing import cast

from .arguments import check_flag
from .errors import CeilingError, EdgeKVError
from .memory.code_pages import lock_code
from .memory.pressure import system_pressure
from .memory.sizes import MIB, check_ceiling, format_size
from .memory.yielding import Watch, Yielding
from .open_model import OpenModel
from .planning.ledger import LedgerEntry
from .planning.plan import Plan

log = logging.getLogger("edgekv")

LEAST = "least"  # a ceiling as low as it can be


class MovingCeiling(OpenModel):
    """An open model whose ceiling moves."""

    _yielding: Yielding | None = None
    _watch: Watch | None = None

    def _begin_yielding(self, share: float) -> None:
        """Yield this share of the ceiling from now on while the system is short of memory."""
        if n_refused := lock_code():
            log.info("%s of code are not locked in memory; raise RLIMIT_MEMLOCK", format_size(n_refused))
        self._yielding = Yielding(share)
        self._watch = Watch(weakref.WeakMethod(self.note_pressure), system_pressure())

    def _end_yielding(self) -> None:
        if self._watch is not None:
            self._watch.close()

    @property
    def memory(self) -> int:
        """The ceiling in bytes. Assign bytes or a size to move it, as `set_memory` does."""
        return self.plan.ceiling_bytes

    @memory.setter
    def memory(self, memory: int | str) -> None:
        self.set_memory(memory)

    def set_memory(self, memory: int | str) -> Plan:
        """Move the ceiling while sessions go on; returns the plan, which is `plan` from now on.

        memory: bytes, a size such as "150MiB", or a share such as "25%", as for the runtime; "least" = as low as it can
            be now

        A lower ceiling evicts cells of all sessions to what fits, and gives their memory back to the system. A higher
        one gives cells back, up to those that the runtime was opened with. Sessions at work go on: a text that is being
        read evicts at its next block, a reply at its next token. It returns when the memory is back. Weights stay.
        Any thread may call this, but not a `progress`.

        Raises CeilingError for a ceiling that does not hold the weights and the least budget, or that the control group
        does not allow; ConfigError for a runtime with layers on a device; SwapError if sessions that had room in memory
        find none on the disk. The ceiling is then as before. A snapshot that the program holds takes memory beside; one
        of more cells than the ceiling now has is refused until it is raised.
        """
        self._check_open()
        before = self.options
        if memory != LEAST:
            options = replace(before, memory=memory)
            check_ceiling(options.ceiling_bytes)
            self.options = options  # first, so that the ceiling that is yielded follows this one
        if self._yielding is not None:
            self._yielding.begin()
        try:
            plan = self._lower(0) if memory == LEAST else self._engine.set_memory(self.options.ceiling_bytes)
        except BaseException:
            self.options = before
            raise
        named = plan.ceiling_bytes if memory == LEAST else memory
        self.options = replace(before, memory=named, budget=plan.budget_cells)
        return plan

    def _lower(self, ceiling_bytes: int) -> Plan:
        """Go under a ceiling, or as far as it can be; returns the plan. Raises as `set_memory`, but no CeilingError."""
        plan = self.plan
        while ceiling_bytes < plan.ceiling_bytes:
            try:
                return self._engine.set_memory(ceiling_bytes)
            except CeilingError as error:
                ceiling_bytes = -(-error.required_bytes // MIB) * MIB
        return plan

    def note_pressure(self, is_short: bool) -> None:
        """Note whether the system is short of memory, once a second. The ceiling moves as far as `yields` allows.

        Runtimes with `yields` do that themselves; a host may call it, too, with what its system has told it.
        """
        check_flag("is_short", is_short)
        if self.closed or self._yielding is None:
            return
        if not self._yielding.look(is_short=is_short):
            return
        target = None
        while target != (target := self._yielding.ceiling(self.options.ceiling_bytes)):  # it may be named meanwhile
            self._yield_to(target)

    def _yield_to(self, ceiling_bytes: int) -> None:
        """Go under a ceiling, or as far as it can be."""
        before = self.plan.ceiling_bytes
        try:
            plan = self._lower(ceiling_bytes) if ceiling_bytes < before else self._engine.set_memory(ceiling_bytes)
        except EdgeKVError as error:
            log.warning("the ceiling stays at %s: %s", format_size(before), error)
            return
        if plan.ceiling_bytes != before:
            why = "the system is short of memory" if plan.ceiling_bytes < before else "the system has memory again"
            figures = (format_size(before), format_size(plan.ceiling_bytes), plan.budget_cells)
            log.warning("%s: the ceiling goes from %s to %s, %d cells", why, *figures)

    async def set_memory_async(self, memory: int | str) -> Plan:
        """Move the ceiling as `set_memory` does, for asyncio. It moves although its task is cancelled meanwhile."""
        import asyncio  # it takes memory, and few programs need it

        return await asyncio.to_thread(self.set_memory, memory)

    @property
    def ledger(self) -> tuple[LedgerEntry, ...]:
        """Entries of all owners of memory, by the names of `edgekv plan` (docs/moving-ceiling.md)."""
        self._check_open()
        return cast("tuple[LedgerEntry, ...]", self._engine.call("entries"))
