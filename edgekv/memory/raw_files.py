"""Raw files, which may take and give less at a time than is asked for."""

from __future__ import annotations

from io import FileIO


def write_all(file: FileIO, data: memoryview) -> None:
    """Write all of it where the file stands. Raises OSError."""
    while data:
        data = data[file.write(data) :]


def read_all(file: FileIO, into: memoryview) -> bool:
    """Fill `into` from where the file stands; returns whether there was as much. Raises OSError."""
    while into and (n_read := file.readinto(into)):
        into = into[n_read:]
    return not into
