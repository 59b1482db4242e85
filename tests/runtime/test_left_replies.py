"""Replies that are left, while others are at work or not: their sessions go on as if nobody else was there."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from small import words

import edgekv
from edgekv.generation.sampler import GREEDY

sys.path.append(str(Path(__file__).parents[1] / "stress"))
import interleavings

pytestmark = pytest.mark.usefixtures("talkative")


def test_sessions_of_random_programs_say_and_hold_what_each_does_alone():
    """A model of their log checks them, too. The whole program runs 100,000."""
    counts = interleavings.run(9, 0)
    assert counts["compared"] > 50


def begun(session, n=3):
    """Return a reply that has paused after n pieces."""
    pieces = session.chat("What?", max_tokens=50, sampling=GREEDY, allow_loops=True)
    for _ in range(n):
        next(pieces)
    return pieces


def checkpoints(session):
    return session._conversation.state.history.checkpoints.positions


def said(session):
    return "".join(session.chat("And then?", max_tokens=10, sampling=GREEDY, allow_loops=True))


def left_alone(runtime):
    """Return what a session says after a reply that was left, and what it holds."""
    with runtime.session(history=True) as session:
        session.read(words(90))
        begun(session).close()
        return session.n_past, said(session), session.kept_positions(1, 1).tolist()


def test_a_reply_that_is_left_has_its_checkpoint_at_once_if_nobody_is_at_work(local_runtime):
    with local_runtime.session(history=True) as session:
        begun(session).close()
        assert checkpoints(session) == [session.n_past]


def test_a_reply_that_is_left_after_it_was_passed_has_its_checkpoint_at_the_next_use(local_runtime):
    expected = left_alone(local_runtime)
    with local_runtime.session(history=True) as session, local_runtime.session() as other:
        session.read(words(90))
        pieces, before = begun(session), checkpoints(session)
        other.read(words(40, "other"))
        pieces.close()
        assert checkpoints(session) == before
        assert session.stats.finish_reason == "closed"
        n_past = session.n_past
        assert session.stats.tokens_seen == n_past
        assert [turn.role for turn in session.turns()] == ["user", "assistant"]
        again = said(session)
        assert n_past in checkpoints(session)
        assert (n_past, again, session.kept_positions(1, 1).tolist()) == expected


@pytest.mark.parametrize("way", ["close", "drop", "cancel"])
def test_a_reply_that_is_left_within_the_call_of_another_session_changes_neither(runtime, way):
    expected = left_alone(runtime)
    with runtime.session() as alone:
        alone.read(words(90, "other"))
        expected_of_other = said(alone)
    with runtime.session(history=True) as session, runtime.session() as other:
        session.read(words(90))
        replies = [begun(session)]

        def leave(_):
            if way == "cancel":
                session.cancel()
            elif replies and way == "close":
                replies[0].close()
            elif replies:
                replies.clear()

        other.read(words(90, "other"), progress=leave)
        if way == "cancel":
            assert list(replies[0]) == []
            assert session.stats.finish_reason == "cancelled"
        n_past = session.n_past
        assert (n_past, said(session), session.kept_positions(1, 1).tolist()) == expected
        assert said(other) == expected_of_other


def test_a_session_that_is_closed_in_a_pause_of_its_reply_is_freed_at_once(local_runtime):
    session = local_runtime.session(history=True)
    pieces = begun(session)
    session.close()
    assert session._conversation.state.history is None
    assert list(pieces) == []
    assert session.stats.finish_reason == "cancelled"


def test_a_runtime_that_is_closed_within_the_call_of_a_session_ends_it(open_runtime):
    runtime = open_runtime()
    session = runtime.session(history=True)
    with pytest.raises(edgekv.SessionError, match="closed"):
        session.read(words(90), progress=lambda _: runtime.close())
