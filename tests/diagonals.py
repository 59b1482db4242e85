"""Parameters on the diagonal of a matrix, for code that branches on either of two things and never on the pair."""

from __future__ import annotations

import pytest


def diagonal(firsts, seconds, n=1, whole=()):
    """Pairs of each of the first with n of the second, which stand in turn beside them, or with all if in `whole`."""
    pairs = []
    for i, one in enumerate(firsts):
        begin = i + i // len(seconds)  # firsts that form a pattern get different seconds
        n_beside = len(seconds) if one in whole else n
        pairs += [(one, seconds[(begin + k) % len(seconds)]) for k in range(n_beside)]
    return pairs


def by_night(cases, daily):
    """Cases, tuples of parameters, of which those that are not in `daily` are run at night alone."""
    return [pytest.param(*case, marks=[] if case in daily else pytest.mark.nightly) for case in cases]
