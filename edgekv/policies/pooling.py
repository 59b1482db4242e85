"""Pooling of scores over neighbouring cells, as reference.

A fact is a run of neighbouring tokens, and half a fact is useless. With pooled scores a run is kept or evicted as a
whole. Neighbours are neighbours by position, in any cells.
"""

from __future__ import annotations

import numpy as np

from .types import Positions, Scores


def pool_scores(scores: Scores, positions: Positions, kernel: int, how: str) -> Scores:
    """Return the average ("avg") or maximum ("max") over `kernel` cells around each, in position order; same length.

    scores (n,), positions (n,) -> (n,). At the ends only the cells under the kernel count.
    """
    if kernel == 1 or len(scores) == 0:
        return scores
    order = np.argsort(positions, kind="stable")
    line = np.where(np.isfinite(scores), scores, np.inf)[order]  # A maximum would hide NaN from the selection.
    padded = np.pad(line, kernel // 2, constant_values=np.nan)  # there is no cell beyond the ends
    combine = np.nanmean if how == "avg" else np.nanmax
    pooled = np.empty_like(line)
    pooled[order] = combine(np.lib.stride_tricks.sliding_window_view(padded, kernel), axis=1)
    return pooled
