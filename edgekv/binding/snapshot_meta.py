"""The part of a snapshot before its rows: numbers of cells, as arrays, laid out as edgekv_snapshot.h says."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edgekv.errors import ConfigError
from edgekv.memory.raw_files import CHUNK_BYTES

from . import structs
from .cache import Cache

MAGIC = b"edgekvs"
VERSION = 6  # EDGEKV_SNAPSHOT_VERSION

Bytes = npt.NDArray[np.uint8]


class Source(Protocol):
    """A snapshot in a file or in a cache."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the snapshot."""

    def read_into(self, first: int, into: Bytes) -> None:
        """Fill `into` with bytes of the snapshot from byte `first` on."""


class CachedSource:
    """The snapshot of a cache as it is now.

    archive: the archive whose rows the snapshot leaves out; None = it has all rows
    """

    def __init__(self, cache: Cache, archive: c.c_void_p | None = None) -> None:
        self.n_bytes = cache.snapshot_bytes_beside(archive)
        self._cache = cache
        self._archive = archive

    def read_into(self, first: int, into: Bytes) -> None:
        """Fill `into` with bytes of the snapshot from byte `first` on."""
        self._cache.copy_snapshot(first, into, self._archive)

    def pieces(self) -> Iterator[Bytes]:
        """Yield the snapshot in pieces. The next piece overwrites the last one."""
        return pieces(self)


def pieces(source: Source, first: int = 0) -> Iterator[Bytes]:
    """Yield a snapshot from byte `first` on in pieces. The next piece overwrites the last one."""
    buffer = np.empty(CHUNK_BYTES, np.uint8)
    for at in range(first, source.n_bytes, CHUNK_BYTES):
        piece = buffer[: source.n_bytes - at]
        source.read_into(at, piece)
        yield piece


@dataclass
class SnapshotMeta:
    """The part of a snapshot before its rows.

    kept: (n_heads,) cells that the last eviction left
    added: (n_heads,) cells that recalls have given each since, and those that were fed before a recall
    lags: (n_queries,); ring: (n_ring,) positions in sliding windows, negative = no rows
    carried: by name, (n_cells,) each: position, order, and if cells carry them rope_position, accumulated, wo_norm
    """

    header: structs.Snapshot
    kept: npt.NDArray[np.uint32]
    added: npt.NDArray[np.uint32]
    lags: npt.NDArray[np.int32]
    ring: npt.NDArray[np.int32]
    carried: dict[str, npt.NDArray[np.uint32]]
    data: Bytes  # bytes as they were read; the arrays are views of them

    @classmethod
    def read(cls, source: Source, claim: Callable[[int], None] | None = None) -> SnapshotMeta:
        """Read the meta of a snapshot. Raises ConfigError if its sizes do not fit one another.

        claim: called with the bytes that the arrays take, before they are read; may raise anything
        """
        expect(source.n_bytes >= c.sizeof(structs.Snapshot), "it is cut")
        header = read_header(source.read_into)
        if header.magic != MAGIC or header.version != VERSION:
            raise ConfigError(
                f"its cells have version {header.version}, but this edgekv reads version {VERSION}; install the edgekv "
                "that wrote it, or save the session again"
            )
        first = c.sizeof(header)
        expect(first <= header.rows_begin <= header.n_bytes == source.n_bytes, "its cells are cut")
        n_heads, n_queries, n_ring = int(header.kind.n_heads), int(header.n_queries), int(header.kind.n_ring)
        expect(first + 4 * (2 * n_heads + n_queries + n_ring) <= header.rows_begin, "it counts too much")
        expect(header.rows_begin % 4 == 0, "its numbers are no whole ones")
        if claim is not None:
            claim(int(header.rows_begin))
        data = np.empty(int(header.rows_begin), np.uint8)
        source.read_into(0, data)
        numbers = data[first:].view(np.uint32)
        kept, added, lags, ring, rest = np.split(numbers, np.cumsum([n_heads, n_heads, n_queries, n_ring]))
        n_cells = int(kept.sum(dtype=np.int64) + added.sum(dtype=np.int64)) + n_heads * int(header.n_filled)
        names = carried_names(header)
        expect(n_cells * len(names) == len(rest), "it has another number of cells than it says")
        carried = {name: rest[i * n_cells : (i + 1) * n_cells] for i, name in enumerate(names)}
        for name in ("accumulated", "wo_norm"):
            expect(bool(np.isfinite(carried.get(name, kept).view(np.float32)).all()), "its scores are not finite")
        return cls(header, kept, added, lags.view(np.int32), ring.view(np.int32), carried, data)

    @property
    def cells(self) -> npt.NDArray[np.int64]:
        """Cells of every head, (n_heads,)."""
        return self.kept.astype(np.int64) + self.added + int(self.header.n_filled)

    @property
    def n_bytes(self) -> int:
        """Bytes of the header and the arrays."""
        n_carried = len(self.carried["position"]) * len(carried_names(self.header))
        return c.sizeof(self.header) + 4 * (2 * len(self.kept) + len(self.lags) + len(self.ring) + n_carried)

    def to_bytes(self, claim: Callable[[int], None] | None = None) -> Bytes:
        """Return the bytes for a cache, with all changes; without a copy if every array still lies in `data`.

        claim: called with the bytes of a copy, before it is made; may raise anything
        """
        parts: list[npt.NDArray[Any]] = [self.kept, self.added, self.lags, self.ring]
        parts += [self.carried[name] for name in carried_names(self.header)]
        places = np.cumsum([c.sizeof(self.header), *(part.nbytes for part in parts)]).tolist()
        begin, into = self.data.ctypes.data, self.data
        placed = zip(parts, places, strict=False)
        if places[-1] != into.nbytes or any(part.size and part.ctypes.data != begin + at for part, at in placed):
            if claim is not None:
                claim(places[-1])
            into = np.empty(places[-1], np.uint8)
            for part, at in zip(parts, places, strict=False):
                into[at : at + part.nbytes] = part.view(np.uint8)
        into[: places[0]] = np.frombuffer(bytes(self.header), np.uint8)
        return into


def read_header(read_into: Callable[[int, Bytes], None]) -> structs.Snapshot:
    """Read the header of a snapshot."""
    data = np.empty(c.sizeof(structs.Snapshot), np.uint8)
    read_into(0, data)
    return structs.Snapshot.from_buffer_copy(data.data)


def carried_names(header: structs.Snapshot) -> list[str]:
    """Return the names of the arrays that cells carry, in the order of a snapshot."""
    kind = header.kind
    there = {
        "position": True,
        "rope_position": kind.repositions,
        "order": True,
        "accumulated": kind.accumulates,
        "wo_norm": kind.wo_norms,
    }
    return [name for name, is_there in there.items() if is_there]


def expect(sound: bool, what: str) -> None:
    """Raise ConfigError if a snapshot holds impossible numbers."""
    if not sound:
        raise ConfigError(f"it is damaged: {what}; save the session again")
