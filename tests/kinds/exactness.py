"""How far logits of one text may lie apart, and how far a wrong set of cells puts them."""

from __future__ import annotations

import numpy as np

PREFILL = 5e-3
DECODE = 1e-2  # at most 5.0e-3 was measured
QUANTISED = 4e-2  # llama.cpp's own cache rounds queries too; at most 1.1e-2 was measured
WRONG = 0.1  # a wrong set for one head of one layer gives at least 0.2


def error(found, expected):
    """The largest error over the deviation of the logits."""
    return np.abs(found - expected).max() / expected.std()


def distance(found, expected):
    """Root mean square."""
    return np.sqrt(np.mean((found - expected) ** 2))
