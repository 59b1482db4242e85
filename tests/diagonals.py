"""Parameters on the diagonal of a matrix, for code that branches on either of two things and never on the pair."""

from __future__ import annotations

from collections import defaultdict

import pytest


def at_night(case):
    """A case, a tuple of parameters or one alone, that is run at night."""
    return pytest.param(*(case if isinstance(case, tuple) else [case]), marks=pytest.mark.nightly)


# whether a runtime is in a worker process: by day those of test_worker.py and of the fixture `runtime` are
HERE_BY_DAY = [False, at_night(True)]
COMMANDS_HERE_BY_DAY = [[], at_night(["--isolated"])]


def diagonal(firsts, seconds, n=1, whole=()):
    """Pairs of each of the first with n of the second, which stand in turn beside them, or with all if in `whole`."""
    pairs = []
    for i, one in enumerate(firsts):
        begin = i + i // len(seconds)  # firsts that form a pattern get different seconds
        n_beside = len(seconds) if one in whole else n
        pairs += [(one, seconds[(begin + k) % len(seconds)]) for k in range(n_beside)]
    return pairs


def by_night(cases, daily):
    """Cases, of which those that are not in `daily` are run at night alone."""
    return [case if case in daily else at_night(case) for case in cases]


def leave_to_the_night(items):
    """Mark as nightly what `@pytest.mark.each_by_day(NAME, ...)` leaves of a test's items.

    Each NAME is that of a parameter, or several names in one string, with commas between them, whose values belong
    together. The day has each value of each NAME at least once, and the night the other items.
    """
    families = defaultdict(list)
    for item in items:
        if item.get_closest_marker("each_by_day") and not item.get_closest_marker("nightly"):
            families[item.nodeid.partition("[")[0]].append(item)
    for family in families.values():
        kept = covering([values_of(item) for item in family])
        for i, item in enumerate(family):
            if i not in kept:
                item.add_marker(pytest.mark.nightly)


def values_of(item):
    """Return what the day has to show of an item: each NAME of its marker, with its values as they are written."""
    names = item.get_closest_marker("each_by_day").args
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if not names or not {name for each in names for name in each.split(",")} <= params.keys():
        raise pytest.UsageError(f"{item.nodeid}: each_by_day names parameters of the test, not {names}")
    return {(each, *(repr(params[name]) for name in each.split(","))) for each in names}


def covering(cases):
    """Return the indices of few of `cases`, sets of values, that hold all values between them."""
    missing, kept = set().union(*cases), set()
    while missing:
        best = max(range(len(cases)), key=lambda i: len(missing & cases[i]))  # the first of those that hold as many
        kept.add(best)
        missing -= cases[best]
    return kept
