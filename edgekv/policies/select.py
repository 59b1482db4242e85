"""Selection, as reference: which cells of a head stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from edgekv.errors import BudgetError, NativeError

from ._arrays import Cells, Indices, Scores


def protected(positions: Cells, n_sink: int, recent: int, pinned: Sequence[tuple[int, int]]) -> np.ndarray:
    """Cells that stay whatever their score: positions below `n_sink`, the newest `recent` cells, pinned ranges.

    positions (n,) -> (n,) bool; pinned ranges are half-open [p0, p1).
    """
    newest = np.zeros(len(positions), dtype=bool)
    newest[np.argsort(positions, kind="stable")[max(0, len(positions) - recent) :]] = recent > 0
    in_range = [(positions >= p0) & (positions < p1) for p0, p1 in pinned]
    return np.asarray(np.logical_or.reduce([positions < n_sink, newest, *in_range]))


def cells_to_keep(
    scores: Scores,
    positions: Cells,
    budget: int,
    *,
    n_sink: int = 0,
    recent: int = 0,
    pinned: Sequence[tuple[int, int]] = (),
) -> Indices:
    """Protected cells first, then the best scores until `budget` cells stay; ties keep the later position.

    scores (n,), positions (n,) -> kept indices, ascending by position.
    Raises BudgetError when the protected cells alone exceed the budget, NativeError for a score that is not finite.
    """
    if not np.isfinite(scores).all():
        worst = positions[np.argmin(np.isfinite(scores))]
        raise NativeError(f"the score of position {worst} is not finite; the keys hold NaN or infinity")
    stays = protected(positions, n_sink, recent, pinned)
    if len(scores) > budget and stays.sum() > budget:
        raise BudgetError(
            f"{stays.sum()} protected cells exceed the budget of {budget}; raise the budget or protect fewer"
        )
    rank = np.lexsort((positions, scores, stays))  # ascending: the last `budget` stay
    kept = rank[max(0, len(scores) - budget) :]
    return kept[np.argsort(positions[kept], kind="stable")]
