"""Archived rows in the file of a session: written segment by segment, and read in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekv.binding.cache import Cache
from edgekv.binding.row_archive import RowArchive, segments_of
from edgekv.binding.snapshot_meta import CachedSource, Source, read_header
from edgekv.errors import ArchiveError, SessionFileError
from edgekv.memory.raw_files import CHUNK_BYTES
from edgekv.store.snapshot_file import ARCHIVE, Section, SnapshotFile

from .row_files import Rows, RowsFile
from .session_archive import Archive

ARCHIVED = "archived"  # name of the section that holds the positions [begin, end) of the rows
ROW_TYPE = ("cell_bytes", "type_k", "type_v", "rotation_k", "rotation_v")
ROW_SHAPE = ("n_layer", "n_heads", "head_dim_k", "head_dim_v")


def archive_sections(archive: Archive, cache: Cache) -> list[Section]:
    """Return the sections of an archive, with the rows of all tokens of its cache; none if nothing is archived."""
    rows = archive.stored(cache)
    if rows is None:
        return []
    begin, end = rows.archive.begin, rows.archive.end
    n_bytes = segments_of(begin, end) * rows.archive.segment_bytes
    positions = np.array([begin, end], np.int32)
    return [Section.of(ARCHIVED, positions), Section(ARCHIVE, n_bytes, _segments(rows))]


def _segments(rows: Rows) -> Iterator[npt.NDArray[Any]]:
    """Yield the segments of archived rows in pieces. The next one overwrites the last one. Raises OSError."""
    files, n_bytes = {file.fileno(): file for file in rows.files}, rows.archive.segment_bytes
    buffer = np.empty(CHUNK_BYTES, np.uint8)
    for fd, offset in rows.archive.places():
        for first in range(0, n_bytes, CHUNK_BYTES):
            piece = buffer[: n_bytes - first]
            n_read = files[fd].read_at(offset + first, piece)
            piece[n_read:] = 0  # the last segment may have no row of its last heads yet
            yield piece


def take_rows(file: SnapshotFile, archive: Archive, cache: Cache) -> None:
    """Have an archive go on with the rows of a session file, whose tokens a cache has.

    Without rows it begins again. If they cannot be used, it notes why.
    """
    archive.restart(cache)
    if ARCHIVE in file and ARCHIVED in file:
        try:
            rows = _rows_of(file, cache)
        except (OSError, SessionFileError, ArchiveError) as error:
            archive.lose(f"the archive of {file.name} cannot be read: {error}", cache.n_past)
        else:
            archive.go_on_with(rows, cache)


def _rows_of(file: SnapshotFile, cache: Cache) -> Rows:
    """Return the rows of a session file. Raises OSError, ArchiveError, and SessionFileError for rows of other types."""
    numbers = np.concatenate([np.empty(0, np.int32), *file.numbers(ARCHIVED)]).tolist()
    if len(numbers) != 2 or not 0 <= numbers[0] < numbers[1] <= cache.n_past:
        raise file.damaged("its archive has impossible positions")
    if row_kind(file) != row_kind(CachedSource(cache)):
        raise SessionFileError("its rows are of another type; open a runtime with the kv_type that it was saved with")
    opened, offset = file.opened(ARCHIVE)
    lies_in = RowsFile(opened)  # it closes the file, also if the first keys cannot be read
    rows = Rows(RowArchive.read(cache, lies_in.fileno(), offset, *numbers), (lies_in,))
    if file.n(ARCHIVE) != segments_of(*numbers) * rows.archive.segment_bytes:
        rows.archive.close()
        raise file.damaged("its archive has another size than its positions")
    return rows


def row_kind(source: Source) -> list[int]:
    """Return how the cells of a snapshot store their rows: bytes, types, rotations, layers, heads and lengths."""
    kind = read_header(source.read_into).kind
    return [int(getattr(kind, name)) for name in (*ROW_TYPE, *ROW_SHAPE)]
