"""Snapshot files: swapped-out sessions, checkpoints and saved sessions, as one format on the disk (docs/sessions.md).

    magic "edgekv\\r\\n" | version u32 | bytes of the header u32 | bytes of the file u64
    header    JSON in UTF-8: {"about": {...}, "sections": [[name, bytes], ...]}
    sections  in that order, one after another
    checksum  CRC-32 of everything before, u32

All numbers are little-endian. A reader takes the sections that it knows by name and ignores the others. A saved session
is untrusted data: nothing in it is used before the checksum and all sizes are right, and these checks take no more
memory than a header may have.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from edgekv.errors import SessionFileError
from edgekv.memory.raw_files import CHUNK_BYTES, RawFile, read_all, write_all
from edgekv.memory.sizes import format_size

from . import shared_files
from .snapshot_header import SnapshotHeader
from .temp_array import temp_file

VERSION = 2
MAGIC = b"edgekv\r\n"
FRAME = struct.Struct("<8sIIQ")
CHECKSUM = struct.Struct("<I")
MAX_HEADER_BYTES = 1 << 20
CELLS = "cells"  # name of the section that holds the cells
ARCHIVE = "archive"  # name of the section that holds archived rows
_INTEGER_DIGITS = 20  # the most digits of a whole number in a header


@dataclass(frozen=True, slots=True)
class Section:
    """Bytes to write, as arrays of any type and length that follow one another."""

    name: str
    n_bytes: int
    pieces: Iterable[npt.NDArray[Any]]

    @classmethod
    def of(cls, name: str, array: npt.NDArray[Any]) -> Section:
        """Return the section of an array in memory."""
        return cls(name, array.nbytes, (array,))


def write_snapshot_file(file: BinaryIO | RawFile, about: Mapping[str, Any], sections: Sequence[Section]) -> None:
    """Write a snapshot file to an empty file, piece by piece.

    about: plain values that JSON knows

    Raises OSError, and SessionFileError if the values are too long.
    """
    names = [(section.name, section.n_bytes) for section in sections]
    header = json.dumps({"about": about, "sections": names}, allow_nan=False, separators=(",", ":")).encode()
    if len(header) > MAX_HEADER_BYTES:
        raise SessionFileError(
            f"the file of a session would have a header of {len(header)} bytes, and {MAX_HEADER_BYTES} are possible; "
            "give the session a shorter system message"
        )
    n_bytes = FRAME.size + len(header) + sum(section.n_bytes for section in sections) + CHECKSUM.size
    begin = np.frombuffer(FRAME.pack(MAGIC, VERSION, len(header), n_bytes) + header, np.uint8)
    checksum = n_written = 0
    for piece in itertools.chain((begin,), *(section.pieces for section in sections)):
        data = piece.view(np.uint8).data
        write_all(file, data)
        checksum = zlib.crc32(data, checksum)
        n_written += data.nbytes
    assert n_written + CHECKSUM.size == n_bytes, "a section is not as long as it says"
    write_all(file, memoryview(CHECKSUM.pack(checksum)))


class SnapshotFile:
    """A snapshot file that was checked, open for reading. It is the source of its cells (`binding.snapshot_meta`).

    name: names it in errors
    checked: False = take its header as it is, without the checksum, only to show it
    header: the writer's values; each must be checked
    n_bytes: bytes of the cells

    Raises OSError, and SessionFileError for a file of another format or version, and a cut or changed file.
    """

    def __init__(self, file: RawFile, name: str, *, checked: bool = True) -> None:
        self.name = name
        self._file = file
        self._places: dict[str, tuple[int, int]] = {}  # first byte, bytes
        self._size = file.seek(0, os.SEEK_END)
        self.header = SnapshotHeader(self.damaged, self._about(self._header(checked=checked)))

    @property
    def n_bytes(self) -> int:
        return self.n(CELLS)

    def read_into(self, first: int, into: npt.NDArray[np.uint8]) -> None:
        """Fill `into` with the bytes of the cells from byte `first` on."""
        self.read(CELLS, first, into)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def n(self, name: str) -> int:
        """Return the bytes of a section."""
        return self._place(name)[1]

    def read(self, name: str, first: int, into: npt.NDArray[Any]) -> None:
        """Fill an array of any type with the bytes of a section from its byte `first` on."""
        begin, n = self._place(name)
        if first + into.nbytes > n:
            raise self.damaged(f"the section {name!r} ends too early")
        self._file.seek(begin + first)
        if not read_all(self._file, into.reshape(-1).view(np.uint8).data):
            raise self.damaged("it shrank while it was read")

    def opened(self, name: str) -> tuple[FileIO, int]:
        """Return a file that has a section, and the byte that it begins at. It stays if this one is replaced.

        Windows replaces no file that is open, so there it is a copy.
        """
        begin, n_bytes = self._place(name)
        assert isinstance(self._file, FileIO)
        if sys.platform != "win32":
            return FileIO(os.dup(self._file.fileno()), "rb"), begin
        copy, piece = temp_file(None), np.empty(CHUNK_BYTES, np.uint8)
        for first in range(0, n_bytes, CHUNK_BYTES):
            self.read(name, first, piece[: n_bytes - first])
            write_all(copy, piece[: n_bytes - first].data)
        return copy, 0

    def numbers(self, name: str) -> Iterator[npt.NDArray[np.int32]]:
        """Yield a section of whole numbers, at most CHUNK_BYTES of it at a time."""
        n = self.n(name)
        if n % 4:
            raise self.damaged(f"its {name!r} are no whole numbers")
        for first in range(0, n, CHUNK_BYTES):
            piece = np.empty(min(CHUNK_BYTES, n - first) // 4, np.dtype("<i4"))
            self.read(name, first, piece)
            yield piece

    def damaged(self, how: str) -> SessionFileError:
        """Return the error of a file with impossible values."""
        return SessionFileError(f"{self.name} is damaged: {how}; save the session again, or take a copy of the file")

    def _place(self, name: str) -> tuple[int, int]:
        if name not in self._places:
            raise self.damaged(f"it has no section {name!r}")
        return self._places[name]

    def _header(self, *, checked: bool) -> bytes:
        """Check that the file is whole; returns its header."""
        self._file.seek(0)
        size, frame = self._size, self._file.read(FRAME.size)
        if len(frame) < FRAME.size or not frame.startswith(MAGIC):
            raise SessionFileError(f"{self.name} is no session file: it begins with {frame[:8]!r}; name another")
        _, version, header_bytes, file_bytes = FRAME.unpack(frame)
        if version != VERSION:
            raise SessionFileError(
                f"{self.name} has version {version} of session files, but this edgekv reads version {VERSION}; install "
                "the edgekv that wrote it, or read and save the session again"
            )
        if file_bytes != size or header_bytes > MAX_HEADER_BYTES or FRAME.size + header_bytes + CHECKSUM.size > size:
            raise self.damaged(f"it has {size} bytes and says that it has {file_bytes}")
        if checked:
            self._check(size)
        self._file.seek(FRAME.size)
        return self._file.read(header_bytes)

    def _check(self, size: int) -> None:
        """Raise SessionFileError if the checksum is another one."""
        self._file.seek(0)
        checksum, buffer = 0, memoryview(bytearray(CHUNK_BYTES))
        for first in range(0, size - CHECKSUM.size, CHUNK_BYTES):
            piece = buffer[: size - CHECKSUM.size - first]
            if not read_all(self._file, piece):
                raise self.damaged("it shrank while it was read")
            checksum = zlib.crc32(piece, checksum)
        if self._file.read(CHECKSUM.size) != CHECKSUM.pack(checksum):
            raise self.damaged("its checksum is another one")

    def _about(self, header: bytes) -> dict[str, Any]:
        """Return the values of a header. The sections' places follow from their sizes, which fill the file."""
        end = FRAME.size + len(header)
        try:
            given = json.loads(header, parse_int=_integer, parse_constant=_no_number)
            about, sections = given["about"], given["sections"]
            sound = isinstance(about, dict)
            for name, n in sections:
                sound &= isinstance(name, str) and type(n) is int and n >= 0 and name not in self._places
                self._places[name] = end, n
                end += n
        except (ValueError, TypeError, KeyError, RecursionError):
            sound = False
        if not sound:
            raise self.damaged("its header is not what a session file has")
        if end + CHECKSUM.size != self._size:
            raise self.damaged("its sections do not fill it")
        return dict(about)


@contextmanager
def open_snapshot_file(path: Path, *, checked: bool = True) -> Iterator[SnapshotFile]:
    """Yield the snapshot file at a path. Raises SessionFileError, also if the block cannot read on."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe or a device could wait for ever
            raise SessionFileError(f"{str(path)!r} is not a file; give the path of a saved session")
        with open(path, "rb", buffering=0, opener=shared_files.opener) as file:
            yield SnapshotFile(file, repr(str(path)), checked=checked)
    except OSError as error:
        raise SessionFileError(
            f"{str(path)!r} cannot be read: {error.strerror or error}; check the path and its permissions"
        ) from error


def sizes_of(path: Path) -> str:
    """Return the size of a session file in words, and that of its archive."""
    with open_snapshot_file(path, checked=False) as file:
        n_archived = file.n(ARCHIVE) if ARCHIVE in file else 0
        said = format_size(path.stat().st_size - n_archived)
        return f"{said}, and {format_size(n_archived)} of archive" if n_archived else said


def _integer(digits: str) -> int:
    if len(digits) > _INTEGER_DIGITS:
        raise ValueError
    return int(digits)


def _no_number(_name: str) -> None:
    raise ValueError
