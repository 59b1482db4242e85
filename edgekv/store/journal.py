"""Journals: files of records that are only appended, so that a process may be killed at any time.

    magic "edgekvj\\n" | version u32
    records, each:
        mark "part" or "turn" | CRC-32 of all that follows u32 | bytes of the values u32 | count of the numbers u32
        values   JSON in UTF-8
        numbers  int32

All numbers are little-endian. The first record says what the journal is of. A record with the mark "turn" is flushed to
the disk with all before it. So what lies after the last of them may be torn if the machine dies, and is cut. If a
record before it is damaged, the journal is refused.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from edgekv.errors import SessionFileError
from edgekv.memory.raw_files import read_all, write_all

from .atomic_write import atomic_write
from .shared_files import lock, opener
from .snapshot_header import SnapshotHeader

MAGIC, VERSION = b"edgekvj\n", 1
BEGIN = struct.Struct("<8sI")
FRAME = struct.Struct("<4sIII")
PART, TURN = b"part", b"turn"
MAX_VALUES_BYTES = 1 << 20
MAX_NUMBERS = 1 << 16

Use: TypeAlias = Literal["append", "read", "look"]


class Record(NamedTuple):
    """A record. Its values come from a file, and each must be checked.

    numbers: (n,) int32; ends: it was flushed
    """

    values: SnapshotHeader
    numbers: npt.NDArray[np.int32]
    ends: bool


class Journal:
    """An open journal. It is locked for the one that appends to it, or for all that read it.

    name: names it in errors

    Raises SessionFileError for a file that is no journal, and for one that another process has open.
    """

    def __init__(self, path: Path, name: str, use: Use) -> None:
        """use: "look" takes no lock, and finds the records of that moment"""
        self.name = name
        self._use = use
        self._n_bytes = BEGIN.size
        try:
            self._file = FileIO(str(path), "r+" if use == "append" else "r", opener=opener)
        except OSError as error:
            raise SessionFileError(
                f"{name} cannot be read: {error.strerror or error}; check the path and its permissions"
            ) from error
        try:
            if use != "look":
                self._lock()
            self._check_begin()
        except BaseException:
            self._file.close()
            raise

    @classmethod
    def create(cls, path: Path, name: str, values: Mapping[str, Any]) -> Journal:
        """Make a journal with its first record, whole or not at all. Raises OSError and SessionFileError."""
        with atomic_write(path) as file:
            file.write(BEGIN.pack(MAGIC, VERSION) + _record(name, values, (), ends=True))
        journal = cls(path, name, "append")
        for _ in journal.records():
            pass
        return journal

    def close(self) -> None:
        """Close the file, and give up the lock."""
        self._file.close()

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole records that were read or written so far."""
        return self._n_bytes

    def damaged(self, why: str) -> SessionFileError:
        """Return the error of a journal that is not as it was written."""
        return SessionFileError(f"{self.name} is damaged: {why}; use an earlier copy of it")

    def append(self, values: Mapping[str, Any], numbers: npt.ArrayLike = (), *, ends: bool = False) -> None:
        """Append a record. ends: flush it to the disk

        Raises OSError, and SessionFileError if the values are too long; the journal is then as before.
        """
        record = _record(self.name, values, numbers, ends=ends)
        try:
            self._file.seek(self._n_bytes)
            write_all(self._file, memoryview(record))
            if ends:
                os.fsync(self._file.fileno())
        except BaseException:
            self.cut(self._n_bytes)
            raise
        self._n_bytes += len(record)

    def records(self) -> Iterator[Record]:
        """Yield the records, and cut what is torn after the last one.

        Raises SessionFileError if a record is damaged, and OSError.
        """
        self._n_bytes = BEGIN.size
        while (found := self._record_at(self._n_bytes)) is not None:
            record, self._n_bytes = found
            yield record
        if self._has_turn_after(self._n_bytes):
            raise self.damaged(f"its record at byte {self._n_bytes:,} is not what was written, and others follow")
        self.cut(self._n_bytes)

    def cut(self, n_bytes: int) -> None:
        """Forget the records after a byte. Raises OSError."""
        self._n_bytes = n_bytes
        if self._use == "append":
            self._file.truncate(n_bytes)

    def _lock(self) -> None:
        try:
            lock(self._file.fileno(), shared=self._use == "read")
        except BlockingIOError as error:
            raise SessionFileError(
                f"{self.name} is open elsewhere, and grows there; end that session first, or go on with another one"
            ) from error

    def _check_begin(self) -> None:
        begin = bytearray(BEGIN.size)
        if not self._read_at(0, memoryview(begin)) or BEGIN.unpack(begin)[0] != MAGIC:
            raise SessionFileError(f"{self.name} is no kept session; give the path of one")
        if (version := BEGIN.unpack(begin)[1]) != VERSION:
            raise SessionFileError(f"{self.name} has version {version}, and this edgekv reads {VERSION}")

    def _record_at(self, at: int) -> tuple[Record, int] | None:
        """Return the record at a byte, and its end; None = there is no whole one."""
        frame = bytearray(FRAME.size)
        if not self._read_at(at, memoryview(frame)):
            return None
        mark, checksum, n_text, n_numbers = FRAME.unpack(frame)
        if mark not in (PART, TURN) or n_text > MAX_VALUES_BYTES or n_numbers > MAX_NUMBERS:
            return None
        body = bytearray(n_text + 4 * n_numbers)
        if not self._read_at(at + FRAME.size, memoryview(body)):
            return None
        if zlib.crc32(body, zlib.crc32(frame[8:])) != checksum:
            return None
        numbers = np.frombuffer(body, "<i4", offset=n_text).astype(np.int32)
        values = SnapshotHeader(self.damaged, self._values(bytes(body[:n_text])))
        return Record(values, numbers, mark == TURN), at + FRAME.size + len(body)

    def _values(self, text: bytes) -> dict[str, Any]:
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, dict):
            raise self.damaged("a record holds no values")
        return values

    def _has_turn_after(self, at: int) -> bool:
        """Return True if a whole record that was flushed begins after a byte."""
        if os.fstat(self._file.fileno()).st_size <= at:
            return False
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            while (at := data.find(TURN, at + 1)) >= 0:
                if self._record_at(at) is not None:
                    return True
        return False

    def _read_at(self, at: int, into: memoryview) -> bool:
        """Fill bytes from the file; False = it ends before."""
        self._file.seek(at)
        return bool(read_all(self._file, into))


def _record(name: str, values: Mapping[str, Any], numbers: npt.ArrayLike, *, ends: bool) -> bytes:
    """Return a record as it is stored. Raises SessionFileError if the values are too long."""
    text = json.dumps(values, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_VALUES_BYTES:
        raise SessionFileError(
            f"{name} would have a record of {len(text)} bytes, and {MAX_VALUES_BYTES} are possible; give the session a "
            "shorter system message"
        )
    array = np.ascontiguousarray(numbers, dtype="<i4")
    assert len(array) <= MAX_NUMBERS
    body = struct.pack("<II", len(text), len(array)) + text + array.tobytes()
    return (TURN if ends else PART) + struct.pack("<I", zlib.crc32(body)) + body
