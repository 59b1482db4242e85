"""The scores by which archived tokens are recalled, as reference."""

from __future__ import annotations

import numpy as np

from .attention import attention
from .head import Head
from .types import Scores


def recall_scores(head: Head, before: int, after: int) -> Scores:
    """Return the mean attention of a probe's rows to the neighbourhood of each archived token, (n,) float64.

        a[j]     = max over query heads h of the group and rows w of A[h, w, j]
        score[c] = mean of a[c - before .. c + after], as far as there are tokens

    head: all archived tokens of a KV head, ascending by position without gaps, and the rows of the probe. A is the
        softmax over all of them. If keys were turned, these are the keys as they are at RoPE position 0.
    """
    weights = attention(head).max(axis=(0, 1))
    sums = np.concatenate([[0.0], np.cumsum(weights)])
    cells = np.arange(len(weights))
    begins, ends = np.maximum(cells - before, 0), np.minimum(cells + after + 1, len(weights))
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))
