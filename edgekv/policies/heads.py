"""Division of cells over heads by a table of needs that was measured once (KVzip, arXiv:2505.23416)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekv.errors import ConfigError

from .apportion import apportion, check_largest
from .base import SPREADS, common_budget, option
from .head import Head
from .selection import Protection, check_room
from .wrappers import Division

LARGEST_EXPONENT = 127  # the most of a share's exponent, so that rounding it does not make it infinite


@dataclass(frozen=True)
class Heads(Division):
    """Divide the cells over all heads of the model by a table; the wrapped policy scores and chooses.

    budget[g] = x share[g], but at least max(P, safeguard N), and at most what the head holds and may hold

    N is the mean budget of a head, P its protected cells, and x is such that the budgets sum up to all cells. The table
    is measured once for a model (`edgekv heads`): the cells that each head keeps of some texts, if the heads of the
    whole model share them under `replay`. A few heads copy the answer out of the text, and they are the same in
    every text. KVzip, too, has scores of heads that hold for all texts. There such a score decides whether a head keeps
    all cells or few.
    """

    name = "heads"
    paper = "KVzip, arXiv:2505.23416"
    summary = "divide the cells over heads by a table that was measured once for the model"
    after = frozenset({"caote", "fastcaote", "critical"})
    spread = "given"

    safeguard: float = option(0.3, "share of the mean budget that every head keeps", minimum=0.0, maximum=1.0)

    def least(self, heads: Sequence[Head], protection: Protection) -> int:
        """Return the cells that every head keeps, if it holds as many."""
        n_protected = (int(protection.mask(head.positions).sum()) for head in heads)
        return max(int(self.safeguard * common_budget(heads)), *n_protected)

    def head_budgets(self, heads: Sequence[Head], protection: Protection, largest: int | None = None) -> list[int]:
        shares, held = [head.share for head in heads], [len(head.positions) for head in heads]
        return divide(shares, held, self.least(heads, protection), common_budget(heads), largest)

    def native_fields(self) -> dict[str, Any]:
        return self.inner.native_fields() | {"spread": SPREADS.index("given"), "safeguard": self.safeguard}


def divide(shares: Sequence[float], held: Sequence[int], least: int, budget: int, largest: int | None) -> list[int]:
    """Return the cells of heads that hold `held`, in proportion to their shares, `budget` on average.

    No head gets more than it holds or than `largest` (None = no limit), or less than `least` if it holds as many.
    Raises BudgetError if `least` exceeds the budget, ConfigError if the budget exceeds `largest`, and for a share
    that is no number from 0 on.
    """
    check_room(least, budget)
    check_largest(largest, budget)
    parts = native_shares(shares).astype(np.float64)
    caps = np.asarray(held if largest is None else np.minimum(held, largest))
    floors = np.minimum(least, caps)
    total = min(budget * len(caps), int(caps.sum()))
    given = parts > 0
    low, high = 0.0, float((caps[given] / parts[given]).max(initial=0.0))  # cells for a share of 1
    if np.clip(high * parts, floors, caps).sum() > total:
        while (middle := _between(low, high)) != low:
            if np.clip(middle * parts, floors, caps).sum() > total:
                high = middle
            else:
                low = middle
        high = low
    return apportion(np.clip(high * parts, floors, caps).tolist(), caps.tolist(), total)


def native_shares(shares: Sequence[float]) -> npt.NDArray[np.float32]:
    """Return shares as the library takes them: in the same proportion, scaled to its range.

    A power of 2 makes the largest as large as float32 can hold, so that the smallest are not lost beside it. Raises
    ConfigError for a share that is no number from 0 on.
    """
    parts = np.asarray(shares, dtype=np.float64)
    if not (np.isfinite(parts) & (parts >= 0)).all():
        raise ConfigError("a share of a head is no number from 0 on")
    exponent = np.frexp(parts.max(initial=0.0))[1]
    scaled: npt.NDArray[np.float32] = np.ldexp(parts, LARGEST_EXPONENT - exponent).astype(np.float32)
    return scaled


def _between(low: float, high: float) -> float:
    """Return the number halfway between two numbers from 0 on, counted in steps of doubles."""
    bits = np.array([low, high]).view(np.int64)
    bits[0] += (bits[1] - bits[0]) // 2
    return float(bits.view(np.float64)[0])
