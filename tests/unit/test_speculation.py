"""Drafts: where they are looked up, and when they pay."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from edgekv.cells import speculation
from edgekv.cells.speculation import MEASURE_AGAIN, SHORTEST, WINDOW, NgramProposer, SpeculationGate
from edgekv.errors import SessionFileError
from edgekv.store.log import TokenLog


def propose(tokens, token, most):
    """Return what followed the newest of the places before which the most tokens are the same, in plain Python."""
    text = [*tokens, token]
    same = [0] * len(tokens)
    for i in range(len(tokens)):
        while same[i] < max(most, SHORTEST) and same[i] <= i and text[i - same[i]] == text[-1 - same[i]]:
            same[i] += 1
    n_same = max(same, default=0)
    if n_same < SHORTEST:
        return []
    after = len(tokens) - same[::-1].index(n_same)
    for _ in range(min(n_same, most)):
        text.append(text[after])
        after += 1
    return text[len(tokens) + 1 :]


@pytest.mark.parametrize("n", [0, 1, 2, 3, 10, 400])
@pytest.mark.parametrize("n_different", [1, 3])
def test_a_draft_is_what_followed_the_place_most_alike(n, n_different):
    tokens = np.random.default_rng(n).integers(0, n_different, n).tolist()
    history = NgramProposer()
    for i in range(0, n, 7):
        history.add(tokens[i : i + 7])
    for token in range(3):
        for most in (1, 3, 15):
            assert history.propose(token, most) == propose(tokens, token, most)


def test_drafts_grow_while_a_text_is_repeated():
    history, text = NgramProposer(), list(range(100, 200))
    history.add([*text, 7])
    said, drafts = text[:2], []
    history.add(said[:-1])
    while len(said) < 50:
        draft = history.propose(said[-1], 15)
        drafts.append(len(draft))
        next_ones = text[len(said) : len(said) + len(draft) + 1]
        assert draft == next_ones[:-1]
        history.add([said[-1], *draft])
        said += next_ones
    assert drafts == [2, 5, 11, 15, 15]


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


@pytest.fixture
def log():
    made = TokenLog()
    yield made
    made.close()


def noted(log, history, tokens):
    for first in range(0, len(tokens), 50):
        some = tokens[first : first + 50]
        log.make_room(len(some))
        log.follow(some, len(log) + len(some))
        history.follow(some, len(log))


@pytest.mark.parametrize("n", [70, 300, 1000])
def test_older_tokens_are_searched_piece_by_piece(log, monkeypatch, n):
    """Once each piece had its turn the draft is from the right place, wherever that lies. It may be shorter if a piece
    begins between the tokens that agree.
    """
    monkeypatch.setattr(speculation, "WINDOW", 64)
    text = np.random.default_rng(n).integers(10, 10**6, n).tolist()
    history = NgramProposer()
    noted(log, history, text)
    most, n_pieces = 15, n // (64 - 15) + 1
    for place in range(3, n - most, 7):
        for n_same in (2, 5, most):
            end = text[max(0, place - n_same) : place]
            noted(log, history, [1, 2, *end[:-1]])
            drafts = [history.propose(end[-1], most, log) for _ in range(n_pieces + 1)]
            assert len(drafts[-1]) >= SHORTEST
            assert all(draft == text[place : place + len(end)][: len(draft)] for draft in drafts)
            log.cut(n)
            history.cut(n)


def test_a_place_in_the_log_is_followed_while_a_text_is_repeated(log, monkeypatch):
    monkeypatch.setattr(speculation, "WINDOW", 64)
    text = list(range(100, 1100))
    history, said, drafts = NgramProposer(), text[300:302], []
    noted(log, history, [*text, said[0]])
    while len(said) < 100:
        draft = history.propose(said[-1], 15, log)
        drafts.append(len(draft))
        next_ones = text[300 + len(said) :][: len(draft) + 1]
        assert draft == next_ones[: len(draft)]
        noted(log, history, [said[-1], *draft] if draft else [said[-1]])
        said += next_ones
    at = next(i for i, n in enumerate(drafts) if n)
    assert at <= 1000 // 49
    assert drafts[at + 2 :] == [15] * len(drafts[at + 2 :])


def test_the_newest_of_equal_places_is_taken_though_the_log_has_older_ones(log, monkeypatch):
    monkeypatch.setattr(speculation, "WINDOW", 64)
    history = NgramProposer()
    noted(log, history, [5, 6, 7, *range(100, 300), 5, 6, 8, *range(400, 420), 5])
    assert all(history.propose(6, 15, log) == [8, 400] for _ in range(10))


@pytest.mark.parametrize("n_reads", [0, 1, 2])
def test_a_log_that_cannot_be_read_offers_no_draft(log, monkeypatch, n_reads):
    """After so many reads, of which the last finds what follows the place that agrees."""
    monkeypatch.setattr(speculation, "WINDOW", 64)
    history = NgramProposer()
    noted(log, history, [1, 2, *range(100, 150), 5, 6, 7, *range(200, 270), 5])
    reads = iter(range(n_reads))

    def read(first, stop):
        if next(reads, None) is None:
            raise SessionFileError("the file of a log was cut")
        return TokenLog.read(log, first, stop)

    broken = SimpleNamespace(read=read)
    assert history.propose(6, 3, broken) == []
    assert history.propose(6, 3, log) == [7, 200, 201][:2]


def decodes(gate, n, n_accepted, *, draft_s, plain_s=1.0, n_draft=3):
    """Return how many of n decodes had a draft, if so many tokens of each draft are said."""
    n_drafts = 0
    for _ in range(n):
        is_decoded = False
        if gate.awaits_draft:
            draft = list(range(n_draft))
            is_decoded, coming = gate.allows_draft(draft), [*draft[:n_accepted], 99]
        n_drafts += is_decoded
        gate.decoded(n_draft if is_decoded else 0, draft_s if is_decoded else plain_s)
        for _ in range(len(coming) if is_decoded else 1):
            gate.said(coming.pop(0))
    return n_drafts


def test_drafts_go_on_while_they_pay():
    gate = SpeculationGate()
    assert decodes(gate, 100, 1, draft_s=1.4) >= 90  # the first are compared alone
    assert decodes(gate, 100, 3, draft_s=3.9) >= 95


def test_short_drafts_tell_if_long_ones_pay():
    gate = SpeculationGate()
    decodes(gate, 20, 3, draft_s=1.5)
    assert decodes(gate, 10, 15, draft_s=3.5, n_draft=15) == 10


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
