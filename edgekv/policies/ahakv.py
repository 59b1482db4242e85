"""Recent, sharpened attention with a prior from the values (AhaKV, arXiv:2506.03762)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekv.errors import ConfigError

from .attention import attention
from .base import Policy, option, required_budget
from .head import Head, largest_of_parts
from .pooling import pool_scores
from .types import Floats, Scores


@dataclass(frozen=True)
class AhaKV(Policy):
    """Keep what the newest `r` tokens attend to, with attention sharpened as the text grows, and prefer large values.

    score(c)  = gbar[c] * (acc[c] + sum over the newest r rows of mean_h SG[h, w, c])      (eq. 5, 15)
    SG        = softmax_c(lambda_i * Q[i] . K[c])                                           (eq. 9)
    lambda_i  = sqrt(2 ln(i / k) / d),  i tokens seen at row i, k the budget                (eq. 12)
    gbar[c]   = g[c] / max(g),  g = avgpool(norm2(V)^2)                                     (eq. 13, 14)

    lambda multiplies the raw product, as in the paper's derivation; Algorithm 1 writes it over scaled logits. For i
    near k it would flatten attention instead of sharpening it. So it is never less than the model's own scale, unless
    `floor=False`; then it is 0 for i <= k. k counts all cells of the budget, protected ones too.

    acc is 0 while a prompt is read. During generation the rows fed since the last scoring, at most r, are added to it
    (Algorithm 1, line 27). gbar weighs every score (eq. 15); Algorithm 1 applies it to the prompt's scores only.

    The paper's budget is r newest tokens and k selected ones (Algorithm 1, lines 12 and 30). `protect_recent=True`
    keeps the r newest whatever their score. By default they compete, beside what the runtime protects.

    The three options before it are the ablations of Table 2. Without `recent_accumulation` acc gathers all rows, as in
    H2O. Without `step_gain` the model's own scale is used. Without `value_prior` gbar is 1.
    """

    name = "ahakv"
    paper = "AhaKV, arXiv:2506.03762"
    summary = "keep what the newest tokens attend to, sharpened as the text grows, and prefer large values"
    native_base = 7
    accumulates = True

    r: int = option(32, "newest tokens whose queries score", minimum=1, maximum=4096)
    kernel: int = option(
        7, "cells under the kernel that pools the prior", minimum=1, maximum=1023, odd=True, alias="pool"
    )
    floor: bool = option(True, "never sharpen less than the model's own scale")
    recent_accumulation: bool = option(True, "sum over the newest r rows only", of_paper=True)
    step_gain: bool = option(True, "sharpen as the text grows", of_paper=True)
    value_prior: bool = option(True, "multiply by the pooled square norm of the values")
    protect_recent: bool = option(False, "keep the r newest tokens whatever their score", of_paper=True)

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]
        optional = {"values": self.value_prior, "budget": self.step_gain}
        return frozenset({"queries"} | {name for name, read in optional.items() if read})

    @property
    def carries(self) -> bool:  # type: ignore[override]
        return not self.recent_accumulation

    @np.errstate(invalid="ignore", over="ignore")
    def score(self, head: Head) -> Scores:
        return self.prior(head) * self.accumulate(head)

    @largest_of_parts
    def accumulate(self, head: Head) -> Scores:
        rows = head.newest_rows(self.r) if self.recent_accumulation else head
        gathered: Scores = attention(rows, self.gains(rows)).mean(axis=0).sum(axis=0)
        return gathered if head.accumulated is None else gathered + head.accumulated

    def gains(self, head: Head) -> Floats | None:
        """(W,) lambda of each row; None = the model's own scale."""
        if not self.step_gain:
            return None
        grown = np.maximum(np.log(np.maximum(head.rows_seen, 1.0) / required_budget(head)), 0.0)
        gains = np.sqrt(2.0 * grown / head.keys.shape[1])
        return np.asarray(np.maximum(gains, head.attention_scale) if self.floor else gains)

    def prior(self, head: Head) -> Scores:
        """gbar, (n,)."""
        if not self.value_prior:
            return np.ones(len(head.positions))
        if head.values is None:
            raise ConfigError("ahakv reads values; give values= (n_head_kv, n, d_v), or value_prior=False")
        squares = np.square(head.values.astype(np.float64)).sum(axis=1)
        pooled = pool_scores(squares, head.positions, self.kernel, "avg")
        most = pooled.max(initial=0.0)
        return np.ones(len(pooled)) if most == 0 else np.asarray(pooled / most)

    def recent(self, budget: int) -> int:
        return self.r if self.protect_recent else 0

    def n_rows(self, block: int) -> int:
        return self.r if self.recent_accumulation else block

    def native_fields(self) -> dict[str, Any]:
        flags = (self.floor, self.recent_accumulation, self.step_gain, self.value_prior)
        return super().native_fields() | {
            "kernel": self.kernel,
            "rows": self.r,
            "flags": sum(1 << bit for bit, on in enumerate(flags) if on),
        }
