"""Raw files, which may read and write less than asked at a time."""

from __future__ import annotations

from io import FileIO
from typing import BinaryIO

CHUNK_BYTES = 1 << 18  # bytes of a large file that pass through memory at once


def write_all(file: BinaryIO | FileIO, data: memoryview) -> None:
    """Write all of `data` at the file's position. Raises OSError."""
    while data:
        data = data[file.write(data) :]


def read_all(file: FileIO, into: memoryview) -> bool:
    """Fill `into` from the file's position; returns False if the file ends before. Raises OSError."""
    while into and (n_read := file.readinto(into)):
        into = into[n_read:]
    return not into
