"""Snapshots: copies in memory of the state of a session, which it can go back to any number of times."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

import numpy as np

from edgekv.binding.cache import CacheSnapshot
from edgekv.binding.snapshot_file import SnapshotFile
from edgekv.generation.sampler import SamplerState
from edgekv.store.log import LogCopy

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


def new_mark() -> bytes:
    """Return a mark for the snapshots of an engine, so that no other engine restores them."""
    return secrets.token_bytes(8)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Snapshot:
    """The state of a session, for `Session.restore`. Opaque; it can be pickled.

    runtime: mark of the runtime that it was taken in
    turns: the state of the conversation's turns
    pending: tokens that are generated, but not fed yet
    sampler: the state of the sampler after the last reply; None = there was no reply
    log: the tokens of prompts and replies; None = the session keeps no log
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
        """Bytes of cells and log."""
        return self.block_loop.cells.nbytes + (0 if self.log is None else self.log.nbytes)
