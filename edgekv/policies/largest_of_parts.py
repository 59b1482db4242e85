"""Scores by the parts of a question: cells that any part needs are kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .head import Head
from .types import Scores


def largest_of_parts(formula: Callable[[Any, Head], Scores]) -> Callable[[Any, Head], Scores]:
    """Apply a policy's formula to each part of the rows of a head; a cell gets its largest score.

    The mean over all rows would give little weight to cells that only one part attends to.
    """

    @functools.wraps(formula)
    def score(policy: Any, head: Head) -> Scores:
        return np.asarray(np.maximum.reduce([formula(policy, part) for part in head.by_part()]))

    return score
