"""Distances of the logits of one text. The errors are the largest of one token, over the deviation of its logits."""

from __future__ import annotations

import numpy as np


def error(found, expected):
    """The largest error over the deviation of the logits."""
    return np.abs(found - expected).max() / expected.std()


def distance(found, expected):
    """Root mean square."""
    return np.sqrt(np.mean((found - expected) ** 2))
