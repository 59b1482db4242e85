"""Archives of rows on a device: as many rows at once as its graphs hold come to the host, and go back.

Here ggml's CPU backend computes these graphs. Each test of archives holds as it does for the host, and a session leaves
the same bytes. `pytest --device rpc` runs the other tests of archives with rows on a device.
"""

from __future__ import annotations

import itertools

import pytest
from archived_kinds import ARCHIVED, KINDS
from small import SETTINGS, words
from test_archive import (  # noqa: F401 (they are tests of this module as well)
    file,
    open_archived,
    test_a_damaged_file_leaves_the_cells_as_they_were,
    test_a_damaged_value_gives_up_what_an_earlier_recall_filled,
    test_a_recall_in_steps_brings_what_one_brings,
    test_recalled_rows_are_to_the_bit_those_that_were_evicted,
    test_what_is_recalled_is_what_the_reference_finds_best,
    tokens_of,
)
from test_archive_faults import use_instead
from test_turned_archive import (  # noqa: F401 (likewise)
    test_a_hot_key_whose_row_cannot_be_read_is_turned_as_the_cell_has_it,
    test_keys_are_turned_once_from_what_was_archived,
)

from edgekv.archive.session_archive import Archive
from edgekv.archive.space import ArchiveSpace
from edgekv.binding.cache import Cache
from edgekv.binding.row_archive import RowArchive
from edgekv.generation.sampler import GREEDY

STAGED = {name: options for name, options in KINDS.items() if name != "slots"} | {
    "q4_0": {"kv_type": "q4_0"},
    "q8_0 turned, heads apart": {"kv_type": "q8_0", "reposition": "always", "policy": "keydiff+ada"},
    "a full archive, turned": {"archive": 1 << 18, "reposition": "always"},
}

# by graphs, evictions turn keys, which rounds otherwise
STAGINGS = [
    pytest.param(staging, options, id=f"{staging}-{name}")
    for name, options in STAGED.items()
    for staging in ("graphs", "copies")
    if staging == "copies" or "reposition" not in options
]


@pytest.fixture(autouse=True)
def staged(request, monkeypatch):
    """Rows that graphs copy, unless a test says how."""
    if "staging" not in getattr(getattr(request.node, "callspec", None), "params", {}):
        monkeypatch.setenv("EDGEKV_STAGING", "graphs")


def lived(open_runtime, how, monkeypatch, **options):
    """Return the replies of a session and the bytes of its cells, after recalls, rewinds and another session."""
    monkeypatch.setenv("EDGEKV_STAGING", how)
    found = []
    with open_runtime(**ARCHIVED | {"swap_memory": 0} | options) as rt, rt.session() as other:

        def chat(session, question):
            given = {"max_tokens": 20, "sampling": GREEDY, "allow_loops": True, "logprobs": 3}
            found.append(
                [(token.id, token.logprob) for piece in session.chat(question, **given) for token in piece.tokens]
            )
            found.append(session._conversation.state.block_loop.cache.snapshot().data.tobytes())
            assert session.stats.recalled_cells > 0

        with rt.session(history=True, checkpoint_bytes=0) as session:
            session.read(words(150))
            chat(session, "What was it?")
            n_past = session.n_past
            chat(session, "And then?")
            session.rewind(n_past)
            chat(session, "What else?")
            other.read(words(3))
            chat(session, "Is that all?")
    return found


@pytest.mark.usefixtures("talkative")
@pytest.mark.each_by_day("options", "staging")
@pytest.mark.parametrize(("staging", "options"), STAGINGS)
def test_a_session_leaves_what_it_leaves_on_the_host(open_runtime, monkeypatch, staging, options):
    expected = lived(open_runtime, "auto", monkeypatch, **options)
    assert lived(open_runtime, staging, monkeypatch, **options) == expected


@pytest.mark.parametrize("n_feeds", [1, 2])
def test_a_block_is_written_once_the_next_one_is_fed(open_runtime, monkeypatch, n_feeds):
    """A device computes the next block meanwhile: nothing of the writing waits for it (`tests/native -k late`)."""
    steps, feeds = [], "feed " * n_feeds

    def noted(owner, name):
        method = getattr(owner, name)

        def call(*arguments, **further):
            steps.append(name)
            return method(*arguments, **further)

        monkeypatch.setattr(owner, name, call)

    for owner, name in ((RowArchive, "take"), (Cache, "compact"), (Cache, "feed"), (RowArchive, "write")):
        noted(owner, name)
    with open_runtime(**ARCHIVED, ubatch=SETTINGS["block"] // n_feeds) as rt, rt.session() as session:
        session.read(words(150))
        first, *others, last = " ".join(steps).split("take ")[1:]
        assert first == f"write compact {feeds}"  # it has more than a block
        assert len(others) > 3
        assert set(others) == {f"compact {feeds}write "}
        assert last == "compact write"
        assert session.stats.archived_tokens == session.n_past


@pytest.mark.parametrize("n_feeds", [8, 9])
def test_a_reading_that_is_stopped_has_written_what_it_took(open_runtime, n_feeds):
    """The end is after a block, or in the midst of one."""
    feeds = itertools.count(1)
    with open_runtime(**ARCHIVED, ubatch=SETTINGS["block"] // 2) as rt:
        loop = rt.block_loop
        loop.archive = Archive(ArchiveSpace(None, 1 << 30))
        assert not loop.read(tokens_of(1000), lambda _n: next(feeds) < n_feeds)
        end = loop.archive.positions[1]
        assert end > 0
        assert {*range(end, loop.cache.n_past)} <= {*loop.cache.positions(0, 0).tolist()}


def test_what_a_reading_that_fails_took_is_written(open_runtime, monkeypatch):
    """Cells of these rows were evicted."""
    compact = Cache.compact

    def compact_and_fail(cache, *arguments, **further):
        compact(cache, *arguments, **further)
        raise ZeroDivisionError

    with open_runtime(**ARCHIVED) as rt, rt.session() as session:
        session.read(words(100))
        with monkeypatch.context() as patch:
            patch.setattr(Cache, "compact", compact_and_fail)
            with pytest.raises(ZeroDivisionError):
                session.read(words(100, "more"))
        assert session.stats.archived_tokens == session.n_past
        session.read(words(100, "most"))
        assert session.stats.archive_failure == ""
        assert session.stats.forgotten_tokens == 0


def test_rows_that_were_taken_and_cannot_be_written_are_named(open_runtime, monkeypatch):
    """The disk is full once the rows of a block have left the device."""
    with open_runtime(**ARCHIVED) as rt, rt.session() as session:
        session.read(words(100))
        archive = session._conversation.state.archive
        n_archived = archive.n_tokens
        compact = Cache.compact

        def compact_then_fill(cache, *arguments, **further):
            compact(cache, *arguments, **further)
            use_instead(archive, "/dev/full")

        monkeypatch.setattr(Cache, "compact", compact_then_fill)
        session.read(words(100, "more"))
        assert f"No space left on device; tokens from {n_archived:,} on are forgotten" in session.stats.archive_failure
        assert session.stats.archived_tokens == n_archived
