"""A beginning that is read by itself: every history goes on from it as if it were the first."""

from __future__ import annotations

import numpy as np
import pytest
from diagonals import diagonal
from small import words
from test_snapshot import Steps, held

import edgekv

POLICIES = ["keydiff", "snapkv+ada", "h2o", "snapkv(window=16)", "keydiff+critical"]
DRAWN = edgekv.Sampling(temperature=1.5, seed=3)
QUESTION = "Which words are there?"


def ids(rt, n, word="word"):
    return rt.tokenize(words(400, word))[:n]


def answered(session, tokens, **options):
    return "".join(session.continue_from(tokens, max_tokens=12, sampling=DRAWN, **options))


@pytest.mark.each_by_day("policy", "kv_type", "focus")
@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("focus", [None, QUESTION])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("policy", POLICIES)
def test_what_came_before_makes_no_difference(open_runtime, monkeypatch, policy, kv_type, focus):
    """Cells, logits and drawn tokens to the bit, in either order, and in a session that answers only one of them."""
    with open_runtime(policy=policy, kv_type=kv_type) as rt:
        steps = Steps(rt, monkeypatch)
        beginning = ids(rt, 224)
        ends = [ids(rt, 40, "one"), ids(rt, 7, "other"), ids(rt, 130, "third")]
        found = []
        for end in ends:
            with rt.session(history=True) as session:
                session.prefill_prefix(beginning, focus=focus)
                assert session.stats.finish_reason == "read"
                steps.take()
                found.append((answered(session, beginning + end), held(rt), session.budgets(), steps.take()))
        with rt.session(history=True) as session:
            session.prefill_prefix(beginning, focus=focus)
            assert (session.stats.probes > 0) == (focus is not None)
            for end, (reply, cells, budgets, logits) in reversed(list(zip(ends, found, strict=True))):
                session.rewind(len(beginning))
                assert session.stats.reused_tokens == session.n_past == len(beginning)
                steps.take()
                assert answered(session, beginning + end) == reply
                assert session.stats.reused_tokens == len(beginning)
                assert (held(rt), session.budgets()) == (cells, budgets)
                np.testing.assert_array_equal(steps.take(), logits)
        assert found[0][0] != found[1][0] != found[2][0]


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("policy", "budget"), diagonal(POLICIES, [64, 512], whole=["keydiff"]))
def test_whole_blocks_are_read_as_all_at_once(open_runtime, monkeypatch, budget, policy):
    with open_runtime(budget=budget, policy=policy) as rt:
        steps = Steps(rt, monkeypatch)
        tokens = ids(rt, 300)
        found = []
        for n in (0, 32, 256):
            with rt.session(history=True) as session:
                if n:
                    session.prefill_prefix(tokens[:n])
                steps.take()
                found.append((answered(session, tokens), held(rt), steps.take().tolist()))
        assert found[0] == found[1] == found[2]


@pytest.mark.usefixtures("talkative")
def test_messages_go_on_from_their_tokens(runtime):
    """As in a session that reads all of them, and in a worker."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"{words(20)}\n\nWhat?"}]
    with runtime.session("Be brief.", history=True) as session:
        alone = "".join(session.continue_from(messages, max_tokens=8))
        n_tokens = session.stats.prompt_tokens
        tokens = runtime.tokenize("".join(session.text()), special=True)[:n_tokens]
    with runtime.session("Be brief.", history=True) as session:
        session.prefill_prefix(tokens[:32])
        assert "".join(session.continue_from(messages, max_tokens=8)) == alone
        assert session.stats.reused_tokens == 32
        assert next(session.turns()).role == "system"


def test_it_says_when_the_end_of_the_beginning_is_lost(open_runtime):
    with open_runtime() as rt, rt.session(history=True, checkpoint_bytes=0) as session:
        beginning = ids(rt, 96)
        session.prefill_prefix(beginning)
        answered(session, beginning + ids(rt, 9, "other"))
        session.rewind(96)
        assert (session.n_past, session.stats.reused_tokens) == (96, 0)


def test_what_is_no_beginning_is_refused(runtime):
    with runtime.session(history=True) as session:
        for wrong, message in (([], "history is empty"), ([1 << 30], "no token 1073741824"), (["a"], "no token id")):
            with pytest.raises(edgekv.InputError, match=message):
                session.prefill_prefix(wrong)
        assert session.n_past == 0
