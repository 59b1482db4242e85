"""Numbers of things, in words: one has no s, and nothing but one has none."""

from __future__ import annotations

import pytest

from edgekv.counting import counted
from edgekv.documents.encodings import TextDecoder


@pytest.mark.parametrize(
    ("n", "expected"), [(0, "0 texts"), (1, "1 text"), (2, "2 texts"), (1000, "1,000 texts"), (-1, "-1 texts")]
)
def test_a_number_with_its_noun(n, expected):
    assert counted(n, "text") == expected


@pytest.mark.parametrize(("text", "places"), [(b"a" * 9000 + b"\xff", "1 place,"), (b"\xffa" * 2, "2 places,")])
def test_places_of_bytes_that_are_no_text(text, places):
    decoder = TextDecoder("utf-8")
    decoder.decode(text, final=True)
    assert places in decoder.note
