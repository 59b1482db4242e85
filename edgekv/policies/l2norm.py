"""Keys of small norm draw attention (Devoto et al., arXiv:2406.11430)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .base import Pooled
from .head import Head
from .types import Scores


@dataclass(frozen=True)
class L2Norm(Pooled):
    """Keep the keys of smallest norm.

    score(c) = -norm2(K[c])
    """

    name = "l2norm"
    paper = "Devoto et al., arXiv:2406.11430"
    summary = "keep the keys of smallest norm"
    native_base = 3
    weights = False

    def score(self, head: Head) -> Scores:
        return self.pooled(-np.linalg.norm(head.keys.astype(np.float64), axis=1), head.positions)
