"""The format of session files: arrays behind a JSON header, under one checksum. All numbers are little-endian.

    magic "edgekv\\r\\n" | version u32 | bytes of the header u32 | bytes of the file u64
    header    JSON in UTF-8: {"about": {...}, "sections": [[name, type, number of elements], ...]}
    sections  in that order, each from the next multiple of 64 bytes on; zeros between them
    checksum  BLAKE2b of everything before, 32 bytes

A reader takes the sections that it knows by name and ignores the others. A file is untrusted data: nothing in it is
used before the checksum and all sizes are right, and these checks take no more memory than a header may have.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from edgekv.errors import SessionFileError
from edgekv.memory.sizes import format_size

from .atomic_write import atomic_write

VERSION = 1
MAGIC = b"edgekv\r\n"
FRAME = struct.Struct("<8sIIQ")
ALIGNMENT = 64
CHECKSUM_BYTES = 32
MAX_HEADER_BYTES = 1 << 20
MAX_SECTIONS = 64
CHUNK_BYTES = 1 << 18  # bytes that are written, read or added to the checksum at once
TYPES: dict[str, np.dtype[Any]] = {"U8": np.dtype("<u1"), "I32": np.dtype("<i4"), "F32": np.dtype("<f4")}
_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_INTEGER_DIGITS = 20  # the most digits of a whole number in a header


@dataclass(frozen=True, slots=True)
class Section:
    """An array to write: `n` elements of a type of TYPES, in pieces of any length."""

    name: str
    type: str
    n: int
    pieces: Iterable[npt.NDArray[Any]]

    @classmethod
    def of(cls, name: str, type: str, array: npt.NDArray[Any]) -> Section:
        """Return the section of an array in memory."""
        return cls(name, type, array.size, (np.ascontiguousarray(array, TYPES[type]),))

    @property
    def n_bytes(self) -> int:
        return self.n * int(TYPES[self.type].itemsize)


def write_sections(path: Path, about: Mapping[str, Any], sections: Sequence[Section]) -> None:
    """Write a file whole, in place of the file of that name.

    about: plain values that JSON knows
    Raises SessionFileError if it cannot be written; the file that was there is then untouched.
    """
    if sys.byteorder != "little":
        raise SessionFileError(
            f"{str(path)!r} cannot be written: session files are little-endian, and this machine is not"
        )
    names = [[section.name, section.type, section.n] for section in sections]
    header = json.dumps({"about": about, "sections": names}, allow_nan=False, separators=(",", ":")).encode()
    if len(header) > MAX_HEADER_BYTES:
        raise SessionFileError(
            f"{str(path)!r} would have a header of {len(header)} bytes, and {MAX_HEADER_BYTES} are possible; "
            "give the session a shorter system message"
        )
    end = FRAME.size + len(header)
    for section in sections:
        end = _aligned(end) + section.n_bytes
    try:
        with atomic_write(path) as file:
            output = _Summed(file)
            output.write(FRAME.pack(MAGIC, VERSION, len(header), end + CHECKSUM_BYTES))
            output.write(header)
            for section in sections:
                output.write(bytes(-output.n_bytes % ALIGNMENT))
                begin = output.n_bytes
                for piece in section.pieces:
                    output.write(piece.data)
                assert output.n_bytes - begin == section.n_bytes, f"{section.name} is not as long as it says"
            file.write(output.checksum.digest())
    except OSError as error:
        raise SessionFileError(
            f"{str(path)!r} cannot be written: {error.strerror or error}; it takes {format_size(end)}; name a folder "
            "that can be written to and has room; what was there before is untouched"
        ) from error


class _Summed:
    """Counts and sums up what goes through."""

    def __init__(self, file: BinaryIO) -> None:
        self.n_bytes = 0
        self.checksum = _checksum()
        self._file = file

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self.checksum.update(data)
        self.n_bytes += memoryview(data).nbytes


class SectionFile:
    """A file that was checked, open for reading. Close it, or use it in `with`.

    about: the writer's notes; the reader must check them
    checked: False = take its header as it is, without the checksum, only to show it
    Raises SessionFileError for a file of another format, a cut or changed file, and a later version.
    """

    def __init__(self, path: Path, *, checked: bool = True) -> None:
        self.path = path
        self.about: dict[str, Any] = {}
        self._places: dict[str, tuple[np.dtype[Any], int, int]] = {}  # type, first byte, number of elements
        try:
            self._file = _opened(path)
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            self._take(self._header(checked=checked))
        except OSError as error:
            self.close()
            raise self._unreadable(error) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> SectionFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def n(self, name: str) -> int:
        """Return the number of elements of a section."""
        return self._place(name)[2]

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return a whole section."""
        kind, _, n = self._place(name)
        array = np.empty(n, kind)
        self.read_into(name, 0, array)
        return array

    def read_into(self, name: str, first: int, array: npt.NDArray[Any]) -> None:
        """Fill an array, of any type, with the bytes of a section from its element `first` on."""
        kind, begin, n = self._place(name)
        if first * kind.itemsize + array.nbytes > n * kind.itemsize:
            raise self.damaged(f"the section {name!r} ends too early")
        try:
            self._file.seek(begin + first * kind.itemsize)
            n_read = self._file.readinto(array.reshape(-1).view(np.uint8)) if array.nbytes else 0  # type: ignore[attr-defined]
        except OSError as error:
            raise self._unreadable(error) from error
        if n_read != array.nbytes:
            raise self.damaged("it shrank while it was read")

    def pieces(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """Yield a section, a piece of at most CHUNK_BYTES at a time."""
        kind, _, n = self._place(name)
        at_once = CHUNK_BYTES // kind.itemsize
        for first in range(0, n, at_once):
            piece = np.empty(min(at_once, n - first), kind)
            self.read_into(name, first, piece)
            yield piece

    def damaged(self, how: str) -> SessionFileError:
        """Return the error of a file with impossible values."""
        return SessionFileError(
            f"{str(self.path)!r} is damaged: {how}; save the session again, or take a copy of the file"
        )

    def _unreadable(self, error: OSError) -> SessionFileError:
        return SessionFileError(
            f"{str(self.path)!r} cannot be read: {error.strerror or error}; check the path and its permissions"
        )

    def _place(self, name: str) -> tuple[np.dtype[Any], int, int]:
        if name not in self._places:
            raise self.damaged(f"it has no section {name!r}")
        return self._places[name]

    def _header(self, *, checked: bool) -> bytes:
        """Check that the file is whole; returns its header."""
        status = os.fstat(self._file.fileno())
        frame = self._file.read(FRAME.size)
        if len(frame) < FRAME.size or not frame.startswith(MAGIC):
            raise SessionFileError(f"{str(self.path)!r} is no session file: it begins with {frame[:8]!r}; name another")
        _, version, header_bytes, file_bytes = FRAME.unpack(frame)
        if version != VERSION:
            raise SessionFileError(
                f"{str(self.path)!r} has version {version} of session files, but this edgekv reads version {VERSION}; "
                "install the edgekv that wrote it, or save the session again"
            )
        if file_bytes != status.st_size or header_bytes > min(MAX_HEADER_BYTES, status.st_size):
            raise self.damaged(f"it has {status.st_size} bytes and says that it has {file_bytes}")
        header = self._file.read(header_bytes)
        if not checked:
            return header
        checksum = _checksum()
        checksum.update(frame)
        checksum.update(header)
        rest = status.st_size - FRAME.size - len(header) - CHECKSUM_BYTES
        while rest > 0 and (chunk := self._file.read(min(rest, CHUNK_BYTES))):
            checksum.update(chunk)
            rest -= len(chunk)
        if rest or self._file.read(CHECKSUM_BYTES) != checksum.digest():
            raise self.damaged("its checksum is another one")
        return header

    def _take(self, header: bytes) -> None:
        """Take the header. The sections' places follow from their sizes, which fill the file."""
        try:
            given = json.loads(header, parse_int=_integer, parse_constant=_no_number)
            about, sections = given["about"], given["sections"]
            sound = isinstance(about, dict) and isinstance(sections, list) and len(sections) <= MAX_SECTIONS
        except (ValueError, TypeError, KeyError, RecursionError):
            sound = False
        if not sound:
            raise self.damaged("its header is not what a session file has")
        end = FRAME.size + len(header)
        for section in sections:
            if not _is_section(section) or section[0] in self._places:
                raise self.damaged("its header lists impossible sections")
            name, kind, n = section
            begin = _aligned(end)
            end = begin + n * TYPES[kind].itemsize
            self._places[name] = TYPES[kind], begin, n
        if end + CHECKSUM_BYTES != os.fstat(self._file.fileno()).st_size:
            raise self.damaged("its sections do not fill it")
        self.about = about


def _is_section(given: object) -> bool:
    """Return True for a name, a type and a number of elements."""
    if not isinstance(given, list) or len(given) != 3:
        return False
    name, kind, n = given
    named = isinstance(name, str) and _NAME.fullmatch(name) is not None
    return named and isinstance(kind, str) and kind in TYPES and type(n) is int and n >= 0


def _integer(digits: str) -> int:
    if len(digits) > _INTEGER_DIGITS:
        raise ValueError
    return int(digits)


def _no_number(_name: str) -> None:
    raise ValueError


def _opened(path: Path) -> BinaryIO:
    """Open the file. Opening a pipe or a device could wait for ever."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise SessionFileError(f"{str(path)!r} is not a file; give the path of a saved session")
    return path.open("rb")


def _aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGNMENT) * ALIGNMENT


def _checksum() -> hashlib.blake2b:
    return hashlib.blake2b(digest_size=CHECKSUM_BYTES)
