"""Snapshots of a block loop: its cells, and its notes on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekv.binding.cache import CacheSnapshot
from edgekv.store.snapshot_file import SnapshotFile
from edgekv.store.snapshot_header import is_whole

from .speculation import WINDOW

HISTORY = "history"  # name of a file's section
MAX_POSITION = 1 << 30
MAX_PINNED = 64  # ranges; a session pins only its beginning


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BlockLoopNotes:
    """Notes of a block loop on its cells.

    pinned: position ranges [p0, p1) that are never evicted
    fresh: tokens since the last scoring
    is_long: keys are repositioned from now on
    history: the newest tokens as int32, which drafts are looked up in
    """

    pinned: tuple[tuple[int, int], ...]
    fresh: int
    is_long: bool
    history: bytes

    def values(self) -> dict[str, Any]:
        """Return all but the history, for the header of a snapshot file."""
        return {"pinned": list(map(list, self.pinned)), "fresh": self.fresh, "is_long": self.is_long}

    @classmethod
    def of(cls, file: SnapshotFile) -> BlockLoopNotes:
        """Return the notes in a file. Raises OSError and SessionFileError."""
        header = file.header
        return cls(
            tuple(map(tuple, header.value("pinned", are_ranges))),
            header.value("fresh", lambda it: is_whole(it, MAX_POSITION)),
            header.value("is_long", lambda it: isinstance(it, bool)),
            _history(file),
        )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BlockLoopSnapshot:
    """A copy in memory, for `BlockLoop.restore`."""

    cells: CacheSnapshot
    notes: BlockLoopNotes

    @property
    def nbytes(self) -> int:
        """Bytes of cells and history."""
        return self.cells.nbytes + len(self.notes.history)


def _history(file: SnapshotFile) -> bytes:
    if file.n(HISTORY) > 4 * WINDOW:
        raise file.damaged("its 'history' is too long")
    tokens = np.concatenate([np.empty(0, np.int32), *file.numbers(HISTORY)])
    if tokens.min(initial=0) < 0:
        raise file.damaged("its 'history' holds what is no token")
    return tokens.tobytes()


def are_ranges(value: object) -> bool:
    """Return True for pairs [p0, p1) that are ascending and apart, and few enough to check for every cell."""
    if not isinstance(value, list) or len(value) > MAX_PINNED:
        return False
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in value):
        return False
    ends = [end for pair in value for end in pair]
    return all(is_whole(end, MAX_POSITION) for end in ends) and ends == sorted(ends)
