"""The scores by which archived tokens are recalled, as reference."""

from __future__ import annotations

import numpy as np

from .attention import attention
from .head import Head
from .types import Scores

N_HALVINGS = 6  # beyond so many, a hit after a token counts nothing, so that a scan keeps few weights


def recall_scores(head: Head, before: int, after: int) -> Scores:
    """Return what the neighbourhood of each archived token gets of a probe's attention, (n,) float64.

        a[j]     = max over query heads h of the group and rows w of A[h, w, j]
        score[c] = sum over j <= c of a[j] 2^(-(c - j) / before)
                   + sum over c < j <= c + 6 after of a[j] 2^(-(j - c) / after)

    head: all archived tokens of a KV head, ascending by position without gaps, and the rows of the probe. A is the
        softmax over all of them. If keys were turned, these are the keys as they are at RoPE position 0.
    """
    weights = attention(head).max(axis=(0, 1))
    cells = np.arange(len(weights))
    distances = cells[:, None] - cells
    faded = np.exp2(-np.abs(distances) / np.where(distances < 0, after, before))
    return np.asarray(np.where(distances < -N_HALVINGS * after, 0.0, faded) @ weights)
