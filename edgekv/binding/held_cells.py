"""The cells that a cache holds, head by head: their positions, their rows, and the queries that would score them."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import library, structs


class HeadPositions(NamedTuple):
    """Positions of every head, layer by layer. counts: (n_heads,) of each; positions: these, ascending of each"""

    counts: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.int32]

    @classmethod
    def of(cls, heads: Iterable[npt.NDArray[np.int32]]) -> HeadPositions:
        """heads: the positions of each head, (n,) ascending"""
        held = list(heads)
        counts = np.fromiter(map(len, held), np.uint32, len(held))
        return cls(counts, np.concatenate([np.empty(0, np.int32), *held]))


class HeldCells:
    """The cells of every (layer, KV head), to look at.

    shape: that of the context's cells
    """

    shape: structs.Shape
    _handle: c.c_void_p
    _library: c.CDLL
    _query_rows: int

    def head_cells(self, layer: int, head: int) -> tuple[int, int]:
        """Cells that one head holds, and how many of them the last eviction left."""
        n_cells, n_kept = c.c_uint32(), c.c_uint32()
        library.call("edgekv_cache_head_cells", self._handle, layer, head, c.byref(n_cells), c.byref(n_kept))
        return n_cells.value, n_kept.value

    def budgets(self) -> list[list[int]]:
        """Cells that the last eviction left in each head of each layer; 0 before the first one.

        Within a reply these are more than the budget, by what was recalled for it.
        """
        n_heads = [self._library.edgekv_cache_n_heads(self._handle, layer) for layer in range(self.shape.n_layer)]
        return [[self.head_cells(layer, head)[1] for head in range(n)] for layer, n in enumerate(n_heads)]

    @property
    def heads(self) -> list[tuple[int, int]]:
        """Layer and number of every head that holds cells."""
        n_heads = [self._library.edgekv_cache_n_heads(self._handle, layer) for layer in range(self.shape.n_layer)]
        return [(layer, head) for layer, n in enumerate(n_heads) for head in range(n)]

    def positions(self, layer: int, head: int, *, rope: bool = False) -> npt.NDArray[np.int32]:
        """Positions held by one head, (n,) ascending. rope: the RoPE positions of their keys instead, in that order"""
        positions = np.empty(self.head_cells(layer, head)[0], dtype=np.int32)
        name = "edgekv_cache_rope_positions" if rope else "edgekv_cache_positions"
        library.call(name, self._handle, layer, head, positions.ctypes.data)
        return positions

    def all_positions(self) -> list[npt.NDArray[np.int32]]:
        """Positions held by every head, each (n,) ascending"""
        return [self.positions(*at) for at in self.heads]

    def token_positions(self, layer: int, head: int) -> npt.NDArray[np.int32]:
        """Positions of the tokens held by one head, (n,) ascending, without a rest"""
        positions = self.positions(layer, head)
        return positions[positions >= 0]

    def rows(self, layer: int, head: int, *, values: bool = False) -> tuple[npt.NDArray[np.uint8], structs.Rows]:
        """Return one head's keys or values as stored, (n, row bytes), in the order of `positions`, and their format."""
        widest = max(self.shape.head_dim_k, self.shape.head_dim_v) * 4
        data = np.empty(self.head_cells(layer, head)[0] * widest, dtype=np.uint8)
        rows = structs.Rows()
        library.call(
            "edgekv_cache_read", self._handle, layer, head, values, data.ctypes.data, data.nbytes, c.byref(rows)
        )
        return data[: rows.n * rows.stride_bytes].reshape(rows.n, rows.stride_bytes), rows

    def row_format(self, layer: int, *, values: bool = False) -> structs.Rows:
        """The type, width and rotation of a layer's keys or values, without the rows."""
        rows = structs.Rows()
        library.call("edgekv_cache_read", self._handle, layer, 0, values, None, 0, c.byref(rows))
        return rows

    def layer_heads(self, layer: int) -> tuple[int, int]:
        """KV heads and query heads of a layer."""
        heads = (self._library.edgekv_cache_n_heads, self._library.edgekv_cache_n_query_heads)
        n_head_kv, n_head = (int(n_heads(self._handle, layer)) for n_heads in heads)
        return n_head_kv, n_head

    def queries(
        self, layer: int, *, probed: bool = False
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], float]:
        """The queries that would score a layer now, (n_head, n_rows, head_dim), their positions, and the model's scale.

        Rotated as the stored keys are. Raises NativeError if the cache keeps none.
        """
        room = max(1, self._query_rows)
        n_head = self._library.edgekv_cache_n_query_heads(self._handle, layer)
        rows = np.empty((room, n_head, self.shape.head_dim_k), dtype=np.float32)
        positions = np.empty(room, dtype=np.int32)
        n_rows, scale = c.c_uint32(room), c.c_float()
        library.call(
            "edgekv_cache_queries",
            self._handle,
            layer,
            probed,
            rows.ctypes.data,
            positions.ctypes.data,
            c.byref(n_rows),
            c.byref(scale),
        )
        return rows[: n_rows.value].transpose(1, 0, 2).copy(), positions[: n_rows.value], scale.value
