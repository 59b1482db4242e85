"""Attention of the newest token (TOVA, arXiv:2401.06104)."""

from __future__ import annotations

from dataclasses import dataclass

from .attention import window_attention
from .base import Policy
from .head import Head, largest_of_parts
from .types import Scores


@dataclass(frozen=True)
class Tova(Policy):
    """Keep the cells that the newest token attends to.

    score(c) = mean_h A[h, last, c]        (the mean over the query heads of the group: KeyDiff A.1 and F.2)
    """

    name = "tova"
    paper = "TOVA, arXiv:2401.06104"
    summary = "keep the cells that the newest token attends to"
    native_base = 5
    reads = frozenset({"queries"})

    @largest_of_parts
    def score(self, head: Head) -> Scores:
        return window_attention(head.newest_rows(1))

    def n_rows(self, block: int) -> int:
        return 1
