"""Sessions with an archive that are swapped out: positions go to the disk, and archived rows come back to the bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from archived_kinds import ARCHIVED, KINDS, each_kind
from small import words

import edgekv
from edgekv.generation.sampler import GREEDY

SWAPPED = ARCHIVED | {"swap_memory": 0}
# the most bytes of a snapshot beside an archive, as a part of a whole one: with turned keys, values alone are left out
MOST = dict.fromkeys(KINDS, 0.25) | {"turned": 0.65}
KINDS_THAT_SWAP = {name: options for name, options in KINDS.items() if name != "slots"}
pytestmark = pytest.mark.usefixtures("talkative")


def said(session, question="What was it?", n=40):
    return "".join(session.chat(question, max_tokens=n, sampling=GREEDY, allow_loops=True))


def state_of(session):
    return session._conversation.state


def cells_of(session):
    """The bytes of all that the cells of a session hold."""
    return session._conversation._swapped_in().cache.snapshot().data


def swap_out(rt, session, other):
    """Have another session take the cells; returns the snapshot that the first one is swapped out as."""
    other._conversation._swapped_in()
    assert not state_of(session).is_loaded
    return rt._engine.slots.swap.get(state_of(session))


@pytest.fixture
def swapped(open_runtime):
    """A runtime, a session with recalled cells, and another one."""
    with open_runtime(**SWAPPED) as rt, rt.session(history=True, checkpoint_bytes=0) as session, rt.session() as other:
        session.read(words(150))
        said(session)
        other.read(words(3))
        cells_of(session)
        yield rt, session, other


@pytest.mark.parametrize("name", each_kind(KINDS_THAT_SWAP, names=True))
def test_cells_come_back_to_the_bit(open_runtime, name):
    """Recalled cells, turned keys, and rows that are not archived yet; again and again, beside new tokens."""
    with open_runtime(**SWAPPED | KINDS_THAT_SWAP[name]) as rt, rt.session() as session, rt.session() as other:
        other.read(words(3))
        session.read(words(150))
        n_recalled = 0
        for n_tokens in (1, 3, 20, 40):
            said(session, n=n_tokens)
            n_recalled += session.stats.recalled_cells
            before = cells_of(session)
            stored = swap_out(rt, session, other)
            assert stored.nbytes < MOST[name] * len(before)
            assert np.array_equal(cells_of(session), before)
        assert n_recalled > 0
        assert session.stats.archive_failure == ""


@pytest.mark.parametrize(
    "isolated",
    [False, pytest.param(True, marks=[pytest.mark.two_processes, pytest.mark.nightly])],
    ids=["here", "isolated"],
)
@pytest.mark.parametrize("name", each_kind(KINDS_THAT_SWAP, names=True))
def test_sessions_in_turn_say_what_each_says_alone(open_runtime, name, isolated):
    with open_runtime(**SWAPPED | KINDS_THAT_SWAP[name], isolated=isolated) as rt:

        def turns(word):
            with rt.session() as session:
                yield session.read(words(120, word))
                for _ in range(3):
                    yield said(session, n=20)

        alone = [list(turns(word)) for word in ("one", "two")]
        together = list(zip(*map(turns, ("one", "two")), strict=True))
        assert list(zip(*together, strict=True)) == [tuple(it) for it in alone]


@pytest.mark.no_device
def test_slots_and_sessions_without_cells_say_what_each_says_alone(open_runtime):
    with open_runtime(**SWAPPED | KINDS["slots"]) as rt:

        def turns(word):
            with rt.session() as session:
                yield session.read(words(120, word))
                for _ in range(3):
                    yield said(session, n=20)

        names = ("one", "two", "three", "four")
        alone = [list(turns(word)) for word in names]
        together = list(zip(*map(turns, names), strict=True))
        assert list(zip(*together, strict=True)) == [tuple(it) for it in alone]


def test_rows_beyond_a_full_archive_are_written(open_runtime):
    with open_runtime(**SWAPPED | {"archive": 1 << 18}) as rt, rt.session() as session, rt.session() as other:
        other.read(words(3))
        session.read(words(250))
        said(session)
        assert "are full" in session.stats.archive_failure
        begin, end = state_of(session).archive.positions
        before = cells_of(session)
        held = {
            at: set(state_of(session).block_loop.cache.positions(*at)) for at in itertools.product(range(2), range(2))
        }
        assert any(max(it) >= end > begin and min(it) < end for it in held.values())
        swap_out(rt, session, other)
        assert np.array_equal(cells_of(session), before)


def test_a_session_of_which_nothing_was_evicted_makes_no_archive(open_runtime):
    with open_runtime(**SWAPPED) as rt, rt.session() as session, rt.session() as other:
        other.read(words(3))
        session.read(words(5))
        before = cells_of(session)
        stored = swap_out(rt, session, other)
        assert (stored.archived.rows, stored.nbytes) == (None, len(before))
        assert state_of(session).archive.n_tokens == 0
        assert np.array_equal(cells_of(session), before)


def damage(archive):
    """Change the rows of an archive's first tokens."""
    file = archive._file.file
    file.seek(0)
    file.write(b"\xff" * archive._rows.segment_bytes)


def test_a_row_that_cannot_be_read_back_is_told(swapped):
    """The session ends, and its text can be read again by another one."""
    rt, session, other = swapped
    swap_out(rt, session, other)
    damage(state_of(session).archive)
    expected = r"what this session had read and said cannot be read back: .* a row of position \d+ has another checksum"
    with pytest.raises(edgekv.SessionEvictedError, match=expected):
        said(session)
    assert "word149" not in "".join(session.text())
    assert "word96" in "".join(session.text())
    assert said(other, n=3)


def test_a_file_of_other_rows_is_not_used(swapped):
    """Rows of another place have another checksum."""
    rt, session, other = swapped
    swap_out(rt, session, other)
    archive = state_of(session).archive
    file = archive._file.file
    size = archive._rows.segment_bytes
    file.seek(0)
    first, second = file.read(size), file.read(size)
    file.seek(0)
    file.write(second + first)
    with pytest.raises(edgekv.SessionEvictedError, match="cannot be read back"):
        said(session)


def test_a_checkpoint_that_cannot_be_read_back_is_done_without(open_runtime):
    """The tokens are read again, without a question as before, and archived anew."""
    with open_runtime(**ARCHIVED, focus=False) as rt, rt.session(history=True) as session, rt.session() as fresh:
        for it in (fresh, session):
            it.read(words(150))
        n = session.n_past
        session.read(words(60, "more"))
        checkpoint = state_of(session).history.checkpoints.before(n)
        assert (checkpoint.n_past, checkpoint.stored.archived.end) == (n, n)
        damage(state_of(session).archive)
        session.rewind(n)
        assert session.n_past == n
        assert said(session) == said(fresh)
        assert session.stats.recalled_cells > 0
