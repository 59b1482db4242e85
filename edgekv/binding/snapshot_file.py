"""Snapshots of a cache in a file, for the same cache. They pass through memory in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from io import FileIO

import numpy as np

from edgekv.memory.raw_files import read_all, write_all

from .cache import Cache
from .snapshot_meta import Bytes, read_header

PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SnapshotFile:
    """A snapshot of a cache in a raw file of its own, for `restore_snapshot`."""

    file: FileIO
    nbytes: int


def write_snapshot(cache: Cache, file: FileIO) -> SnapshotFile:
    """Write a snapshot of a cache to an empty file. Raises OSError if the file does not take it."""
    n_bytes = cache.snapshot_bytes
    buffer = np.empty(PIECE_BYTES, np.uint8)
    for first in range(0, n_bytes, PIECE_BYTES):
        piece = buffer[: n_bytes - first]
        cache.copy_snapshot(first, piece)
        write_all(file, piece.data)
    return SnapshotFile(file, n_bytes)


def restore_snapshot(cache: Cache, snapshot: SnapshotFile) -> None:
    """Put the cache back into the state of a snapshot of itself.

    Raises OSError if the file cannot be read; the cache is then as before, or empty.
    """

    def read_into(first: int, into: Bytes) -> None:
        snapshot.file.seek(first)
        if not read_all(snapshot.file, into.data):
            raise OSError(f"a snapshot of {snapshot.nbytes} bytes is cut")

    meta = np.empty(read_header(read_into).rows_begin, np.uint8)
    read_into(0, meta)
    cache.restore_numbers(meta)
    try:
        buffer = np.empty(PIECE_BYTES, np.uint8)
        for first in range(meta.nbytes, snapshot.nbytes, PIECE_BYTES):
            piece = buffer[: snapshot.nbytes - first]
            read_into(first, piece)
            cache.restore_rows(first, piece)
    except BaseException:
        cache.clear()
        raise
