"""Snapshots on the disk for the engine that took them, in files without a name."""

from __future__ import annotations

import atexit  # noqa: F401  (weakref.finalize imports it, which would be after the plan)
import weakref

from edgekv.engine.block_loop import BlockLoop
from edgekv.store.snapshot_file import SnapshotFile
from edgekv.store.temp_array import temp_file


class StoredSnapshot:
    """A snapshot file of a block loop as it is now. It is gone when it is closed, or when the process ends.

    nbytes: bytes of its cells and history
    close: removes it

    Nothing is flushed to the disk, because no other process reads it.
    """

    def __init__(self, folder: str | None, block_loop: BlockLoop) -> None:
        """Raise OSError if the folder (None = that of TMPDIR) does not take it; then nothing is left."""
        self.nbytes = block_loop.snapshot_bytes
        self.file = temp_file(folder)
        self.close = weakref.finalize(self, self.file.close)
        try:
            block_loop.write(self.file)
        except BaseException:
            self.close()
            raise

    def load(self, block_loop: BlockLoop) -> None:
        """Put the block loop back into this state. Raises the errors of `BlockLoop.load`."""
        block_loop.load(SnapshotFile(self.file, "the file of a session"))
