"""Selection in two stages, the second by the output's perturbation (CriticalKV, arXiv:2502.03805)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekv.errors import ConfigError

from .base import option, required_budget
from .head import Head
from .selection import Protection, by_position, checked_protection
from .types import Floats, Indices, Scores
from .wrappers import Wrapper


@dataclass(frozen=True)
class Critical(Wrapper):
    """Fill half the budget by the base score A, and the rest by how far each cell can move the layer's output.

    stage 1: floor(alpha * b) cells by A; stage 2: the other cells by (A + epsilon) * norm1(V W_O)     (Algorithm 1)

    b is the budget without the protected cells. Where several query heads share a KV head, the norm is their mean. It
    depends on the cell alone and is computed once. alpha is 0.5, as in the paper's text and all its experiments; the
    algorithm's box says 0.25. `score` returns the scores of stage 2. Scores that may be negative (`keydiff`, `l2norm`)
    become weights by a softmax over the head's cells. Stage 2 lowers an upper bound of how far the output moves
    (Theorem 3.5); the output itself may still move further.

    epsilon is 1e-4, as in the algorithm. A long text's mean weight, 1/n of n cells, is as small, and then stage 2 ranks
    almost by the norm alone.
    """

    name = "critical"
    paper = "CriticalKV, arXiv:2502.03805"
    summary = "fill a share of the budget by the score, the rest by score times norm1(V W_O)"
    wrapper_reads = frozenset({"wo_norm"})
    after = frozenset({"caote", "fastcaote"})

    alpha: float = option(0.5, "share of the budget that the score alone fills", minimum=0.0, maximum=1.0)
    epsilon: float = option(1e-4, "what stage 2 adds to every score", minimum=0.0, maximum=1.0)

    def score(self, head: Head) -> Scores:
        return self._second(self.weighed(head), head)

    @np.errstate(invalid="ignore", over="ignore")
    def _second(self, weights: Scores, head: Head) -> Scores:
        if head.wo_norm is None:
            raise ConfigError("critical reads V and W_O; give values= and w_o= (n_head, d_v, n_embd)")
        return np.asarray((weights + self.epsilon) * head.wo_norm)

    def keep(self, head: Head, protection: Protection, budget: int | None = None) -> Indices:
        budget = required_budget(head) if budget is None else budget
        first = self.weighed(head)
        second = self._second(first, head)
        stays = checked_protection(first, head.positions, budget, protection)
        checked_protection(second, head.positions, budget, protection)
        n_first = math.floor(self.alpha * (budget - int(stays.sum())))
        rank = np.lexsort((head.positions, first, stays))[::-1]
        stays[rank[: stays.sum() + n_first]] = True
        kept = np.lexsort((head.positions, second, stays))[max(0, len(first) - budget) :]
        return by_position(kept, head.positions)

    def native_fields(self) -> dict[str, Any]:
        return super().native_fields() | {"critical": 1, "alpha": self.alpha, "epsilon": self.epsilon}


@np.errstate(invalid="ignore", over="ignore")
def wo_norms(values: Floats, w_o: Floats) -> Scores:
    """Mean over the query heads of norm1(V W_O[h]): values (n, d_v), w_o (G, d_v, n_embd) -> (n,)."""
    return np.asarray(np.abs(values.astype(np.float64) @ w_o.astype(np.float64)).sum(axis=2).mean(axis=0))
