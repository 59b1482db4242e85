"""Heavy hitters: the cells that have gathered the most attention (H2O, arXiv:2306.14048)."""

from __future__ import annotations

from dataclasses import dataclass

from .attention import attention
from .base import Policy
from .head import Head, largest_of_parts
from .types import Scores


@dataclass(frozen=True)
class H2O(Policy):
    """Keep the cells that have gathered the most attention since they were read.

    score(c) = acc[c] + sum_w mean_h A[h, w, c]

    The sum is over all rows fed since the last scoring; acc is the score that the cell had then. The mean is over the
    query heads of the group (KeyDiff A.1, F.2).
    """

    name = "h2o"
    paper = "H2O, arXiv:2306.14048"
    summary = "keep the cells that have gathered the most attention so far"
    native_base = 4
    reads = frozenset({"queries"})
    accumulates = True
    carries = True

    def score(self, head: Head) -> Scores:
        return self.accumulate(head)

    @largest_of_parts
    def accumulate(self, head: Head) -> Scores:
        gathered: Scores = attention(head).mean(axis=0).sum(axis=0)
        return gathered if head.accumulated is None else gathered + head.accumulated

    def n_rows(self, block: int) -> int:
        return block
