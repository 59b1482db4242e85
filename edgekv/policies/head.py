"""A KV head before eviction: the arrays that a policy may read."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from edgekv.errors import ConfigError

from .types import Floats, Indices, Keys, Positions, Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The n cells of one (layer, KV head) and the queries that score them; cells may lie in any order.

    keys: (n, d) post-RoPE; positions: (n,) true positions. The rest is given if a policy reads it:
    values: (n, d_v)
    queries: (G, W, d) post-RoPE: the G query heads that share the KV head, the W rows fed last
    query_positions: (W,) ascending
    part_ends: (P,) how many rows come before the end of each part of a probe, ascending; none = they are one part
    accumulated: (n,) score that earlier scorings left with each cell
    wo_norm: (n,) the mean over the G query heads of norm1(V W_O[h])
    budget: in cells; tokens_seen: number when the last row was fed, None = its position + 1
    scale: of Q K^T, None = 1/sqrt(d); softcap: c of the model's attention, c tanh(x/c), 0 = none
    sinks: (G,) logits of the query heads' learnt sinks, which take attention and have no value; None = none
    """

    keys: Keys
    positions: Positions
    values: Floats | None = None
    queries: Floats | None = None
    query_positions: Positions | None = None
    part_ends: tuple[int, ...] = ()
    accumulated: Scores | None = None
    wo_norm: Scores | None = None
    budget: int | None = None
    tokens_seen: int | None = None
    scale: float | None = None
    softcap: float = 0.0
    sinks: Floats | None = None
    layer: int = 0
    head: int = 0

    @property
    def order(self) -> Indices:
        """Cells ascending by position."""
        return np.argsort(self.positions, kind="stable")

    @property
    def attention_scale(self) -> float:
        return 1.0 / np.sqrt(self.keys.shape[1]) if self.scale is None else self.scale

    @property
    def rows_seen(self) -> Floats:
        """(W,) tokens seen when each row was fed, itself included."""
        _, positions = self.rows()
        last = int(positions[-1]) + 1 if self.tokens_seen is None else self.tokens_seen
        return np.asarray(last - (positions[-1] - positions), dtype=np.float64)

    def rows(self) -> tuple[Floats, Positions]:
        """Queries (G, W, d) and their positions (W,)."""
        if self.queries is None or self.query_positions is None:
            raise ConfigError("this policy reads queries; give queries= (n_head, W, d) and query_positions= (W,)")
        return self.queries, self.query_positions

    def newest_rows(self, n: int) -> Head:
        """Return the head with only its newest n rows of queries."""
        queries, positions = self.rows()
        return replace(self, queries=queries[:, -n:], query_positions=positions[-n:])

    def by_part(self) -> Iterator[Head]:
        """Yield the head with the rows of queries of each part."""
        if len(self.part_ends) < 2:
            yield self
            return
        queries, positions = self.rows()
        for first, end in itertools.pairwise((0, *self.part_ends)):
            yield replace(self, queries=queries[:, first:end], query_positions=positions[first:end], part_ends=())


def largest_of_parts(formula: Callable[[Any, Head], Scores]) -> Callable[[Any, Head], Scores]:
    """Apply a policy's formula to each part of the rows of a head; a cell gets its largest score.

    So cells that any part needs are kept. The mean over all rows would give little weight to cells of one part alone.
    """

    @functools.wraps(formula)
    def score(policy: Any, head: Head) -> Scores:
        return np.asarray(np.maximum.reduce([formula(policy, part) for part in head.by_part()]))

    return score
