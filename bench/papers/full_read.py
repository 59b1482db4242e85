"""Reads a text with nothing evicted, and captures what all heads then hold; any number of policies choose from it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

import edgekv
from edgekv.policies import Head, Policy, parse_policy
from edgekv.policies.critical import wo_norms

from .captures import output_projections, stored_head
from .outputs import Layer

N_QUERIES = 32

Heads = list[list[Head]]  # the KV heads of every layer
Arrays = list[list[npt.NDArray[np.floating]]]  # one of every head
Rows = tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], float]  # queries of a layer, as `Cache.queries` gives them


class FullRead:
    """A text of whole blocks, read once. A policy may evict the cells before the last block.

    n_cells: cells that every head holds before the last block
    options: options of the runtime

    The runtime, of `output_perturbation.capture_setting`, is empty and has room for the whole text. Once the text is
    read, it is no longer needed. Raises ConfigError for cells that are not plain f16, and without the extra "make".
    """

    def __init__(self, runtime: edgekv.Runtime, tokens: Sequence[int]) -> None:
        cache, self.options = runtime.block_loop.cache, runtime.options
        block = self.options.block
        self.n_cells = len(tokens) - block
        self._w_o = output_projections(runtime)
        self._rows: list[list[Rows]] = []  # [block][layer]
        as_it_is = parse_policy("sink")  # scores for nothing; with room for all cells none is evicted
        for p0 in range(0, len(tokens), block):
            cache.feed(tokens[p0 : p0 + block])
            self._rows.append([cache.queries(layer) for layer in range(len(self._w_o))])
            cache.compact(as_it_is, runtime.block_loop.budget)
        self._cells: Heads = [
            [stored_head(cache, layer, g) for g in range(len(projections))]
            for layer, projections in enumerate(self._w_o)
        ]
        self._sums: dict[Policy, Arrays] = {}

    def choices(self, policy: Policy) -> Heads:
        """The heads before the last block, with what the policy reads."""
        heads = self._after(len(self._rows) - 1)
        if policy.base.carries:
            heads = _each(_carrying, heads, self._accumulated(policy.base))
        if "wo_norm" in policy.reads:
            heads = _each(lambda head, norms: replace(head, wo_norm=norms), heads, self._norms)
        return heads

    @functools.cached_property
    def layers(self) -> list[Layer]:
        """Outputs of each layer for the first N_QUERIES queries of the last block."""
        heads = self._after(len(self._rows), N_QUERIES)
        return [Layer(layer, w_o, self.n_cells) for layer, w_o in zip(heads, self._w_o, strict=True)]

    @functools.cached_property
    def _norms(self) -> Arrays:
        """norm1(V W_O) of the cells before the last block."""
        return [
            [wo_norms(np.asarray(head.values)[: self.n_cells], own) for head, own in zip(heads, w_o, strict=True)]
            for heads, w_o in zip(self._cells, self._w_o, strict=True)
        ]

    def _accumulated(self, base: Policy) -> Arrays:
        """Return the scores that cells carry from the compaction of each block to the last one, which chooses."""
        if base not in self._sums:
            sums: Arrays = [[np.empty(0) for _ in heads] for heads in self._cells]
            for n_blocks in range(1, len(self._rows) - 1):
                heads = _each(_carrying, self._after(n_blocks), sums)
                sums = [[base.accumulate(head) for head in layer] for layer in heads]
            self._sums[base] = sums
        return self._sums[base]

    def _after(self, n_blocks: int, n_rows: int | None = None) -> Heads:
        """The heads after some blocks, with the first queries of the last one; None = all of them."""
        n = n_blocks * self.options.block
        found = []
        for heads, (queries, positions, scale) in zip(self._cells, self._rows[n_blocks - 1], strict=True):
            groups = queries.reshape(len(heads), -1, *queries.shape[1:])
            found.append(
                [
                    replace(
                        head,
                        keys=head.keys[:n],
                        values=np.asarray(head.values)[:n],
                        positions=head.positions[:n],
                        queries=group[:, :n_rows],
                        query_positions=positions[:n_rows],
                        accumulated=np.zeros(n),
                        scale=scale,
                    )
                    for head, group in zip(heads, groups, strict=True)
                ]
            )
        return found


def _each(change: Callable[[Head, npt.NDArray[np.floating]], Head], heads: Heads, arrays: Arrays) -> Heads:
    """Return the heads, each changed with its own array."""
    return [
        [change(head, array) for head, array in zip(layer, own, strict=True)]
        for layer, own in zip(heads, arrays, strict=True)
    ]


def _carrying(head: Head, sums: npt.NDArray[np.floating]) -> Head:
    """Return a head whose cells carry the scores of earlier scorings; new cells carry 0."""
    return replace(head, accumulated=np.pad(sums, (0, len(head.positions) - len(sums))))
