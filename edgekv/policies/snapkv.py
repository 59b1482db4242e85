"""Pooled attention of an observation window (SnapKV, arXiv:2404.14469)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .attention import attention
from .base import AGGREGATES, POOLS, Policy, option
from .head import Head, largest_of_parts
from .pooling import pool_scores
from .types import Scores


@dataclass(frozen=True)
class SnapKV(Policy):
    """Keep the cells that the newest `window` tokens attend to, and their neighbours.

    score(c) = pool(a_win)[c],  a_win[c] = mean_h mean_w A[h, w, c]

    The window's own cells are protected. They take no part in pooling: the newest tokens attend to themselves, and
    pooling would pass that attention to their neighbours. Pooling takes the mean, as in KeyDiff F.2; with `pool=max` it
    takes the maximum, as in Ada-KV and CriticalKV. With `pool_rows=True` every row is pooled before the mean is taken,
    as Ada-KV's Algorithm 2 writes it; its released code and CriticalKV take the mean first.

    With `aggregate=max` a_win is the largest weight over query heads and rows. What one row needs then counts however
    little the others do: the aggregation of DefensiveKV, alone.
    """

    name = "snapkv"
    paper = "SnapKV, arXiv:2404.14469"
    summary = "keep the cells that the newest tokens attend to, and their neighbours"
    native_base = 6
    reads = frozenset({"queries"})

    window: int = option(32, "newest tokens whose queries score", minimum=1, maximum=4096, alias="W")
    kernel: int = option(7, "cells under the pooling kernel; 1 = no pooling", minimum=1, maximum=1023, odd=True)
    pool: str = option("avg", "how scores are pooled", choices=POOLS)
    pool_rows: bool = option(False, "pool every row before they are aggregated", of_paper=True)
    aggregate: str = option("mean", "how rows and query heads make one score", choices=AGGREGATES)

    @largest_of_parts
    def score(self, head: Head) -> Scores:
        head = head.newest_rows(self.window)
        before = head.positions < head.rows()[1].min()

        def pooled(scores: Scores) -> Scores:
            scores[before] = pool_scores(scores[before], head.positions[before], self.kernel, self.pool)
            return scores

        rows = np.concatenate(attention(head))  # (G W, n)
        if self.pool_rows:
            rows = np.stack([pooled(row) for row in rows])
        scores = rows.max(axis=0) if self.aggregate == "max" else rows.mean(axis=0)
        return scores if self.pool_rows else pooled(scores)

    def recent(self, budget: int) -> int:
        return self.window

    def n_rows(self, block: int) -> int:
        return self.window

    def native_fields(self) -> dict[str, Any]:
        pooling = {"kernel": self.kernel, "pool": POOLS.index(self.pool)}
        gathering = {"pool_rows": int(self.pool_rows), "aggregate": AGGREGATES.index(self.aggregate)}
        return super().native_fields() | pooling | gathering | {"rows": self.window}
