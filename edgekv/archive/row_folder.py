"""The row files of a kept session: `rows-0`, `rows-1` and so on, in its folder."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgekv.binding.cache import Cache
from edgekv.binding.row_archive import SEGMENT_TOKENS, RowArchive
from edgekv.memory.raw_files import CHUNK_BYTES, write_all
from edgekv.store.shared_files import opener
from edgekv.store.snapshot_header import MAX_TOKEN, SnapshotHeader, is_whole

from .row_files import Rows, RowsFile

MOST_PARTS = 1 << 16
MOST_OFFSET = 1 << 50  # bytes
NAME = re.compile(r"rows-(\d{1,9})")


class Part(NamedTuple):
    """The rows from position `first` on, up to the next part, in file `number`, from byte `offset` on."""

    number: int
    first: int
    offset: int


class RowFolder:
    """Makes and opens the row files of one session."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._numbers = itertools.count(1 + max((number for number, _ in self._found()), default=-1))

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return sum(path.stat().st_size for _, path in self._found())

    def new_file(self) -> RowsFile:
        """Make an empty file. Raises OSError."""
        return self._opened(self._path / f"rows-{next(self._numbers)}", "x+")

    def number_of(self, file: RowsFile) -> int | None:
        """Return the number of a file; None = it lies elsewhere."""
        if file.path is None or file.path.parent != self._path:
            return None
        found = NAME.fullmatch(file.path.name)
        return None if found is None else int(found[1])

    def open(self, cache: Cache, parts: Sequence[Part], end: int, limit_bytes: int, *, writes: bool) -> Rows:
        """Return the rows of the positions [0, end), which are in no cache yet. Raises OSError and ConfigError."""
        files = [self._opened(self._path / f"rows-{part.number}", "r+" if writes else "r") for part in parts]
        return _rows(cache, list(zip(files, parts, strict=True)), end, limit_bytes)

    def parts(self, rows: Rows) -> list[Part] | None:
        """Return the parts that rows consist of; None = some lie elsewhere."""
        parts = []
        for file, first, offset in parts_of(rows):
            if (number := self.number_of(file)) is None:
                return None
            parts.append(Part(number, first, offset))
        return parts

    def described(self, rows: Rows) -> dict[str, Any] | None:
        """Return rows as values for a file, which `parts_of_values` reads; None = some lie elsewhere."""
        parts = self.parts(rows)
        return None if parts is None else {"end": rows.archive.end, "parts": list(map(list, parts))}

    def adopted(self, rows: Rows, cache: Cache) -> Rows:
        """Return the same rows in files of this folder: links to files of other sessions, or copies.

        Nothing can be appended to them before a branch. Raises OSError.
        """
        if self.parts(rows) is not None:
            return rows
        found = [
            (self._taken(file) if self.number_of(file) is None else file, Part(0, first, offset))
            for file, first, offset in parts_of(rows)
        ]
        return _rows(cache, found, rows.archive.end, 0)

    def remove_others(self, kept: Iterable[int]) -> None:
        """Remove the files that have other numbers than these."""
        numbers = set(kept)
        for number, path in self._found():
            if number not in numbers:
                with suppress(OSError):
                    path.unlink()

    def _found(self) -> list[tuple[int, Path]]:
        return [(int(it[1]), path) for path in self._path.glob("rows-*") if (it := NAME.fullmatch(path.name))]

    def _taken(self, file: RowsFile) -> RowsFile:
        """Return a file of this folder with the bytes of another file."""
        path = self._path / f"rows-{next(self._numbers)}"
        if file.path is not None:
            with suppress(OSError):
                os.link(file.path, path)
                if os.path.samestat(path.stat(), os.fstat(file.fileno())):
                    return self._opened(path, "r+")
                path.unlink()  # another file has that name now
        copy = self._opened(path, "x+")
        buffer = np.empty(CHUNK_BYTES, np.uint8)
        for first in range(0, file.n_bytes, CHUNK_BYTES):
            n_read = file.read_at(first, buffer)
            write_all(copy.file, buffer[:n_read].data)
        return copy

    @staticmethod
    def _opened(path: Path, mode: str) -> RowsFile:
        return RowsFile(FileIO(str(path), mode, opener=opener), path)


def parts_of_values(values: SnapshotHeader | None, n_past: int) -> tuple[int, list[Part]]:
    """Return the end of described rows, at most n_past, and their parts; 0 and none if there are none.

    Raises SessionFileError for impossible values.
    """
    if values is None:
        return 0, []
    end = values.value("end", lambda it: is_whole(it, n_past))
    return end, [Part(*part) for part in values.value("parts", _are_parts)]


def _are_parts(value: Any) -> bool:
    if not isinstance(value, list) or len(value) > MOST_PARTS:
        return False
    return all(
        isinstance(part, list)
        and len(part) == len(Part._fields)
        and all(is_whole(it, most) for it, most in zip(part, (MAX_TOKEN, MAX_TOKEN, MOST_OFFSET), strict=True))
        for part in value
    )


def parts_of(rows: Rows) -> list[tuple[RowsFile, int, int]]:
    """Return the files of rows in order, each with the first position there and its first byte."""
    files = {file.fileno(): file for file in rows.files}
    parts: list[tuple[RowsFile, int, int]] = []
    begin = rows.archive.begin
    for i, (fd, offset) in enumerate(rows.archive.places()):
        if not parts or parts[-1][0].fileno() != fd:
            parts.append((files[fd], max(begin, (begin // SEGMENT_TOKENS + i) * SEGMENT_TOKENS), offset))
    return parts


def _rows(cache: Cache, parts: Sequence[tuple[RowsFile, Part]], end: int, limit_bytes: int) -> Rows:
    """Return the rows of positions from 0 on in these files."""
    (file, first), *_ = parts
    archive = RowArchive.read(cache, file.fileno(), first.offset, 0, 0)
    try:
        ends = [*(part.first for _, part in parts[1:]), end]
        for (file, part), part_end in zip(parts, ends, strict=True):
            archive.resume(file.fileno(), part.offset, part.first, part_end, limit_bytes)
    except BaseException:
        archive.close()
        raise
    return Rows(archive, tuple(file for file, _ in parts))
