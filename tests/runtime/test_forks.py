"""Forks: sessions that begin with everything that another one has read and said, and go on by themselves."""

from __future__ import annotations

import pytest
from archived_kinds import ARCHIVED
from small import words

import edgekv
from edgekv.generation.sampler import GREEDY, Sampling

KINDS = {
    "plain": {},
    "on the disk": {"swap_memory": 0},
    "slots": {"parallel": 3},
    "archive": ARCHIVED,
    "archive on the disk": ARCHIVED | {"swap_memory": 0},
    "archive and slots": ARCHIVED | {"parallel": 3},
    "turned keys": ARCHIVED | {"reposition": "always", "swap_memory": 0},
    "heads apart": ARCHIVED | {"policy": "keydiff+ada", "swap_memory": 0},
    "queries": {"policy": "snapkv", "swap_memory": 0},
}
BY_NIGHT = ("archive", "slots")  # the day has them together
HERE = [
    pytest.param(options, False, id=f"{name}, here", marks=pytest.mark.nightly if name in BY_NIGHT else ())
    for name, options in KINDS.items()
]
# a worker runs the same loop: what it may do otherwise is where sessions rest
IN_A_WORKER = [
    pytest.param(KINDS["plain"], True, id="plain, in a worker", marks=[pytest.mark.two_processes, pytest.mark.nightly]),
    pytest.param(
        KINDS["archive on the disk"], True, id="archive on the disk, in a worker", marks=pytest.mark.two_processes
    ),
]
pytestmark = pytest.mark.usefixtures("talkative")


def said(session, question="What was it?", n=30, sampling=GREEDY):
    return "".join(session.chat(question, max_tokens=n, sampling=sampling, allow_loops=True))


def story(session, word):
    """Read a text of its own, and return what a session says then."""
    session.read(words(60, word))
    return said(session), session.n_past, session.stats.recalled_cells


@pytest.mark.parametrize(("options", "isolated"), HERE + IN_A_WORKER)
def test_forks_and_their_origin_go_on_as_sessions_that_read_all_of_it(open_runtime, options, isolated):
    with open_runtime(isolated=isolated, **options) as rt:

        def begun():
            session = rt.session("You are brief.")
            session.read(words(120))
            said(session, "And?", n=5)
            return session

        def alone(word):
            with begun() as session:
                return story(session, word)

        expected = [alone(word) for word in ("one", "two", "three")]
        with begun() as session, session.fork() as fork, fork.fork() as another:
            assert (fork.n_past, fork.n_cells) == (session.n_past, session.n_cells)
            found = [story(it, word) for it, word in ((fork, "one"), (another, "two"), (session, "three"))]
        assert found == expected
        assert ("archive" not in options) or found[0][2] > 0


def test_a_fork_draws_what_its_origin_draws(open_runtime):
    sampling = Sampling(temperature=1.0, seed=5)
    with open_runtime() as rt, rt.session() as session:
        said(session, sampling=sampling)
        with session.fork() as fork:
            assert said(fork, sampling=sampling) == said(session, sampling=sampling)


@pytest.mark.parametrize("options", [{}, ARCHIVED], ids=["plain", "archive"])
def test_a_fork_has_the_log_of_its_origin_and_goes_back_behind_its_beginning(open_runtime, options):
    with open_runtime(**options) as rt, rt.session(history=True) as session:
        session.read(words(120))
        n = session.n_past
        said(session)
        with session.fork() as fork:
            assert "".join(fork.text()) == "".join(session.text())
            fork.rewind(n)
            fork.read(words(10, "other"))
            assert "other9" in "".join(fork.text())
            assert "other" not in "".join(session.text())
        assert said(session, n=3)


def test_a_fork_outlives_its_origin(open_runtime):
    with open_runtime(**ARCHIVED, swap_memory=0) as rt:
        session = rt.session()
        session.read(words(120))
        fork, other = session.fork(), session.fork()
        session.close()
        assert said(fork) == said(other)
        assert fork.stats.recalled_cells > 0


def test_a_session_that_read_nothing_has_forks(open_runtime):
    with open_runtime() as rt, rt.session("You are brief.") as session, session.fork() as fork:
        assert said(fork) == said(session)


def test_a_session_that_begins_with_a_snapshot_has_forks(open_runtime):
    with open_runtime() as rt, rt.session() as session:
        session.read(words(20))
        with rt.session(start=session.snapshot()) as begun, begun.fork() as fork:
            assert said(fork) == said(session)


def test_what_cannot_be_forked_is_told(open_runtime):
    with open_runtime(swap_memory=0, swap_bytes="1GiB") as rt, rt.session() as session:
        reply = session.chat("What?", max_tokens=9)
        next(reply)
        with pytest.raises(edgekv.SessionError, match="already answering"):
            session.fork()
        reply.close()
        session.close()
        with pytest.raises(edgekv.SessionError, match="closed"):
            session.fork()
    with pytest.raises(edgekv.SessionError, match="closed"):
        session.fork()


def test_a_fork_without_room_is_refused_and_changes_nothing(open_runtime):
    with open_runtime(swap_memory=0, swap_bytes=0) as rt, rt.session(history=True) as session:
        session.read(words(120))
        before = session.n_past
        with pytest.raises(edgekv.SwapError, match="do not hold"):
            session.fork()
        assert session.n_past == before
        assert said(session, n=3)
