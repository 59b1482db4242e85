"""Drafts: where they are looked up, and when they pay."""

from __future__ import annotations

import numpy as np
import pytest

from edgekv.cells.speculation import MEASURE_AGAIN, NGRAM, WINDOW, NgramProposer, SpeculationGate


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


def decodes(gate, n, n_accepted, *, draft_s, plain_s=1.0):
    """Return how many of n decodes had a draft, where n_accepted of the three tokens of each draft are said."""
    n_drafts = 0
    for _ in range(n):
        is_decoded = False
        if gate.awaits_draft:
            is_decoded, coming = gate.allows_draft([1, 2, 3]), [*[1, 2, 3][:n_accepted], 9]
        n_drafts += is_decoded
        gate.decoded(3 if is_decoded else 0, draft_s if is_decoded else plain_s)
        for _ in range(len(coming) if is_decoded else 1):
            gate.said(coming.pop(0))
    return n_drafts


def test_drafts_go_on_while_they_pay():
    gate = SpeculationGate()
    assert decodes(gate, 100, 1, draft_s=1.4) >= 90  # the first are compared alone
    assert decodes(gate, 100, 3, draft_s=3.9) >= 95


def test_drafts_that_nothing_of_is_said_are_never_decoded():
    assert decodes(SpeculationGate(), 10_000, 0, draft_s=1.1) == 0


def test_drafts_that_cost_too_much_are_measured_now_and_then():
    n_decodes = 100 * MEASURE_AGAIN
    n_drafts = decodes(SpeculationGate(), n_decodes, 1, draft_s=2.1)
    assert 90 <= n_drafts <= 101


def test_drafts_that_come_to_pay_are_taken_up():
    gate = SpeculationGate()
    assert decodes(gate, 200, 0, draft_s=2.5) == 0
    assert decodes(gate, 200, 3, draft_s=2.5) > 190


def test_one_slow_decode_does_not_stop_drafts():
    gate = SpeculationGate()
    decodes(gate, 100, 3, draft_s=1.5)
    assert decodes(gate, 1, 3, draft_s=100.0) == 1
    assert decodes(gate, 20, 3, draft_s=1.5) == 20


def test_a_draft_is_compared_though_it_is_not_decoded():
    gate = SpeculationGate()
    gate.decoded(0, 1.0)
    for _ in range(2):
        assert gate.awaits_draft
        assert not gate.allows_draft([5, 6])
        gate.said(5)
        assert not gate.awaits_draft
        gate.said(6)
    assert gate.allows_draft([5, 6])
    gate.forget()
    assert gate.awaits_draft


def test_an_empty_draft_is_not_decoded():
    gate = SpeculationGate()
    decodes(gate, 20, 3, draft_s=1.0)
    assert not gate.allows_draft([])
    assert gate.awaits_draft
