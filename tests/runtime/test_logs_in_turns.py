"""Sessions with logs, saved ones and such that begin with a snapshot, side by side in one runtime."""

from __future__ import annotations

import pytest
from diagonals import HERE_BY_DAY
from open_files import spoil
from small import words
from test_rewinding import DRAWN, log_of, say, state

import edgekv


def pieces_of(session, text):
    return session.chat(text, max_tokens=12, sampling=DRAWN, allow_loops=True)


def history(runtime, text, **options):
    """Return what a session alone in its runtime says and holds, before and after it went back."""
    with runtime.session(history=True, **options) as session:
        session.read(words(200))
        n_read = session.n_past
        first = say(session, text, allow_loops=True)
        whole = "".join(session.text())
        session.rewind(n_read)
        return n_read, first, whole, say(session, "Another?", allow_loops=True), state(session)


@pytest.mark.parametrize("isolated", HERE_BY_DAY, ids=["here", "isolated"])
def test_sessions_that_take_turns_keep_their_own_logs(open_runtime, tmp_path, isolated):
    """Token by token, and on the way back, by way of the disk."""
    texts = ["What was it?", "And who came then?"]
    with open_runtime(isolated=isolated) as runtime:
        expected = [history(runtime, text) for text in texts]
    with open_runtime(isolated=isolated, swap_memory="1MiB", swap_dir=tmp_path) as runtime:
        sessions = [runtime.session(history=True) for _ in texts]
        reads, said = [], ["" for _ in texts]
        for session in sessions:
            session.read(words(200))
            reads.append(session.n_past)
        replies = [
            s.chat(t, max_tokens=20, sampling=DRAWN, allow_loops=True) for s, t in zip(sessions, texts, strict=True)
        ]
        for _ in range(40):
            for i, reply in enumerate(replies):
                said[i] += next(reply, "")
        wholes = ["".join(session.text()) for session in sessions]
        for session, n in zip(sessions, reads, strict=True):
            session.rewind(n)
        again = [say(session, "Another?", allow_loops=True) for session in sessions]
        states = [state(session) for session in sessions]
        assert list(zip(reads, said, wholes, again, states, strict=True)) == expected
        if not isolated:
            assert all(len(log_of(session)) == session.n_past for session in sessions)


@pytest.mark.parametrize("isolated", HERE_BY_DAY, ids=["here", "isolated"])
def test_a_session_is_loaded_beside_others(open_runtime, tmp_path, isolated):
    """The loaded session has its file's log. The session that had the cells goes on as if nothing came between."""
    with open_runtime(isolated=isolated) as runtime:
        with runtime.session(history=True) as session:
            session.read(words(150))
            session.save(tmp_path / "a")
            expected = say(session, allow_loops=True), "".join(session.text())
        with runtime.session() as alone:
            own = "".join(pieces_of(alone, "Hello"))
        with runtime.session() as session:
            reply = pieces_of(session, "Hello")
            said = next(reply)
            with runtime.load_session(tmp_path / "a") as loaded:
                assert (say(loaded, allow_loops=True), "".join(loaded.text())) == expected
                loaded.rewind(40)
                assert loaded.n_past == 40
            assert said + "".join(reply) == own


def test_a_session_with_a_log_begins_with_a_snapshot_that_has_one(open_runtime):
    with open_runtime() as runtime, runtime.session(history=True) as first, runtime.session() as plain:
        first.read(words(150))
        plain.read("a b c")
        with runtime.session(start=first.snapshot(), history=True) as second:
            assert [turn.role for turn in second.turns()] == [turn.role for turn in first.turns()]
            assert say(second, allow_loops=True) == say(first, allow_loops=True)
        with pytest.raises(edgekv.SessionError, match="without a history"):
            runtime.session(start=plain.snapshot(), history=True)


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("isolated", HERE_BY_DAY, ids=["here", "isolated"])
def test_sessions_with_logs_rest_where_there_is_no_room(open_runtime, isolated):
    """A session is swapped out as its newest checkpoint, so a switch takes no copy. Each session says what it says
    alone."""
    texts = ["What was it?", "And who came then?", words(100)]
    with open_runtime(isolated=isolated, prompt_lookup="on") as runtime:
        expected = [history(runtime, text) for text in texts]
    with open_runtime(isolated=isolated, prompt_lookup="on", swap_memory=0, swap_bytes=0) as runtime:
        sessions = [runtime.session(history=True) for _ in texts]
        reads, firsts = [], []
        for session in sessions:
            session.read(words(200))
            reads.append(session.n_past)
        for session, text in zip(sessions, texts, strict=True):
            firsts.append(say(session, text, allow_loops=True))
        wholes = ["".join(session.text()) for session in sessions]
        for session, n in zip(sessions, reads, strict=True):
            session.rewind(n)
        again = [say(session, "Another?", allow_loops=True) for session in sessions]
        states = [state(session) for session in sessions]
        assert list(zip(reads, firsts, wholes, again, states, strict=True)) == expected
        with runtime.session() as plain:
            say(plain)
            with pytest.raises(edgekv.SwapError):
                say(sessions[0])
        reply = pieces_of(sessions[0], "Go on")
        next(reply)
        with pytest.raises(edgekv.SwapError):  # no checkpoint is taken in the midst of a reply
            say(sessions[1])
        assert len("".join(reply)) > 0
        assert say(sessions[1])


@pytest.mark.usefixtures("talkative")
def test_a_checkpoint_that_a_session_rests_in_is_lost(open_runtime):
    with (
        open_runtime(swap_memory=0) as runtime,
        runtime.session(history=True) as lost,
        runtime.session(history=True) as other,
    ):
        say(lost)
        expected = say(other)
        spoil(lost._conversation.state.history.checkpoints.newest.stored.file)
        with pytest.raises(edgekv.SessionEvictedError, match="cannot be read back"):
            say(lost)
        with pytest.raises(edgekv.SessionEvictedError, match="cannot be read back"):
            say(lost)
        other.rewind(0)
        assert say(other) == expected


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("isolated", HERE_BY_DAY, ids=["here", "isolated"])
def test_a_turn_that_ends_while_others_have_the_cells_has_its_checkpoint(open_runtime, isolated):
    """The checkpoint is taken when the session has its cells again, before anything else is read."""
    with open_runtime(isolated=isolated) as runtime:
        sessions = [runtime.session(history=True) for _ in range(2)]
        n_pieces = len(list(pieces_of(sessions[0], words(100))))
        pieces = pieces_of(sessions[1], words(100))
        for _ in range(n_pieces):
            next(pieces)
        say(sessions[0])
        assert list(pieces) == []
        n_past = sessions[1].n_past
        before = state(sessions[1])
        expected = say(sessions[1])
        sessions[1].rewind(n_past)
        assert (sessions[1].stats.reused_tokens, sessions[1].stats.read_tokens) == (n_past, 0)
        assert state(sessions[1]) == before
        assert say(sessions[1]) == expected
