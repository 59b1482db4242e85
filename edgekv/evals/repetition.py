"""Repetition within a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

NGRAMS = (1, 2, 3, 4)
REPEATED = 4


def repetition(tokens: Sequence[int]) -> dict[str, Any]:
    """Figures of repetition; shares of a text too short for an n-gram are None.

    distinct: by n, the different n-grams as a share of all (distinct-n, arXiv:1510.03055)
    repeated_4: the 4-grams that came before, as a share of all (seq-rep-4, arXiv:1908.04319)
    longest_repeat: the longest run of tokens that came before; in a loop, nearly all of them
    repeat_distance: how far back that run came; in a loop, the length of the loop
    """
    distinct = {str(n): _distinct(tokens, n) for n in NGRAMS}
    of_four = distinct[str(REPEATED)]
    longest, distance = longest_repeat(tokens)
    return {
        "distinct": distinct,
        "repeated_4": None if of_four is None else 1 - of_four,
        "longest_repeat": longest,
        "repeat_distance": distance,
    }


def longest_repeat(tokens: Sequence[int]) -> tuple[int, int | None]:
    """The length of the longest run of tokens that comes twice, itself overlapped too, and how far the two lie apart.

    Of equally long runs the nearest; (0, None) = no token comes twice. Takes time with the square of the length.
    """
    line = np.asarray(tokens)
    longest, distance = 0, None
    for lag in range(1, len(line)):
        if len(line) - lag <= longest:
            break
        breaks = np.flatnonzero(line[lag:] != line[:-lag])
        run = int(np.diff(breaks, prepend=-1, append=len(line) - lag).max()) - 1
        if run > longest:
            longest, distance = run, lag
    return longest, distance


def _distinct(tokens: Sequence[int], n: int) -> float | None:
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None
