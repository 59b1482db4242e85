"""A conversation as the cache slot sees it: loaded, swapped out, or lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgekv.engine.block_loop import Work
from edgekv.errors import SessionEvictedError

from .snapshot import BlockLoopSnapshot


@dataclass(slots=True, eq=False)
class CacheClient:
    """The record of a conversation in the cache slot.

    pinned: position ranges [p0, p1) that are never evicted
    work: counters of the block loop for this conversation
    n_past, n_cells: tokens read and generated, and cells used per head, when it last had the cells
    lost: the reason why its state is gone; "" = it is not gone
    settle: finishes a change that an exception interrupted; called while it has the cells
    checkpoint: returns a snapshot on the disk that matches the current state; None = there is none
    is_in_checkpoint: it is swapped out as `checkpoint`, and has no other copy
    release: frees all that it has beside the cells, when it is forgotten
    """

    pinned: tuple[tuple[int, int], ...] = ()
    work: Work = field(default_factory=Work)
    n_past: int = 0
    n_cells: int = 0
    lost: str = ""
    settle: Callable[[], None] = lambda: None
    checkpoint: Callable[[], BlockLoopSnapshot | None] = lambda: None
    is_in_checkpoint: bool = False
    release: Callable[[], None] | None = None

    def evicted(self) -> SessionEvictedError:
        """Return the error for using it after its state is gone."""
        return SessionEvictedError(f"{self.lost}; open another with Runtime.session()")
