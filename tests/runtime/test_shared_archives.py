"""Sessions that begin alike have the first segments of their archives in common; each goes on in a file of its own."""

from __future__ import annotations

import os
from io import FileIO

import numpy as np
import pytest
from archived_kinds import ARCHIVED, KINDS
from open_files import LISTS_FILES, n_open
from small import words

from edgekv.binding.row_archive import SEGMENT_TOKENS
from edgekv.generation.sampler import GREEDY

SHARED = KINDS | {"carried scores": {"policy": "h2o"}}
pytestmark = pytest.mark.usefixtures("talkative")


def said(session, question="What was it?", n=40):
    return "".join(session.chat(question, max_tokens=n, sampling=GREEDY, allow_loops=True))


def archive_of(session):
    return session._conversation.state.archive


def told(session):
    """Return what a session says next, which recalls."""
    found = said(session), session.stats.recalled_cells, session.stats.archived_tokens
    assert found[1] > 0
    assert (session.stats.forgotten_tokens, session.stats.archive_failure) == (0, "")
    return found


@pytest.mark.parametrize("options", SHARED.values(), ids=SHARED.keys())
def test_forks_go_on_as_sessions_that_read_all_of_it(open_runtime, options):
    with open_runtime(**ARCHIVED | options) as rt:

        def alone(word):
            with rt.session() as session:
                session.read(words(100))
                if word:
                    session.read(words(70, word))
                return told(session)

        expected = [alone(word) for word in ("", "one", "two")]
        with rt.session() as session:
            session.read(words(100))
            start = session.snapshot()
            forks = [rt.session(start=start) for _ in range(2)]
            for word, fork in zip(("one", "two"), forks, strict=True):
                fork.read(words(70, word))
            assert [told(it) for it in (session, *forks)] == expected
            for fork in forks:
                fork.close()


def test_a_fork_takes_the_disk_of_what_it_reads_itself(open_runtime):
    with open_runtime(**ARCHIVED) as rt, rt.session() as session:
        session.read(words(400))
        token_bytes = rt.plan.archive_token_bytes
        with rt.session(start=session.snapshot()) as fork:
            n_first = fork.n_past
            fork.read(words(50, "other"))
            n_own = fork.n_past - n_first
            whole, own = archive_of(fork).n_tokens * token_bytes, archive_of(fork)._file.n_bytes
            assert own <= (n_own + 2 * SEGMENT_TOKENS) * token_bytes < whole / 3


def test_rows_of_a_snapshot_stay_when_its_session_reads_something_else(open_runtime):
    with open_runtime(**ARCHIVED) as rt, rt.session(history=True) as session:
        session.read(words(150))
        snapshot = session.snapshot()
        expected = told(session)
        session.rewind(100)
        session.read(words(150, "other"))
        told(session)
        with rt.session(history=True, start=snapshot) as fork:
            assert told(fork) == expected
        session.restore(snapshot)
        assert told(session) == expected


def test_a_fork_goes_back_behind_the_place_that_it_began_at(open_runtime):
    with open_runtime(**ARCHIVED) as rt, rt.session(history=True) as session, rt.session(history=True) as fresh:
        for it in (fresh, session):
            it.read(words(150))
        expected = told(session)
        session.rewind(fresh.n_past)
        fork = rt.session(history=True, start=session.snapshot())
        for it in (fork, fresh):
            it.rewind(150)
            it.read(words(100, "other"))
        assert told(fork) == told(fresh)
        assert told(session) == expected
        fork.close()


def test_programs_of_forks_say_what_each_says_alone(open_runtime):
    """Sessions fork, read, go back and are closed at random; each says what one says that read the same alone."""
    with open_runtime(**ARCHIVED) as rt:
        known = {}

        def alone(texts):
            if texts not in known:
                with rt.session() as session:
                    for text in texts:
                        session.read(text)
                    known[texts] = told(session)
            return known[texts]

        choice = np.random.default_rng(7)
        first = rt.session()
        first.read(words(80))
        open_ones = {first: (words(80),)}
        snapshots = [(first.snapshot(), (words(80),))]
        for i in range(60):
            session = list(open_ones)[choice.integers(len(open_ones))]
            match choice.integers(5):
                case 0 if len(open_ones) < 4:
                    snapshot, texts = snapshots[choice.integers(len(snapshots))]
                    open_ones[rt.session(start=snapshot)] = texts
                case 1:
                    snapshot, texts = snapshots[choice.integers(len(snapshots))]
                    session.restore(snapshot)
                    open_ones[session] = texts
                case 2 if len(open_ones) > 1:
                    session.close()
                    del open_ones[session]
                case 3:
                    snapshots.append((session.snapshot(), open_ones[session]))
                    snapshots = snapshots[-3:]
                case _ if len(open_ones[session]) < 4:
                    text = words(20 + int(choice.integers(40)), f"w{i % 3}-")
                    session.read(text)
                    open_ones[session] = (*open_ones[session], text)
            if i % 5 == 4:
                session = list(open_ones)[choice.integers(len(open_ones))]
                before = session.snapshot()
                assert told(session) == alone(open_ones[session])
                session.restore(before)
        for session in open_ones:
            session.close()


@LISTS_FILES
def test_files_go_with_the_last_that_has_them(open_runtime, tmp_path):
    with open_runtime(**ARCHIVED | {"swap_dir": tmp_path, "parallel": 2}) as rt:
        session = rt.session()
        session.read(words(150))
        snapshot = session.snapshot()
        fork = rt.session(start=snapshot)
        fork.read(words(50, "other"))
        assert n_open(tmp_path) == 2
        session.close()
        told(fork)
        assert n_open(tmp_path) == 2
        del snapshot
        fork.close()
        rt.session().close()  # the engine forgets closed sessions at its next use
        assert n_open(tmp_path) == 0


@LISTS_FILES
def test_forks_of_forks_hold_no_more_files(open_runtime, tmp_path):
    with open_runtime(**ARCHIVED | {"swap_dir": tmp_path, "parallel": 2}) as rt, rt.session() as a, rt.session() as b:
        a.read(words(60))
        for session, other in ((a, b), (b, a)) * 8:
            other.restore(session.snapshot())
            assert n_open(tmp_path) <= 4
        assert told(a)[0] == told(b)[0]


def test_a_damaged_segment_is_forgotten_by_all_that_have_it(open_runtime):
    with open_runtime(**ARCHIVED) as rt, rt.session() as session:
        session.read(words(150))
        with rt.session(start=session.snapshot()) as fork:
            fork.read(words(30, "other"))
            file = archive_of(session)._file
            os.pwrite(file.fileno(), b"\xff" * file.n_bytes, 0)
            for it in (session, fork):
                assert said(it)
                assert "is not what was written" in it.stats.archive_failure
                assert it.stats.recalled_cells == 0


def test_a_full_disk_at_a_fork_is_said(open_runtime, monkeypatch):
    with open_runtime(**ARCHIVED) as rt, rt.session() as session:
        session.read(words(150))
        snapshot = session.snapshot()
        monkeypatch.setattr("edgekv.archive.session_archive.temp_file", lambda _place: FileIO("/dev/full", "r+"))
        with rt.session(start=snapshot) as fork:
            assert said(fork)
            assert "cannot be written" in fork.stats.archive_failure
        told(session)


# ---- shared beginnings ----


BOOK = words(300)


def history(question):
    return [{"role": "user", "content": f"{BOOK}\n\n{question}"}]


def answered(rt, question, others=()):
    """The reply to a history as a server gives it, tokens that were reused, and cells that were recalled."""
    with rt.session(history=True) as session, rt.stored(history(question)) as stored:
        shared = max(stored.n_opening, *(other.common_prefix_length(stored) for other in others), 0)
        reply = "".join(session.continue_from(history(question), shared=shared, max_tokens=8, sampling=GREEDY))
        stats = session.stats
        assert (stats.forgotten_tokens, stats.archive_failure) == (0, "")
        return reply, stats.reused_tokens, stats.recalled_cells, stats.archived_tokens


@pytest.mark.parametrize("reposition", ["never", "always"])
def test_a_shared_beginning_is_recalled_from(open_runtime, reposition):
    with open_runtime(**ARCHIVED | {"reposition": reposition}) as rt, rt.session(history=True) as first:
        "".join(first.continue_from(history("Who came first?"), shared=0, max_tokens=8, sampling=GREEDY))
        reply, reused, recalled, archived = answered(rt, "Where was it?", [first])
        assert reused == 0
        assert recalled > 0
        for _ in range(2):  # the session that read the beginning is closed
            again = answered(rt, "Where was it?", [first])
            assert again[0] == reply
            assert again[1] > 500
            assert again[2:] == (recalled, archived)


@LISTS_FILES
def test_a_shared_beginning_takes_the_disk_of_its_own_tokens(open_runtime, tmp_path):
    with open_runtime(**ARCHIVED | {"swap_dir": tmp_path}) as rt, rt.session(history=True) as first:
        "".join(first.continue_from(history("Who came first?"), shared=0, max_tokens=8, sampling=GREEDY))
        answered(rt, "Where was it?", [first])
        (beginning,) = rt._engine.slots.beginnings._all
        n_segments = -(-beginning.key.n_past // SEGMENT_TOKENS)
        held = sum(file.n_bytes for file in beginning.stored.archived.rows.files)
        assert held <= n_segments * SEGMENT_TOKENS * rt.plan.archive_token_bytes
