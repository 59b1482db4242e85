"""Cells of a file or of another cache, converted for this cache. Their rows pass through memory in pieces.

The cache that takes them may carry other numbers with its cells, keep other windows and store another type. The
library checks them once more before it changes a cell.
"""

from __future__ import annotations

import ctypes as c
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgekv.errors import ConfigError
from edgekv.memory.raw_files import CHUNK_BYTES

from . import library, structs
from .cache import Cache
from .snapshot_meta import Bytes, SnapshotMeta, Source, expect, pieces, read_header

Format = tuple[int, int]  # type of rows, and run of their Hadamard rotation
SHAPE = ("n_layer", "n_heads", "head_dim_k", "head_dim_v", "query_row_bytes", "state_bytes")


def convert_cells(
    source: Source,
    cache: Cache,
    meta: SnapshotMeta | None = None,
    *,
    scores: bool = True,
    claim: Callable[[int], None] | None = None,
) -> None:
    """Replace the cells of a cache by those of a snapshot. Rows of another type are converted.

    meta: of the snapshot, and is changed; None = read it
    scores: keep the cells' scores from earlier scorings; if False, or if there are none, they begin at 0
    claim: called with the bytes of a copy of the meta, before it is made; may raise anything

    Raises ConfigError, and leaves the cache as it was, for cells of another shape, too many cells, or impossible
    numbers. If rows cannot be read later on, raises the source's error, and leaves the cache empty.
    """
    meta = SnapshotMeta.read(source) if meta is None else meta
    if not scores and "accumulated" in meta.carried:
        meta.carried["accumulated"][:] = 0
    rows = Rows(source, meta, cache)
    if rows.differ:
        _fit(meta, rows)
    _fill(cache, meta.to_bytes(claim), rows.pieces())


def restore_cells(source: Source, cache: Cache, archive: c.c_void_p | None = None) -> None:
    """Make a cache hold the cells of a snapshot that it took itself.

    archive: has the rows that the snapshot leaves out; None = it has all rows

    If rows cannot be read, raises the source's error or ArchiveError, and leaves the cache empty.
    """
    numbers = np.empty(int(read_header(source.read_into).rows_begin), np.uint8)
    source.read_into(0, numbers)
    _fill(cache, numbers, pieces(source, numbers.nbytes), archive)


def _fill(cache: Cache, numbers: Bytes, rows: Iterable[Bytes], archive: c.c_void_p | None = None) -> None:
    """Restore the numbers of a cache, and then its rows. If these cannot be read, the cache is left empty."""
    cache.restore_numbers(numbers)
    try:
        first = numbers.nbytes
        for piece in rows:
            cache.restore_rows(first, piece, archive)
            first += piece.nbytes
        expect(first == cache.snapshot_bytes_beside(archive), "it has fewer rows than cells")
        if archive is not None:
            cache.restore_archived(archive)
    except BaseException:
        cache.clear()
        raise


def _fit(meta: SnapshotMeta, rows: Rows) -> None:
    """Change the meta to that of a snapshot of the cache that takes the rows."""
    header, carried, kind = meta.header, meta.carried, rows.kind
    position = carried["position"]
    turned = header.rope_past != header.n_past or not np.array_equal(carried.get("rope_position", position), position)
    if turned and not kind.repositions:
        raise ConfigError("its keys were moved to other positions, which reposition='never' forbids; use 'auto'")
    carried.setdefault("rope_position", position)
    carried.setdefault("accumulated", np.zeros_like(position))
    if "wo_norm" not in carried or not kind.wo_norms:
        carried["wo_norm"], header.normed = np.zeros_like(position), 0  # the next eviction that reads it computes it
    meta.lags = meta.lags[len(meta.lags) - rows.n_queries :]
    if len(meta.ring) != kind.n_ring:
        held = meta.ring[meta.ring >= 0]
        expect(len(held) < kind.n_ring, "its sliding windows hold too much")
        meta.ring = np.concatenate([held, np.full(kind.n_ring - len(held), -1, np.int32)])
        header.ring_head = len(held)
    header.kind = kind
    header.n_queries = rows.n_queries
    header.rows_begin = meta.n_bytes
    header.n_bytes = meta.n_bytes + rows.n_bytes


@dataclass(frozen=True, slots=True)
class Run:
    """Keys or values of one head: n rows of `dim` elements, their stored format and the format of the cache."""

    n: int
    dim: int
    stored: Format
    wanted: Format

    def n_bytes(self, kind: int) -> int:
        return self.n * row_bytes(kind, self.dim)


class Rows:
    """The rows of a snapshot, in the format of a cache.

    kind: of that cache's snapshots
    differ: the rows, or their meta, differ from that cache's
    n_queries: newest rows of queries that the cache keeps
    n_bytes: bytes of the rows in that cache
    """

    def __init__(self, source: Source, meta: SnapshotMeta, cache: Cache) -> None:
        """Raise ConfigError for rows of another shape, and for a type that cannot be converted."""
        header, given = meta.header, meta.header.kind
        self.kind = read_header(cache.copy_snapshot).kind
        if any(getattr(given, name) != getattr(self.kind, name) for name in SHAPE):
            raise ConfigError("its cells are of a model of another shape; use the model that it was saved with")
        stored = ((given.type_k, given.rotation_k), (given.type_v, given.rotation_v))
        wanted = ((self.kind.type_k, self.kind.rotation_k), (self.kind.type_v, self.kind.rotation_v))
        known = row_bytes(given.type_k, given.head_dim_k) and row_bytes(given.type_v, given.head_dim_v)
        expect(given.n_layer == 0 or known > 0, "its cells have an unknown type")
        if stored != wanted and self.kind.n_ring:
            raise ConfigError(
                "its sliding windows hold rows of another kv_type, which cannot be converted; use the one that it was "
                "saved with"
            )
        self._source = source
        self._chunk = np.empty(CHUNK_BYTES, np.uint8)  # holds rows as stored and as converted
        self._converts = stored != wanted
        self._runs, self._query_runs = _runs(meta, cache, stored, wanted)
        n_dropped = max(0, int(header.n_queries) - cache.n_query_rows)
        self.n_queries = int(header.n_queries) - n_dropped
        self._begin = int(header.rows_begin)
        self._cell_bytes = sum(run.n_bytes(run.stored[0]) for run in self._runs)
        self._query_row_bytes = int(given.query_row_bytes)
        self._queries_begin = self._begin + self._cell_bytes + n_dropped * self._query_row_bytes
        self._rest_begin = self._queries_begin + self.n_queries * self._query_row_bytes  # states and windows
        self._rest_bytes = int(header.n_bytes) - self._rest_begin
        expect(self._rest_bytes >= 0, "it has fewer rows than cells")
        self.differ = bytes(self.kind) != bytes(given) or n_dropped > 0
        wanted_bytes = sum(run.n_bytes(run.wanted[0]) for run in self._runs)
        self.n_bytes = wanted_bytes + self.n_queries * self._query_row_bytes + self._rest_bytes

    def pieces(self) -> Iterator[Bytes]:
        """Yield the rows in order, in pieces. The next piece overwrites the last one."""
        if self._converts:
            yield from self._converted(self._begin, self._runs)
            yield from self._converted(self._queries_begin, self._query_runs * self.n_queries)
        else:
            yield from self._copied(self._begin, self._cell_bytes)
            yield from self._copied(self._queries_begin, self.n_queries * self._query_row_bytes)
        yield from self._copied(self._rest_begin, self._rest_bytes)

    def _copied(self, first: int, n_bytes: int) -> Iterator[Bytes]:
        for at in range(0, n_bytes, CHUNK_BYTES):
            piece = self._chunk[: n_bytes - at]
            self._source.read_into(first + at, piece)
            yield piece

    def _converted(self, first: int, runs: Sequence[Run]) -> Iterator[Bytes]:
        """Yield rows from byte `first` on in the cache's format; some of one head at a time."""
        for run in runs:
            kind, rotation = run.stored
            stored_row, wanted_row = row_bytes(kind, run.dim), row_bytes(run.wanted[0], run.dim)
            at_once = CHUNK_BYTES // (stored_row + wanted_row)
            for n in (min(at_once, run.n - i) for i in range(0, run.n, at_once)):
                stored, rest = np.split(self._chunk, [n * stored_row])
                rows = rest[: n * wanted_row]
                self._source.read_into(first, stored)
                first += stored.nbytes
                given = structs.Rows(kind, stored.ctypes.data, n, stored_row, run.dim, rotation)
                library.call("edgekv_rows_convert", c.byref(given), *run.wanted, rows.ctypes.data, rows.nbytes)
                yield rows


def row_bytes(kind: int, dim: int) -> int:
    """Return the bytes of a stored row; 0 if no cache stores rows of such a type and length."""
    return int(library.load().edgekv_row_bytes(kind, dim))


def _runs(
    meta: SnapshotMeta, cache: Cache, stored: tuple[Format, Format], wanted: tuple[Format, Format]
) -> tuple[list[Run], list[Run]]:
    """Return the runs of all heads (keys, then values), and a token's queries by layer, which rotate as keys do."""
    rows, queries = [], []
    cells = iter(meta.cells.tolist())
    for layer in range(cache.shape.n_layer):
        kinds = (False,) if cache.shape.latent_dim_v else (False, True)  # a latent is key and value in one
        dims = [cache.row_format(layer, values=values).dim for values in kinds]
        n_head_kv, n_head = cache.layer_heads(layer)
        for n in itertools.islice(cells, n_head_kv):
            rows += [Run(n, *parts) for parts in zip(dims, stored, wanted, strict=False)]
        queries.append(Run(n_head, dims[0], (structs.F32, stored[0][1]), (structs.F32, wanted[0][1])))
    return rows, queries
