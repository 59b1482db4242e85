"""Selection of the cells of a head that are kept, as reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgekv.errors import BudgetError, NativeError

from .types import Indices, Positions, Scores


@dataclass(frozen=True, slots=True)
class Protection:
    """Cells that are kept with any score: positions below `n_sink`, the newest `recent` cells, pinned ranges.

    Pinned ranges are half-open [p0, p1).
    """

    n_sink: int = 0
    recent: int = 0
    pinned: tuple[tuple[int, int], ...] = ()

    def mask(self, positions: Positions) -> np.ndarray:
        """positions (n,) -> (n,) bool."""
        newest = np.zeros(len(positions), dtype=bool)
        newest[np.argsort(positions, kind="stable")[max(0, len(positions) - self.recent) :]] = self.recent > 0
        in_range = [(positions >= p0) & (positions < p1) for p0, p1 in self.pinned]
        return np.asarray(np.logical_or.reduce([positions < self.n_sink, newest, *in_range]))


def cells_to_keep(scores: Scores, positions: Positions, budget: int, protection: Protection) -> Indices:
    """Keep the protected cells, then those with the best scores up to `budget`; of equal scores the later position.

    scores (n,), positions (n,) -> kept indices, ascending by position.
    Raises BudgetError when the protected cells alone exceed the budget, NativeError for a score that is not finite.
    """
    stays = checked_protection(scores, positions, budget, protection)
    rank = np.lexsort((positions, scores, stays))  # ascending: the last `budget` stay
    kept = rank[max(0, len(scores) - budget) :]
    return by_position(kept, positions)


def checked_protection(scores: Scores, positions: Positions, budget: int, protection: Protection) -> np.ndarray:
    """Check scores and budget, and return the protected cells, (n,) bool."""
    check_finite(scores, positions)
    stays = protection.mask(positions)
    if len(scores) > budget:
        check_room(int(stays.sum()), budget)
    return stays


def check_finite(scores: Scores, positions: Positions) -> None:
    """Raise NativeError for a score that is not finite: scores (n,), positions (n,)."""
    if not np.isfinite(scores).all():
        worst = positions[np.argmin(np.isfinite(scores))]
        raise NativeError(f"the score of position {worst} is not finite; the keys or values hold NaN or infinity")


def check_room(n_protected: int, budget: int) -> None:
    """Raise BudgetError if the protected cells alone exceed the budget."""
    if n_protected > budget:
        raise BudgetError(
            f"{n_protected} protected cells exceed the budget of {budget}; raise the budget or protect fewer"
        )


def by_position(cells: Indices, positions: Positions) -> Indices:
    """Return cells, ascending by position."""
    return cells[np.argsort(positions[cells], kind="stable")]
