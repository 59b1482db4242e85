"""Snapshots of a block loop: its cells, in memory or in a file, and its notes on them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekv.binding.cache import CacheSnapshot
from edgekv.binding.snapshot_file import SnapshotFile

ELSEWHERE = CacheSnapshot(np.empty(0, np.uint8))  # placeholder for cells that are not in memory


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BlockLoopSnapshot:
    """Cells, and the block loop's notes on them, for `BlockLoop.restore`.

    unscored: the tokens that the policy has not replayed yet; empty for policies without replay
    """

    cells: CacheSnapshot | SnapshotFile
    pinned: tuple[tuple[int, int], ...]
    fresh: int
    is_long: bool
    history: bytes
    unscored: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of cells and history."""
        return self.cells.nbytes + len(self.history)
