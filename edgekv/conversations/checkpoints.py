"""Checkpoints: states of a session at the ends of its turns, on the disk under a cap."""

from __future__ import annotations

from typing import NamedTuple

from edgekv.archive.session_archive import Archive
from edgekv.cells.block_loop import BlockLoop
from edgekv.generation.turn_state import Dialogue
from edgekv.store.block_file import BlockFile

from .stored_snapshot import StoredSnapshot

MAX_CHECKPOINTS = 64  # all of them are looked at for the one to give up


class Checkpoint(NamedTuple):
    """A session after n_past tokens, at least one."""

    n_past: int
    dialogue: Dialogue
    stored: StoredSnapshot


class Checkpoints:
    """The checkpoints of one session, by tokens. They lie in one file, so a process may have many.

    folder: folder of the file, which is made for the first one; None = that of TMPDIR
    """

    def __init__(self, max_bytes: int, folder: str | None = None) -> None:
        self.max_bytes = max_bytes
        self._folder = folder
        self._file: BlockFile | None = None
        self._all: list[Checkpoint] = []

    @property
    def positions(self) -> list[int]:
        """n_past of each checkpoint, ascending."""
        return [checkpoint.n_past for checkpoint in self._all]

    @property
    def newest(self) -> Checkpoint | None:
        """The newest checkpoint; None = there is none."""
        return self._all[-1] if self._all else None

    @property
    def nbytes(self) -> int:
        """Bytes of all of them."""
        return sum(checkpoint.stored.nbytes for checkpoint in self._all)

    def add(self, n_past: int, dialogue: Dialogue, block_loop: BlockLoop) -> None:
        """Add the state of a block loop, and remove checkpoints of as many tokens or more. Older ones make room for it.

        Raises OSError if the disk has no room for it.
        """
        if block_loop.stored_bytes > self.max_bytes:
            self.drop_from(n_past)
            return
        if self._file is None:
            self._file = BlockFile(self._folder)
        stored = StoredSnapshot(self._file.part(), block_loop, block_loop.mark())
        self.drop_from(n_past)
        self._all.append(Checkpoint(n_past, dialogue, stored))
        while len(self._all) > 1 and (self.nbytes > self.max_bytes or len(self._all) > MAX_CHECKPOINTS):
            self._all.pop(self._least_missed()).stored.close()

    def before(self, n: int) -> Checkpoint | None:
        """Return the newest checkpoint of at most n tokens."""
        return next((checkpoint for checkpoint in reversed(self._all) if checkpoint.n_past <= n), None)

    def drop_from(self, n: int) -> None:
        """Remove the checkpoints of n tokens and more."""
        while self._all and self._all[-1].n_past >= n:
            self._all.pop().stored.close()

    def drop_those_beside_others(self, archive: Archive) -> None:
        """Remove the checkpoints whose rows are not those that an archive has of their tokens."""
        gone = [checkpoint for checkpoint in self._all if not archive.has(checkpoint.stored.archived)]
        self._all = [checkpoint for checkpoint in self._all if checkpoint not in gone]
        for checkpoint in gone:
            checkpoint.stored.close()

    def close(self) -> None:
        """Remove all checkpoints."""
        self.drop_from(0)
        file, self._file = self._file, None  # if an interrupt comes next, the file is closed as it is dropped
        if file is not None:
            file.close()

    def _least_missed(self) -> int:
        """Return the index of the checkpoint to give up, by the least cost: tokens to read again / distance to the end.

        So newer checkpoints lie closer together. The two newest ones are left out, if there are others.
        """
        positions = [0, *self.positions]

        def missed(i: int) -> float:
            return (positions[i + 2] - positions[i]) / (positions[-1] - positions[i + 1])

        return min(range(len(self._all) - 2), key=missed, default=0)
