"""Keys, values and queries of every head of a running model, taken at a full cache just before it is compacted."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

import edgekv
from edgekv.binding.cache import Cache
from edgekv.errors import ConfigError
from edgekv.extras import needed
from edgekv.options import KV_TYPES
from edgekv.policies import Head, Policy
from edgekv.policies.critical import wo_norms
from edgekv.policies.selection import Protection

Projection = npt.NDArray[np.float64]  # W_O of a layer, (n_head_kv, G, d_v, n_embd)


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

    def __init__(self, runtime: edgekv.Runtime, base: Policy, w_o: Sequence[Projection]) -> None:
        check_base(base)
        self.cache: Cache = runtime.block_loop.cache
        self.block, self.budget, self.base, self.w_o = runtime.options.block, runtime.block_loop.budget, base, w_o
        self.protection = Protection(
            runtime.options.n_sink, max(runtime.options.recent_cells(self.budget), base.recent(self.budget))
        )
        self.kv_heads = [(layer, g) for layer, projections in enumerate(w_o) for g in range(len(projections))]

    def read(self, tokens: Sequence[int], n_captures: int, n_next: int) -> Iterator[list[Capture]]:
        """Captures of all heads for the last `n_captures` compactions that a block follows.

        n_next: queries of the block that follows
        """
        first = len(tokens) - self.block * (n_captures + 1)
        carried: list[npt.NDArray[np.floating]] = [np.empty(0)] * len(self.kv_heads)  # carried scores, by position
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

    def heads(self, carried: Sequence[npt.NDArray[np.floating]]) -> list[Head]:
        """Return the present state of every head, float32. New cells carry no score yet."""
        found = []
        for (layer, g), sums in zip(self.kv_heads, carried, strict=True):
            queries, rows, scale = self.cache.queries(layer)
            n_new = min(len(rows), self.block)
            stored = stored_head(self.cache, layer, g)
            found.append(
                replace(
                    stored,
                    queries=queries.reshape(len(self.w_o[layer]), -1, *queries.shape[1:])[g][:, -n_new:],
                    query_positions=rows[-n_new:],
                    accumulated=np.pad(sums, (0, len(stored.positions) - len(sums))),
                    scale=scale,
                )
            )
        return found

    def with_norms(self, head: Head) -> Head:
        """The head with norm1(V W_O) of its cells, which `critical` reads."""
        return replace(head, wo_norm=wo_norms(np.asarray(head.values), self.w_o[head.layer][head.head]))


def stored_head(cache: Cache, layer: int, g: int) -> Head:
    """Return the cells of a head, without queries. Raises ConfigError for cells that are not plain f16."""
    keys, values = (stored_rows(cache, layer, g, values=values) for values in (False, True))
    return Head(keys=keys, values=values, positions=cache.positions(layer, g), layer=layer, head=g)


def stored_rows(cache: Cache, layer: int, g: int, *, values: bool) -> npt.NDArray[np.float32]:
    """Keys or values of a head, (n, d). Raises ConfigError for cells that are not plain f16."""
    data, rows = cache.rows(layer, g, values=values)
    if rows.type != KV_TYPES["f16"] or rows.rotation:
        raise ConfigError("keys and values are read as plain f16, which these cells are not; use kv_type=f16")
    return data.view(np.float16).astype(np.float32)


def by_layer(captures: Iterable[Capture]) -> list[list[Capture]]:
    """Captures of all heads, layer by layer."""
    return [list(layer) for _, layer in itertools.groupby(captures, lambda capture: capture.full.layer)]


def following(before: Head, now: Head, n_rows: int) -> Head:
    """All cells from before a compaction, those of the next block, and that block's first queries."""
    queries, rows = now.rows()
    new = now.positions > before.positions[-1]
    names = ("keys", "values", "positions")
    cells: dict[str, Any] = {name: np.concatenate([getattr(before, name), getattr(now, name)[new]]) for name in names}
    return replace(now, **cells, queries=queries[:, :n_rows], query_positions=rows[:n_rows], accumulated=None)


def output_projections(runtime: edgekv.Runtime) -> list[Projection]:
    """W_O of every layer with attention, from the model's file.

    Raises ConfigError without the extra "eval", and for a model without attention, or whose attention is not the plain
    one that is recomputed here: with sliding windows, softcapping, sinks or latents.
    """
    if not runtime.block_loop.cache.shape.n_layer:
        architecture = runtime.model.header.architecture
        raise ConfigError(f"{architecture!r} has no attention to measure; choose a model with attention")
    check_attention(runtime)
    reader, dequantize = needed("gguf", "eval").GGUFReader(runtime.model.path), needed("gguf.quants", "eval").dequantize
    kv_heads, head_dim_v = runtime.model.header.kv_heads, runtime.block_loop.cache.shape.head_dim_v
    found = {}
    for tensor in reader.tensors:
        match = re.fullmatch(r"blk\.(\d+)\.attn_output\.weight", tensor.name)
        if match and (n_head_kv := kv_heads[int(match[1])]):  # 0: a matrix in place of attention
            matrix = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)  # (n_embd, n_head * d_v)
            found[int(match[1])] = matrix.T.reshape(n_head_kv, -1, head_dim_v, len(matrix))
    if len(found) != runtime.block_loop.cache.shape.n_layer:
        raise _not_recomputed(runtime, "has sliding windows")
    return [found[layer] for layer in sorted(found)]


def check_base(policy: Policy) -> None:
    """Raise ConfigError for a policy that reads keys or queries in another form than they are stored in."""
    if policy.base.before_rope or policy.base.looks_ahead:
        raise ConfigError(
            f"{policy.base.spec} turns keys or queries before it scores, and this measurement captures them as they "
            "are stored; choose another policy"
        )


def check_attention(runtime: edgekv.Runtime) -> None:
    """Raise ConfigError unless the attention to the cells is a plain softmax of scaled products."""
    header = runtime.model.header
    if runtime.block_loop.cache.shape.latent_dim_v:
        raise _not_recomputed(runtime, "reads latents")
    if f"{header.architecture}.attn_logit_softcapping" in header.metadata:
        raise _not_recomputed(runtime, "is softcapped")
    if any(tensor.name.endswith("attn_sinks.weight") for tensor in header.tensors):
        raise _not_recomputed(runtime, "has learnt sinks")


def _not_recomputed(runtime: edgekv.Runtime, what: str) -> ConfigError:
    return ConfigError(
        f"the attention of {runtime.model.header.architecture!r} {what}, which this measurement does not recompute; "
        "choose a model with plain attention"
    )
