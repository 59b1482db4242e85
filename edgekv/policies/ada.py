"""Division of cells over heads by their scores (Ada-KV, arXiv:2407.11550)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgekv.errors import PolicyError

from .ahakv import AhaKV
from .apportion import apportion, check_largest
from .base import Policy, common_budget, option
from .h2o import H2O
from .head import Head
from .keydiff import KeyDiff
from .l2norm import L2Norm
from .selection import Protection, check_finite, checked_protection
from .snapkv import SnapKV
from .tova import Tova
from .types import Indices, Positions, Scores
from .wrappers import Wrapper, weights_of

BASES: tuple[type[Policy], ...] = (H2O, Tova, SnapKV, AhaKV, KeyDiff, L2Norm)


@dataclass(frozen=True)
class Ada(Wrapper):
    """Let the heads of a layer share its cells: a head that needs few leaves more to the others.

    f[g]      = protected cells of head g, and its part of the best T of all other cells of all heads     (Algorithm 1)
    budget[g] = (1 - safeguard) * f[g] + safeguard * N                                            (Algorithm 2, line 8)

    N is the budget, and T is N cells for each head, without the protected ones. Of equal scores the later position
    counts first, then the first head. Budgets are rounded to whole numbers whose sum is N for each head. No head gets
    more than it holds or less than its protected cells. With safeguard=0, no other split of as many cells gives a
    smaller upper bound of how far the output moves (Theorem 3.3).

    The paper prints line 8 with the two factors the other way round. But it says that the safeguard keeps budgets from
    becoming small (section 3.4), and that 0.2 is its default. Heads are KV heads, as in section 3.5.

    Heads are compared by the weights of the base, not of other wrappers. These are attention, or the softmax over the
    head's cells if scores may be negative (`keydiff`, `l2norm`). Within a head, the policy under ada chooses.
    """

    name = "ada"
    paper = "Ada-KV, arXiv:2407.11550"
    summary = "let heads share their cells by their scores"
    after = frozenset({"caote", "fastcaote", "critical", "pyramid"})

    safeguard: float = option(0.2, "share of every budget that is split evenly", minimum=0.0, maximum=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self.base) not in BASES:
            possible = ", ".join(base.name for base in BASES)
            raise PolicyError(f"ada compares the scores of heads, which {self.base.name} cannot; possible: {possible}")

    @property
    def shares(self) -> bool:  # type: ignore[override]
        return True

    def score(self, head: Head) -> Scores:
        return self.weighed(head)

    def keep(self, head: Head, protection: Protection, budget: int | None = None) -> Indices:
        return self.inner.keep(head, protection, budget)

    def head_budgets(self, heads: Sequence[Head], protection: Protection, largest: int | None = None) -> list[int]:
        budget = common_budget(heads)
        weights = [weights_of(self.base, head) for head in heads]
        positions = [head.positions for head in heads]
        return allot(weights, positions, budget, protection, safeguard=self.safeguard, largest=largest)

    def native_fields(self) -> dict[str, Any]:
        return super().native_fields() | {"spread": 1, "safeguard": self.safeguard}


def allot(
    scores: Sequence[Scores],
    positions: Sequence[Positions],
    budget: int,
    protection: Protection,
    *,
    safeguard: float,
    largest: int | None = None,
) -> list[int]:
    """Return the cells of each head, `budget` on average: scores and positions (n,) of every head, n their own.

    No head gets more than it holds or than `largest` (None = no limit), or less than its protected cells.
    Raises BudgetError if the protected cells of a head exceed the budget, ConfigError if the budget exceeds
    `largest`, NativeError for a score that is not finite.
    """
    check_largest(largest, budget)
    for head_scores, head_positions in zip(scores, positions, strict=True):
        check_finite(head_scores, head_positions)
    held = [len(head_scores) for head_scores in scores]
    caps = [n if largest is None else min(n, largest) for n in held]
    total = budget * len(held)
    if caps == held and sum(held) <= total:
        return held
    stays = [checked_protection(s, p, budget, protection) for s, p in zip(scores, positions, strict=True)]
    n_best = total - sum(int(mask.sum()) for mask in stays)

    # all cells in one row, worst first
    head = np.repeat(np.arange(len(held)), held)
    rank = np.lexsort((-head, np.concatenate(positions), np.concatenate(scores)))
    rank = rank[~np.concatenate(stays)[rank]]
    best = rank[max(0, len(rank) - n_best) :]
    counts = np.bincount(head[best], minlength=len(held)) + [mask.sum() for mask in stays]

    targets = [count + safeguard * (budget - count) for count in counts.tolist()]
    return apportion(targets, caps, min(total, sum(caps)))
