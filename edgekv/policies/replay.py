"""Attention of a block that is read once more, as if the model repeated it (KVzip, arXiv:2505.23416)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from .base import AGGREGATES, POOLS, Policy, option
from .head import Head
from .snapkv import SnapKV
from .types import Scores

MAX_ROWS = 4096  # rows of the longest block


@dataclass(frozen=True)
class Replay(Policy):
    """Keep the cells that are needed to repeat the text.

    score(c) = max(score(c) before, pool(a)[c]),  a[c] = max_h max_w A[h, w, c] over all rows of the replay

    After a block an instruction to repeat it and the block's own tokens are fed as a probe. The probe attends to the
    cells that the model would copy from, for any question. A score never fades. So a cell keeps that of its own
    block's replay, and later replays may only raise it.

    The paper scores each cell once, by the replay of its own part alone, after the whole text was read. Here blocks are
    replayed as they are read, by what is left of the text before them, and the softmax is over all cells. The paper
    compares the scores of all heads of the model, which is `replay+ada(scope=model, safeguard=0)`.

    On plain arrays `queries` are those of the replay, and `accumulated` the scores before.
    """

    name = "replay"
    paper = "KVzip, arXiv:2505.23416"
    summary = "keep the cells that are needed to repeat the text; every block is read twice"
    native_base = SnapKV.native_base
    reads = frozenset({"queries"})
    accumulates = True
    carries = True
    sees_every_probe = True
    replays = True
    carry: ClassVar[float] = 1.0  # snapkv's kernel

    kernel: int = option(1, "cells under the pooling kernel; 1 = no pooling", minimum=1, maximum=1023, odd=True)
    pool: str = option("avg", "how scores are pooled", choices=POOLS)
    aggregate: str = option("max", "how rows and query heads make one score", choices=AGGREGATES)

    @property
    def _attention(self) -> SnapKV:
        return SnapKV(window=MAX_ROWS, kernel=self.kernel, pool=self.pool, aggregate=self.aggregate, carry=self.carry)

    def score(self, head: Head) -> Scores:
        return self._attention.score(head)

    def accumulate(self, head: Head) -> Scores:
        return self.score(head)

    def n_rows(self, block: int) -> int:
        return block

    def native_fields(self) -> dict[str, Any]:
        return self._attention.native_fields()
