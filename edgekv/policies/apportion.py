"""Rounds shares to whole cells; the reference."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from edgekv.errors import ConfigError


def apportion(targets: Sequence[float], caps: Sequence[int], total: int) -> list[int]:
    """Return budgets near the targets, none above its cap, whose sum is `total`: in [sum of floors, sum of caps].

    Each budget is the floor of its target, or its cap if that is lower. The cells left over go one by one to the budget
    that is furthest below its target and has room; of equals, to the first.
    """
    budgets = [min(math.floor(target), cap) for target, cap in zip(targets, caps, strict=True)]
    excess = [(budgets[i] - targets[i], i) for i in range(len(budgets)) if budgets[i] < caps[i]]
    heapq.heapify(excess)
    for _ in range(total - sum(budgets)):
        _, i = heapq.heappop(excess)
        budgets[i] += 1
        if budgets[i] < caps[i]:
            heapq.heappush(excess, (budgets[i] - targets[i], i))
    return budgets


def check_largest(largest: int | None, budget: int) -> None:
    """Raise ConfigError if no head can have as much as the mean."""
    if largest is not None and largest < budget:
        raise ConfigError(f"largest={largest} is less than the budget of {budget}; raise it or lower the budget")
