"""Snapshots: copies in memory of what a session has read, which it can return to as often as it likes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from edgekv.binding.cache import CacheSnapshot
from edgekv.binding.snapshot_file import SnapshotFile
from edgekv.store.log import LogCopy

from .sampler import SamplerState

ELSEWHERE = CacheSnapshot(np.empty(0, np.uint8))  # in place of cells that are not in memory


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BlockLoopSnapshot:
    """Cells, and what the block loop knew of them, for `BlockLoop.restore`.

    unscored: the tokens that a policy has not replayed yet; none where it replays none
    """

    cells: CacheSnapshot | SnapshotFile
    pinned: tuple[tuple[int, int], ...]
    fresh: int
    is_long: bool
    history: bytes
    unscored: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of its cells and its history."""
        return self.cells.nbytes + len(self.history)


def new_mark() -> bytes:
    """What the snapshots of an engine carry, so that no other engine restores them."""
    return secrets.token_bytes(8)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Snapshot:
    """The state of a session, for `Session.restore`. Opaque; it can be pickled.

    runtime: mark of the runtime that it was taken in
    turns: the state of the conversation's turns
    pending: tokens said, but not fed yet
    sampler: the state of the sampler after the last reply; None = there was no reply
    log: the tokens that it has read and said; None = it keeps no log
    """

    runtime: bytes
    system: str | None
    turns: str
    pending: tuple[int, ...]
    sampler: SamplerState | None
    block_loop: BlockLoopSnapshot
    log: LogCopy | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that its cells and its log take."""
        return self.block_loop.cells.nbytes + (0 if self.log is None else self.log.nbytes)
