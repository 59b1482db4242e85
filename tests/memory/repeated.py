"""Comparisons of the peaks of processes, which no single process decides."""

from __future__ import annotations

import statistics

N_REPEATS = 3


def settled(measure, limit):
    """Return the magnitude of a measurement if it is below a limit, and otherwise the median of three.

    Linux maps the pages of a library that its page cache holds at the moment. So one process of many holds some MiB
    more or less than another that does the same.
    """
    first = abs(measure())
    if first < limit:
        return first
    return statistics.median([first, *(abs(measure()) for _ in range(N_REPEATS - 1))])
