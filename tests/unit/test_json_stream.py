"""JSON whose long lists are made while it is written."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("starlette")

from edgekv.api.json_stream import PART_BYTES, LazyList, json_parts

LONG = [{"token": f"é {i}", "top": [i] * 50} for i in range(1_000)]


def plain(value):
    """The value with lists in place of its items."""
    return json.loads(json.dumps(value, default=list))


@pytest.mark.parametrize(
    "value",
    [
        {"text": "é\n"},
        {"one": LazyList(lambda: iter(())), "two": [LazyList(lambda: [1]), LazyList(lambda: iter("ab"))], "text": "[]"},
        {"a": 1, "long": LazyList(lambda: iter(LONG)), "b": {"again": LazyList(lambda: iter(LONG[::-1]))}},
    ],
)
def test_it_is_the_json_of_lists(value):
    for _ in range(2):
        parts = list(json_parts(value))
        assert json.loads(b"".join(parts)) == plain(value)


def test_what_is_long_comes_in_parts():
    largest = len(json.dumps(LONG[-1]))
    parts = list(json_parts({"long": LazyList(lambda: iter(LONG))}))
    assert len(parts) > 10
    assert max(map(len, parts)) < PART_BYTES + largest
    assert list(json_parts([1, {"a": "é"}], b"data: ", b"\n\n")) == ['data: [1,{"a":"é"}]\n\n'.encode()]
