"""Raw files, which may read and write less than asked at a time."""

from __future__ import annotations

from typing import BinaryIO, Protocol

CHUNK_BYTES = 1 << 18  # bytes of a large file that pass through memory at once


class RawFile(Protocol):
    """A raw file, such as an `io.FileIO`."""

    def seek(self, offset: int, whence: int = ..., /) -> int:
        """Go to a position, and return it."""

    def read(self, size: int, /) -> bytes:
        """Return the next bytes."""

    def readinto(self, into: memoryview, /) -> int | None:
        """Fill `into` with the next bytes; returns their number."""

    def write(self, data: memoryview, /) -> int:
        """Write the first of some bytes; returns their number."""


def write_all(file: BinaryIO | RawFile, data: memoryview) -> None:
    """Write all of `data` at the file's position. Raises OSError."""
    while data:
        data = data[file.write(data) :]


def read_all(file: RawFile, into: memoryview) -> bool:
    """Fill `into` from the file's position; returns False if the file ends before. Raises OSError."""
    while into and (n_read := file.readinto(into)):
        into = into[n_read:]
    return not into
