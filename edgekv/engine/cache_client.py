"""A conversation as the cells know it: it has them, rests, or has lost what it had."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from edgekv.errors import SessionEvictedError

from .block_loop import Work
from .snapshot import BlockLoopSnapshot


@dataclass(slots=True, eq=False)
class CacheClient:
    """What is known of a conversation while others have the cells.

    pinned: position ranges [p0, p1) that are never evicted
    work: what was done for it
    n_past, n_cells: tokens read and said, and cells used per head, when it last had the cells
    lost: why its state is gone; "" = it is not
    settle: finishes what an exception left half done; for who has the cells
    checkpoint: gives its state where that lies on the disk already, as it is now; None = it does not
    is_in_checkpoint: it rests as `checkpoint`, and in no other way
    release: frees what it has beside the cells, when it is forgotten
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
        """The error for whoever uses it although its state is gone."""
        return SessionEvictedError(f"{self.lost}; open another with Runtime.session()")
