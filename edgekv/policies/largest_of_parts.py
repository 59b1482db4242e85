"""Scores by the parts of a question: what any of them needs is kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .head import Head
from .types import Scores


def largest_of_parts(formula: Callable[[Any, Head], Scores]) -> Callable[[Any, Head], Scores]:
    """A formula of a policy as it works on a head whose rows are of several parts: a cell has its largest score.

    The mean over all rows would leave little of what one part alone attends to.
    """

    @functools.wraps(formula)
    def score(policy: Any, head: Head) -> Scores:
        return np.asarray(np.maximum.reduce([formula(policy, part) for part in head.by_part()]))

    return score
