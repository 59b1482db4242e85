"""KeyDiff: keep the keys that differ most from the rest (arXiv:2504.15364)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekv.errors import PolicyError

from .base import Pooled, option
from .head import Head
from .types import Keys, Scores

EPSILON = 1e-6  # floor of the cosine's denominator (appendix B.1)
ANCHORS = ("unit-mean", "mean", "median", "pairwise")
METRICS = ("cosine", "dot", "euclidean")
BEFORE_ROPE = 1  # enum edgekv_keydiff_flag


@dataclass(frozen=True)
class KeyDiff(Pooled):
    """Keep the keys that are least similar to an anchor, made of all cached keys.

    score(c) = -cos(mu, K[c]),  mu = mean_i K[i] / norm2(K[i])        (eq. 8)

    Anchors (Table 14): `unit-mean` as above; `mean` of the keys as they are; element-wise `median`; `pairwise`,
    the mean cosine with every key (eq. 7). Metrics (Table 15): `cosine`, `dot` product, `euclidean` distance.
    `window` is the share of the budget that the newest tokens always have (Table 13).

    With `rope=False` the keys are those before RoPE, so equal tokens at different positions are alike; the paper has
    them as they are stored, turned. A cache turns every key back from the position that it is turned by. On plain
    arrays `keys` are given as they were before RoPE.
    """

    name = "keydiff"
    paper = "KeyDiff, arXiv:2504.15364"
    summary = "keep the keys least similar to the mean of all"
    native_base = 2
    weights = False

    anchor: str = option("unit-mean", "what keys are compared with", choices=ANCHORS, of_paper=True)
    metric: str = option("cosine", "how keys are compared", choices=METRICS, of_paper=True)
    window: float = option(0.0, "share of the budget kept for the newest tokens", minimum=0.0, maximum=1.0)
    rope: bool = option(True, "compare keys as they are stored; off = as they were before RoPE")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anchor == "pairwise" and self.metric != "cosine":
            raise PolicyError(f"keydiff(anchor=pairwise) goes with metric=cosine, not with metric={self.metric}")

    @property
    def before_rope(self) -> bool:  # type: ignore[override]
        return not self.rope

    def recent(self, budget: int) -> int:
        return round(self.window * budget)

    @np.errstate(invalid="ignore")  # a key that is not finite gives such a score, which the selection refuses
    def score(self, head: Head) -> Scores:
        if len(head.keys) == 0:
            return np.empty(0)
        keys = head.keys.astype(np.float64)
        norms = np.linalg.norm(keys, axis=1)
        anchor = self._anchor(keys, norms)
        if self.metric == "euclidean":
            similarity = -np.linalg.norm(keys - anchor, axis=1)
        elif self.metric == "dot":
            similarity = keys @ anchor
        else:
            # eq. 7, the mean over j of cos(K[i], K[j]), is the unit key times the mean of unit keys
            anchor_norm = 1.0 if self.anchor == "pairwise" else np.linalg.norm(anchor)
            similarity = keys @ anchor / np.maximum(norms * anchor_norm, EPSILON)
        return self.pooled(-similarity, head.positions)

    def _anchor(self, keys: Keys, norms: Scores) -> np.ndarray:
        """(n, d) keys -> (d,) anchor."""
        if self.anchor == "mean":
            return np.asarray(keys.mean(axis=0))
        if self.anchor == "median":
            return np.asarray(np.median(keys, axis=0))
        unit = np.divide(keys, norms[:, None], out=np.zeros_like(keys), where=norms[:, None] > 0)
        return np.asarray(unit.mean(axis=0))

    def native_fields(self) -> dict[str, Any]:
        names = {"anchor": ANCHORS.index(self.anchor), "metric": METRICS.index(self.metric)}
        return super().native_fields() | names | {"flags": 0 if self.rope else BEFORE_ROPE}
