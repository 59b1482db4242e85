"""Cuts of a question into parts."""

from __future__ import annotations

import pytest

from edgekv.prompt.turns import parts_of


@pytest.mark.parametrize(
    ("question", "parts"),
    [
        ("Where does Dorothy live?", ["Where does Dorothy live?"]),
        ("Summarise the text. Be brief.", ["Summarise the text. Be brief."]),
        ("Who came? When? Answer briefly.", ["Who came?", " When? Answer briefly."]),
        ("Read it, with care, please. Who came, and when?", ["Read it, with care, please. Who came, and when?"]),
        ('He asked "who?" and left. Why?', ['He asked "who?"', " and left. Why?"]),
        ("Is a.b?c=1 a link?", ["Is a.b?c=1 a link?"]),
        ("Does it cost 1,000,000, 2,000 or less?", ["Does it cost 1,000,000, 2,000 or less?"]),
        ("What are the codes of a, b, c and d?", ["What are the codes of a, b, c and d?"]),
        ("Who came? He left. Why", ["Who came? He left. Why"]),
        ("Who? (Why?) And when?", ["Who?", " (Why?)", " And when?"]),
        ("\u8c01\uff1f\u4f55\u65f6\uff1f\u3002", ["\u8c01\uff1f", "\u4f55\u65f6\uff1f\u3002"]),
        ("Who?? ", ["Who?? "]),
        ("?", ["?"]),
        ("", [""]),
    ],
)
def test_a_part_ends_with_a_question_mark(question, parts):
    assert list(parts_of(question)) == parts
    assert "".join(parts) == question
