"""Snapshots on the disk for the engine that took them, in files without a name."""

from __future__ import annotations

import atexit  # noqa: F401  (weakref.finalize imports it, which would be after the plan)
import weakref
from io import FileIO

from edgekv.archive.row_files import Mark
from edgekv.cells.block_loop import BlockLoop
from edgekv.cells.stored_cells import load_cells, write_cells
from edgekv.store.block_file import Part
from edgekv.store.snapshot_file import SnapshotFile


class StoredSnapshot:
    """A snapshot file of a block loop as it is now. It is gone when it is closed, or when the process ends.

    nbytes: bytes of the file's cells and history
    archived: marks the archived rows, which the file leaves out; None = there is no archive
    close: removes it

    Nothing is flushed to the disk, because no other process reads it.
    """

    def __init__(self, file: FileIO | Part, block_loop: BlockLoop, archived: Mark | None) -> None:
        """Write it to an empty file, which belongs to it then. Raises OSError if that fails; then nothing is left.

        archived: of the block loop's tokens
        """
        self.archived = archived
        self.nbytes = block_loop.stored_bytes
        self.file = file
        self.close = weakref.finalize(self, file.close)
        try:
            write_cells(block_loop, self.file, archived=self.archived)
        except BaseException:
            self.close()
            raise

    def load(self, block_loop: BlockLoop) -> None:
        """Put the block loop back into this state. Raises the errors of `load_cells`."""
        load_cells(block_loop, SnapshotFile(self.file, "the file of a session"), self.archived)
