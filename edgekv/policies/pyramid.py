"""Budgets that fall from layer to layer (PyramidKV, arXiv:2406.02069)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .apportion import apportion, check_largest
from .base import option
from .selection import check_room
from .wrappers import Division


@dataclass(frozen=True)
class Pyramid(Division):
    """Give the first layers more cells than the last; the wrapped policy scores and chooses.

    budget[l] = P + F + (F - F / beta) * (1 - 2 l / (L - 1)),  F = N - P

    N is the mean budget of a head, P its protected cells, L the number of layers. Beside the protected cells the last
    layer gets F / beta and the first 2 F - F / beta; between them the number falls linearly. In the paper P is the
    observation window alone. Here it is everything protected, so that no layer gets less than that. Budgets are rounded
    to whole numbers whose mean is exactly N. Cells that a layer may not hold go to the others.
    """

    name = "pyramid"
    paper = "PyramidKV, arXiv:2406.02069"
    summary = "give the first layers more cells than the last"
    after = frozenset({"caote", "fastcaote", "critical", "ada"})

    beta: float = option(20.0, "the mean over the last layer's cells, protected ones aside", minimum=1.0)

    def layer_budgets(self, n_layer: int, budget: int, n_protected: int, largest: int | None = None) -> list[int]:
        check_room(n_protected, budget)
        check_largest(largest, budget)
        free = budget - n_protected
        tilt = free - free / self.beta
        last = max(1, n_layer - 1)
        targets = [budget + tilt * (n_layer - 1 - 2 * layer) / last for layer in range(n_layer)]
        total = n_layer * budget
        return apportion(targets, [total if largest is None else largest] * n_layer, total)

    def native_fields(self) -> dict[str, Any]:
        return self.inner.native_fields() | {"pyramid": self.beta}
