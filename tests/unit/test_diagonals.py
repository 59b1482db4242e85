"""Cases of a test by day and by night: `tests/diagonals.py`."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from diagonals import covering, leave_to_the_night


class Item:
    """A case of a test, as pytest collects it."""

    def __init__(self, names, **params):
        self.nodeid = f"test_pairs[{params}]"
        self.callspec = SimpleNamespace(params=params)
        self.markers = {"each_by_day": SimpleNamespace(args=names)}

    def get_closest_marker(self, name):
        return self.markers.get(name)

    def add_marker(self, marker):
        self.markers[marker.name] = marker


def matrix(*names):
    return [Item(names, a=a, b=b) for a, b in itertools.product([{}, {"x": 1}, 3], [1, 2])]


def test_few_cases_hold_all_values():
    assert covering([{"a", "x"}, {"a", "y"}, {"b", "x"}, {"b", "y"}]) == {0, 3}
    assert covering([{"a"}, {"a"}, {"b"}]) == {0, 2}


@pytest.mark.parametrize(
    ("names", "expected"), [(("a", "b"), [0, 3, 4]), (("b",), [0, 1]), (("a,b",), [0, 1, 2, 3, 4, 5])]
)
def test_the_day_has_each_value_and_the_night_the_others(names, expected):
    items = matrix(*names)
    leave_to_the_night(items)
    assert [i for i, item in enumerate(items) if item.get_closest_marker("nightly") is None] == expected


@pytest.mark.parametrize("names", [(), ("c",), ("a,c",)])
def test_a_name_that_is_no_parameter_stops_the_run(names):
    with pytest.raises(pytest.UsageError, match="each_by_day names parameters of the test"):
        leave_to_the_night(matrix(*names))
