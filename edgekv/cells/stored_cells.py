"""The cells of a slot in a snapshot file: written, and put back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from edgekv.archive.row_files import Mark
from edgekv.binding.convert_cells import restore_cells
from edgekv.binding.snapshot_meta import CachedSource
from edgekv.memory.raw_files import RawFile
from edgekv.store.snapshot_file import CELLS, Section, SnapshotFile, write_snapshot_file

from .block_loop import BlockLoop
from .block_loop_snapshot import HISTORY, BlockLoopNotes


def write_cells(
    cells: BlockLoop,
    file: BinaryIO | RawFile,
    about: Mapping[str, Any] | None = None,
    *further: Section,
    archived: Mark | None = None,
) -> None:
    """Write cells and the notes on them to an empty file. They pass through memory in pieces. Raises OSError.

    about, further: more values and sections
    archived: rows that the file leaves out
    """
    source, notes = CachedSource(cells.cache, None if archived is None else archived.handle), cells.notes
    history = Section.of(HISTORY, np.frombuffer(notes.history, np.uint8))
    sections = [Section(CELLS, source.n_bytes, source.pieces()), history, *further]
    write_snapshot_file(file, {**(about or {}), **notes.values()}, sections)


def load_cells(cells: BlockLoop, file: SnapshotFile, archived: Mark | None = None) -> None:
    """Put cells and notes back that this engine has written to a file.

    archived: the rows that the file leaves out

    Raises OSError, SessionFileError and ArchiveError if it cannot be read; the cells are then as before, or empty.
    After any other exception, load them again or empty the cells.
    """
    notes = BlockLoopNotes.of(file)
    cells.settle()
    cells.forget_open()
    restore_cells(file, cells.cache, None if archived is None else archived.handle)
    cells.take(notes)
