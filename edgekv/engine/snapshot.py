"""Snapshots: what was read, kept in memory, so that a session can go back to it any number of times."""

from __future__ import annotations

from dataclasses import dataclass

from edgekv.binding.cache import CacheSnapshot

from .sampler import SamplerState


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ControllerSnapshot:
    """Cells, and what the controller knew of them, for `Controller.restore`."""

    cells: CacheSnapshot
    pinned: tuple[tuple[int, int], ...]
    fresh: int
    is_long: bool


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Snapshot:
    """A session as it was, for `Session.restore`. Opaque; it can be pickled.

    runtime: marks the runtime that it was taken in
    turns, pending: where the conversation stood, and what it had said but not fed
    sampler: where the last reply left its random numbers and penalties; None = there was none
    """

    runtime: bytes
    system: str | None
    turns: str
    pending: tuple[int, ...]
    sampler: SamplerState | None
    controller: ControllerSnapshot

    @property
    def nbytes(self) -> int:
        """Bytes that its cells take."""
        return self.controller.cells.nbytes
