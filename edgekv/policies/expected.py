"""Attention that queries of tokens to come are expected to pay (Expected Attention, arXiv:2510.00636)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .attention import weights_with_sinks
from .base import Pooled, option
from .head import Head, largest_of_parts
from .types import Scores

COVARIANCE = 1  # enum edgekv_expected_flag


@dataclass(frozen=True)
class Expected(Pooled):
    """Keep the cells that queries of tokens to come are expected to attend to.

    score(c) = pool(mean_h softmax_c(m + v / 2)),  m and v the mean and the variance over w of s * q[h, w] . K[c]

    For a query that is normally distributed as the newest `window` rows are, exp(m + v / 2) is what exp(s q . K) is on
    average: v is s^2 K Sigma K of the covariance Sigma. q[h, w] is a row as it would be at a position to come: turned
    back by RoPE, and then by the mean of RoPE over the next `future` positions.

    The paper takes the queries of the whole text; here those of a window, which is stored anyway. It weighs a score
    with the norm of the value: `expected+critical(alpha=0, epsilon=0)` does so with norm1(V W_O). A softcap has no
    place in the formula.

    On plain arrays `queries` are those turned rows.
    """

    name = "expected"
    paper = "Expected Attention, arXiv:2510.00636"
    summary = "keep what queries of tokens to come are expected to attend to"
    native_base = 9
    reads = frozenset({"queries"})
    looks_ahead: ClassVar[bool] = True

    window: int = option(128, "newest tokens whose queries are what is expected", minimum=1, maximum=4096, alias="W")
    future: int = option(512, "positions to come over which RoPE is averaged", minimum=1, maximum=1 << 20)
    covariance: bool = option(True, "expect by mean and covariance of the queries; off = by their mean alone")

    @largest_of_parts
    @np.errstate(invalid="ignore", over="ignore")
    def score(self, head: Head) -> Scores:
        queries, _ = head.newest_rows(self.window).rows()
        logits = head.attention_scale * queries.astype(np.float64) @ head.keys.astype(np.float64).T  # (G, W, n)
        logits[~np.isfinite(logits)] = np.nan
        expected = logits.mean(axis=1)
        if self.covariance:
            expected += logits.var(axis=1) / 2
        return self.pooled(weights_with_sinks(expected[:, None], head).mean(axis=(0, 1)), head.positions)

    def n_rows(self, block: int) -> int:
        return self.window

    def native_fields(self) -> dict[str, Any]:
        flags = COVARIANCE if self.covariance else 0
        return super().native_fields() | {"rows": self.window, "n_ahead": self.future, "flags": flags}
