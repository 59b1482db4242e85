"""The text of a session in shades of what its heads hold."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from diagonals import HERE_BY_DAY
from small import words

import edgekv
from edgekv.conversations.coverage import levels
from edgekv.session_record import TOKENS_AT_ONCE

HEADS = list(itertools.product(range(2), range(2)))


def by_character(runs):
    return [(character, shade) for text, shade in runs for character in text]


@pytest.mark.parametrize("isolated", HERE_BY_DAY, ids=["here", "isolated"])
@pytest.mark.parametrize("policy", ["keydiff", "snapkv+ada"])
def test_shades_are_those_of_the_heads(open_runtime, monkeypatch, policy, isolated):
    """Also where the log is read in several pieces, of heads of different lengths, and while another session rests."""
    monkeypatch.setattr("edgekv.session_record.TOKENS_AT_ONCE", 50)
    assert TOKENS_AT_ONCE > 50
    with open_runtime(policy=policy, isolated=isolated) as rt, rt.session("Be brief.", history=True) as session:
        text = words(150) + " naïve 漢字"
        "".join(session.chat(text, max_tokens=5))
        with rt.session() as other:
            "".join(other.chat("Hello", max_tokens=2))
            turns = {turn.role: turn for turn in session.turns()}
            found = {role: list(session.kept(turn)) for role, turn in turns.items()}
            whole = list(session.kept())
        n = session.n_past
        counts = np.bincount(np.concatenate([session.kept_positions(*head) for head in HEADS]), minlength=n)
        shades = levels(counts / len(HEADS)).tolist()
        for role in ("system", "user"):
            assert "".join(text for text, _ in found[role]) == "".join(session.text(turns[role]))
            assert {shade for _, shade in found[role]} == set(shades[turns[role].start : turns[role].stop])
        assert {shade for _, shade in found["system"]} == {4}  # never evicted
        assert 0 in shades
        assert {shade for _, shade in whole} == set(shades)
        whole_text = "".join(session.text())
        assert whole_text.startswith("".join(text for text, _ in whole))
        # the tiny model's tokens are single bytes or short pieces, so each character's shade is that of some token
        start = whole_text.index(text)
        assert by_character(whole)[start : start + len(text)] == by_character(found["user"])


def test_what_was_not_fed_has_no_shade(open_runtime):
    with open_runtime() as rt, rt.session(history=True) as session:
        assert list(session.kept()) == []
        "".join(session.chat("Hello", max_tokens=1))
        assert session.stats.generated_tokens == 1
        assert "".join(text for text, _ in session.kept()) == "".join(session.text()).removesuffix(
            "".join(session.text(list(session.turns())[-1]))
        )
        assert all(shade == 4 for _, shade in session.kept())


def test_what_is_refused(open_runtime):
    with open_runtime() as rt:
        with rt.session() as plain, pytest.raises(edgekv.SessionError, match="keeps no history"):
            next(plain.kept())
        session = rt.session(history=True)
        pieces = session.chat("Hello", max_tokens=50)
        next(pieces)
        with pytest.raises(edgekv.SessionError, match="already answering"):
            next(session.kept())
        pieces.close()
        session.close()
        with pytest.raises(edgekv.SessionError, match="closed"):
            next(session.kept())
