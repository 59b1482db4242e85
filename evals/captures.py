"""Keys, values and queries of every head of a running model, taken at a full cache just before it is compacted."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import gguf
import numpy as np
from gguf.quants import dequantize

import edgekv
from edgekv.cache import Cache
from edgekv.models.registry import find_model
from edgekv.policies import Head, Policy
from edgekv.policies.select import Protection

F16 = 1  # enum ggml_type


@dataclass(frozen=True)
class Capture:
    """A (layer, KV head) at a full cache, and the same with the next block's cells and its first queries."""

    full: Head
    then: Head


class Reader:
    """Reads a text block by block under a base policy, and gives what it and its wrappers may look at.

    The runtime's own policy must be `h2o`: its cache keeps the queries of a whole block. `w_o` is what
    `output_projections` gives.
    """

    def __init__(self, runtime: edgekv.Runtime, base: Policy, w_o: list[np.ndarray]) -> None:
        self.cache: Cache = runtime.controller.cache
        self.block, self.budget, self.base, self.w_o = runtime.options.block, runtime.controller.budget, base, w_o
        self.protection = Protection(runtime.options.n_sink, max(runtime.options.recent, base.recent(self.budget)))
        self.kv_heads = [(layer, g) for layer, projections in enumerate(w_o) for g in range(len(projections))]

    def read(self, tokens: list[int], n_captures: int, n_next: int) -> Iterator[list[Capture]]:
        """Captures of all heads for the last `n_captures` compactions that a block follows.

        n_next: queries of the block that follows
        """
        first = len(tokens) - self.block * (n_captures + 1)
        carried = [np.empty(0)] * len(self.kv_heads)  # what scorings left, by position
        before: list[Head] = []
        for p0 in range(0, len(tokens), self.block):
            self.cache.feed(tokens[p0 : p0 + self.block])
            heads = self.heads(carried) if before or p0 >= first or self.base.carries else []
            if before:
                yield [Capture(old, following(old, new, n_next)) for old, new in zip(before, heads, strict=True)]
            before = heads if p0 >= first else []
            gathered = [self.base.accumulate(head) for head in heads] if self.base.carries else []
            self.cache.compact(self.base, self.budget, n_sink=self.protection.n_sink, recent=self.protection.recent)
            if self.base.carries:
                carried = [
                    sums[np.isin(head.positions, self.cache.positions(head.layer, head.head))]
                    for head, sums in zip(heads, gathered, strict=True)
                ]

    def heads(self, carried: list[np.ndarray]) -> list[Head]:
        """Every head as it is now, float32. Earlier scorings left nothing to the cells that are new."""
        found = []
        for (layer, g), sums in zip(self.kv_heads, carried, strict=True):
            queries, rows, scale = self.cache.queries(layer)
            n_new = min(len(rows), self.block)
            positions = self.cache.positions(layer, g)
            found.append(
                Head(
                    keys=self._stored(layer, g, values=False),
                    values=self._stored(layer, g, values=True),
                    positions=positions,
                    queries=queries.reshape(len(self.w_o[layer]), -1, *queries.shape[1:])[g][:, -n_new:],
                    query_positions=rows[-n_new:],
                    accumulated=np.pad(sums, (0, len(positions) - len(sums))),
                    scale=scale,
                    layer=layer,
                    head=g,
                )
            )
        return found

    def _stored(self, layer: int, g: int, *, values: bool) -> np.ndarray:
        data, rows = self.cache.rows(layer, g, values=values)
        if rows.type != F16 or rows.rotation:
            sys.exit("the cells are not plain f16, which this reads; take another model")
        return data.view(np.float16).astype(np.float32)


def following(before: Head, now: Head, n_rows: int) -> Head:
    """All cells from before a compaction, those of the next block, and that block's first queries."""
    queries, rows = now.rows()
    new = now.positions > before.positions[-1]
    names = ("keys", "values", "positions")
    cells = {name: np.concatenate([getattr(before, name), getattr(now, name)[new]]) for name in names}
    return replace(now, **cells, queries=queries[:, :n_rows], query_positions=rows[:n_rows], accumulated=None)


def output_projections(model: str | None, n_head_kv: int, head_dim: int) -> list[np.ndarray]:
    """W_O by layer, (n_head_kv, G, d_v, n_embd) float64, from the file of a model."""
    found = {}
    for tensor in gguf.GGUFReader(find_model(model)).tensors:
        if match := re.fullmatch(r"blk\.(\d+)\.attn_output\.weight", tensor.name):
            matrix = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)  # (n_embd, n_head * d_v)
            found[int(match[1])] = matrix.T.reshape(n_head_kv, -1, head_dim, len(matrix))
    return [found[layer] for layer in sorted(found)]
