"""The files of archives, which several archives may read, and marks of the rows that an archive had at some time."""

from __future__ import annotations

import ctypes as c
import os
import weakref
from io import FileIO
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edgekv.binding.cache import Cache
from edgekv.binding.row_archive import RowArchive


class RowsFile:
    """A file of rows. It is closed once no archive and no mark has it, and then gone if it has no name.

    path: its name; None = it has none
    marks: of rows in it. Their positions are never written again while the marks live
    """

    def __init__(self, file: FileIO, path: Path | None = None) -> None:
        self.file = file
        self.path = path
        self.marks: weakref.WeakSet[Mark] = weakref.WeakSet()
        weakref.finalize(self, file.close).atexit = False  # it goes with the process in any case

    def fileno(self) -> int:
        """Return its descriptor."""
        return self.file.fileno()

    def read_at(self, offset: int, into: npt.NDArray[np.uint8]) -> int:
        """Fill an array from byte `offset` on; returns how many bytes there are. Raises OSError."""
        self.file.seek(offset)
        n_read = 0
        while n_read < into.nbytes and (n := self.file.readinto(into[n_read:].data)):
            n_read += n
        return n_read

    @property
    def is_linked(self) -> bool:
        """True if it has more than one name, so that others have it as it is."""
        return self.path is not None and os.fstat(self.fileno()).st_nlink > 1

    @property
    def n_bytes(self) -> int:
        """Bytes of the file."""
        return os.fstat(self.fileno()).st_size


class Rows(NamedTuple):
    """Archived rows, and the files that they lie in. The last one is written to."""

    archive: RowArchive
    files: tuple[RowsFile, ...]

    def in_use(self) -> Rows:
        """Return the rows without the files that hold none of them."""
        used = {fd for fd, _ in self.archive.places()} | {self.files[-1].fileno()}
        return self._replace(files=tuple(file for file in self.files if file.fileno() in used))


class Keeper(Protocol):
    """Has the files of an archive, so that later processes find them. The methods raise OSError."""

    def new_file(self) -> RowsFile:
        """Make a file."""

    def adopted(self, rows: Rows, cache: Cache) -> Rows:
        """Return the same rows in files of this keeper."""

    def will_write(self, rows: Rows) -> None:
        """Note that rows are about to be appended, and may overwrite rows."""

    def has_appended(self) -> None:
        """Note that rows were appended, or could not be."""


class Mark:
    """The archived rows of a text's first n_past tokens. They stay when the archive is cut or closed.

    rows: None = it has none, or the mark comes from another process
    """

    def __init__(self, n_past: int, rows: Rows | None = None) -> None:
        """rows: a copy that is the mark's own"""
        self.n_past = n_past
        self.rows = rows
        if rows is not None:
            for file in rows.files:
                file.marks.add(self)
            weakref.finalize(self, rows.archive.close).atexit = False

    @property
    def handle(self) -> c.c_void_p | None:
        """The archive of its rows, for calls of the library; None = it has no rows."""
        return None if self.rows is None else self.rows.archive.handle

    @property
    def end(self) -> int:
        """The position after the last one whose rows it has."""
        return 0 if self.rows is None else self.rows.archive.end

    def __reduce__(self) -> tuple[type[Mark], tuple[int]]:
        return Mark, (self.n_past,)  # rows stay in their process
