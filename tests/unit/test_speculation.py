"""Drafts: where they are looked up, and when they pay."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.engine.speculation import (
    BACKOFF,
    FIRST_TRIALS,
    LONGEST_BACKOFF,
    NGRAM,
    WINDOW,
    NgramProposer,
    SpeculationGate,
)


def propose(tokens, token, most):
    """Return the tokens after the last earlier place of the newest NGRAM, in plain Python."""
    tail = [*tokens[-(NGRAM - 1) :], token]
    for i in range(len(tokens) - NGRAM, -1, -1):
        if tokens[i : i + NGRAM] == tail:
            return tokens[i + NGRAM : i + NGRAM + most]
    return []


@pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 400])
def test_a_draft_is_what_followed_the_last_time(n):
    tokens = np.random.default_rng(n).integers(0, 3, n).tolist()
    history = NgramProposer()
    for i in range(0, n, 7):
        history.add(tokens[i : i + 7])
    for token in range(3):
        for most in (1, 3):
            assert history.propose(token, most) == propose(tokens, token, most)


def test_only_the_newest_tokens_are_searched():
    tokens = np.random.default_rng(1).integers(0, 12, 3 * WINDOW + 100).tolist()
    history = NgramProposer()
    for i in range(0, len(tokens), 300):
        history.add(tokens[i : i + 300])
        newest = tokens[: i + 300][-WINDOW:]
        assert history.propose(5, 3) == propose(newest, 5, 3)
        assert len(history.to_bytes()) == 4 * len(newest)
    at_once, back = NgramProposer(), NgramProposer()
    at_once.add(tokens)
    back.restore(history.to_bytes())
    assert at_once.to_bytes() == back.to_bytes() == history.to_bytes()
    back.add([1, 2, 3])
    assert back.propose(9, 3) == propose([*tokens, 1, 2, 3][-WINDOW:], 9, 3)
    back.restore(b"")
    assert back.propose(5, 3) == []


def decodes(gate, n, n_accepted, *, plain_s, draft_s):
    """Return how many of n decodes had a draft, if each draft had n_accepted tokens accepted."""
    n_drafts = 0
    for _ in range(n):
        wanted = gate.allows_draft()
        gate.decoded(3 if wanted else 0, draft_s if wanted else plain_s)
        n_drafts += wanted
        for _ in range(n_accepted if wanted else 0):
            gate.accepted()
    return n_drafts


def test_drafts_go_on_while_they_pay():
    assert decodes(SpeculationGate(), 100, 1, plain_s=1.0, draft_s=1.9) == 99  # the first decode says what one takes


def test_drafts_that_do_not_pay_are_tried_ever_more_seldom():
    gate = SpeculationGate()
    n_decodes = 100_000
    n_drafts = decodes(gate, n_decodes, 1, plain_s=1.0, draft_s=2.1)
    assert FIRST_TRIALS + n_decodes // (2 * LONGEST_BACKOFF) < n_drafts < 20 + n_decodes // LONGEST_BACKOFF
    assert decodes(SpeculationGate(), 1 + FIRST_TRIALS + BACKOFF, 0, plain_s=1.0, draft_s=2.1) == FIRST_TRIALS


def test_drafts_that_come_to_pay_are_taken_up_again():
    gate = SpeculationGate()
    decodes(gate, 200, 0, plain_s=1.0, draft_s=2.5)
    assert decodes(gate, 20 * LONGEST_BACKOFF, 3, plain_s=1.0, draft_s=2.5) > 10 * LONGEST_BACKOFF
