"""Parameters on the diagonal of a matrix, for code that branches on either of two things and never on the pair."""

from __future__ import annotations

from itertools import groupby

import pytest

# whether a runtime is in a worker process: by day those of test_worker.py and of the fixture `runtime` are
HERE_BY_DAY = [False, pytest.param(True, marks=pytest.mark.nightly)]


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


def leave_to_the_night(items):
    """Mark as nightly what `@pytest.mark.each_by_day(NAME, ...)` leaves of a test's items.

    Each NAME is that of a parameter, or several names in one string, with commas between them, whose values belong
    together. The day has each value of each NAME at least once, and the night the other items.
    """
    for function, of_function in groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        family = [item for item in of_function if item.get_closest_marker("nightly") is None]
        found = family[0].get_closest_marker("each_by_day") if family else None
        if found is None:
            continue
        try:
            kept = covering([values_of(item, found.args) for item in family])
        except (AttributeError, KeyError) as error:
            raise pytest.UsageError(
                f"{function}: each_by_day names parameters of the test, not {found.args}"
            ) from error
        for i, item in enumerate(family):
            if i not in kept:
                item.add_marker(pytest.mark.nightly)


def values_of(item, names):
    """Return what the day has to show of an item: each of `names`, with its values as they are written."""
    return {(each, *(repr(item.callspec.params[name]) for name in each.split(","))) for each in names}


def covering(cases):
    """Return the indices of few of `cases`, sets of values, that hold all values between them."""
    missing, kept = set().union(*cases), set()
    while missing:
        best = max(range(len(cases)), key=lambda i: len(missing & cases[i]))  # the first of those that hold as many
        kept.add(best)
        missing -= cases[best]
    return kept
