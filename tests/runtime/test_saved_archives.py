"""A saved session has its archive with it: it recalls what was evicted before, and goes back, in any later process."""

from __future__ import annotations

import numpy as np
import pytest
from archived_kinds import ARCHIVED, KINDS, each_kind
from small import words

from edgekv.archive import stored_rows
from edgekv.binding.cache import Cache
from edgekv.binding.row_archive import SEGMENT_TOKENS
from edgekv.conversations import conversation
from edgekv.errors import SessionFileError
from edgekv.generation.sampler import GREEDY
from edgekv.memory.sizes import format_size
from edgekv.store.snapshot_file import Section, open_snapshot_file, sizes_of

SAVED = KINDS | {
    "carried scores": {"policy": "h2o"},
    "drafts": {"prompt_lookup": "on"},
    "isolated": {"isolated": True},
}
pytestmark = pytest.mark.usefixtures("talkative")


def said(session, question="What was it?", n=40):
    return "".join(session.chat(question, max_tokens=n, sampling=GREEDY, allow_loops=True))


def told(session):
    """Return what a session says next, which recalls."""
    found = said(session), session.stats.recalled_cells, session.stats.archived_tokens
    assert found[1] > 0
    assert (session.stats.forgotten_tokens, session.stats.archive_failure) == (0, "")
    return found


@pytest.mark.parametrize("options", each_kind(SAVED))
def test_a_loaded_session_says_what_the_saved_one_says(open_runtime, tmp_path, options):
    with open_runtime(**ARCHIVED | options) as rt, rt.session(history=True) as session:
        session.read(words(150))
        told(session)
        session.save(tmp_path / "it.session")
        expected = told(session), told(session)
    with open_runtime(**ARCHIVED | options) as rt, rt.load_session(tmp_path / "it.session") as session:
        first = told(session)
        session.save(tmp_path / "it.session")  # rows of the file that is replaced, and of its own
        assert (first, told(session)) == expected
        with rt.load_session(tmp_path / "it.session") as again:
            assert told(again) == expected[1]


def test_a_session_with_more_cells_takes_the_place_of_one_that_archived(open_runtime, tmp_path):
    """Tokens that are evicted of it at once do not go to the other one's archive."""
    with open_runtime(**ARCHIVED | {"budget": 112}) as rt, rt.session() as session:
        session.read(words(150))
        session.save(tmp_path / "it.session")
    with open_runtime(**ARCHIVED) as rt, rt.session() as before:
        before.read("a b c")
        with rt.load_session(tmp_path / "it.session", instead_of=before) as session:
            told(session)


def test_a_file_has_the_segments_and_nothing_twice(open_runtime, tmp_path):
    with open_runtime(**ARCHIVED) as rt, rt.session() as session:
        session.read(words(150))
        session.save(tmp_path / "with", archive=True)
        session.save(tmp_path / "without", archive=False)
        n_segments = -(-session.n_past // SEGMENT_TOKENS)
        n_rows = n_segments * SEGMENT_TOKENS * rt.plan.archive_token_bytes
        with open_snapshot_file(tmp_path / "with") as file, open_snapshot_file(tmp_path / "without") as other:
            assert file.n("archive") == n_rows
            assert {name: file.n(name) for name in ("cells", "archived")} == {"cells": other.n("cells"), "archived": 8}
            assert "archive" not in other
        others = format_size((tmp_path / "with").stat().st_size - n_rows)
        assert sizes_of(tmp_path / "with") == f"{others}, and {format_size(n_rows)} of archive"
        assert "archive" not in sizes_of(tmp_path / "without")


def test_to_load_takes_the_disk_of_one_segment(open_runtime, tmp_path):
    with open_runtime(**ARCHIVED) as rt, rt.session() as session:
        session.read(words(400))
        session.save(tmp_path / "it.session")
        with rt.load_session(tmp_path / "it.session") as loaded:
            archive = loaded._conversation.state.archive
            assert archive.n_tokens == session.n_past > 4 * SEGMENT_TOKENS
            assert archive._file.n_bytes <= SEGMENT_TOKENS * rt.plan.archive_token_bytes


def test_a_loaded_session_goes_back_without_reading(open_runtime, tmp_path, monkeypatch):
    with open_runtime(**ARCHIVED) as rt, rt.session(history=True) as session:
        session.read(words(150))
        session.save(tmp_path / "it.session")
        session.rewind(300)
        expected = told(session)
    with open_runtime(**ARCHIVED) as rt, rt.load_session(tmp_path / "it.session") as session:
        with monkeypatch.context() as patch:
            patch.setattr(Cache, "feed", None)
            session.rewind(300)
        assert told(session) == expected


def test_a_smaller_and_a_larger_budget_recall_as_well(open_runtime, tmp_path):
    with open_runtime(**ARCHIVED) as rt, rt.session() as session:
        session.read(words(150))
        session.save(tmp_path / "it.session")
    for budget in (48, 128, 512):
        with open_runtime(**ARCHIVED | {"budget": budget}) as rt, rt.load_session(tmp_path / "it.session") as session:
            told(session)


def test_without_its_archive_it_archives_from_there_on(open_runtime, tmp_path):
    with open_runtime(**ARCHIVED) as rt, rt.session() as session:
        session.read(words(150))
        session.save(tmp_path / "it.session", archive=False)
        with rt.load_session(tmp_path / "it.session") as loaded:
            said(loaded)
            assert loaded.stats.archived_tokens < 100
            assert loaded.stats.forgotten_tokens > 0


def test_a_runtime_without_archives_loads_the_cells(open_runtime, tmp_path):
    with open_runtime(**ARCHIVED) as rt, rt.session() as session:
        session.read(words(150))
        session.save(tmp_path / "with")
        session.save(tmp_path / "without", archive=False)
    with open_runtime(**ARCHIVED | {"archive": "off", "focus": False}) as rt:
        replies = []
        for name in ("with", "without"):
            with rt.load_session(tmp_path / name) as session:
                replies.append(said(session))
        assert replies[0] == replies[1]


def test_rows_of_another_type_are_said_to_be_forgotten(open_runtime, tmp_path):
    with open_runtime(**ARCHIVED) as rt, rt.session() as session:
        session.read(words(150))
        session.save(tmp_path / "it.session")
    with open_runtime(**ARCHIVED | {"kv_type": "q8_0"}) as rt, rt.load_session(tmp_path / "it.session") as session:
        for _ in range(2):
            said(session)
            assert "its rows are of another type; open a runtime with the kv_type" in session.stats.archive_failure
            assert session.stats.forgotten_tokens > 0
        session.read(words(100))
        said(session)
        assert session.stats.recalled_cells > 0  # tokens that came since


def test_a_smaller_limit_keeps_what_came_first(open_runtime, tmp_path):
    with open_runtime(**ARCHIVED) as rt, rt.session() as session:
        session.read(words(400))
        session.save(tmp_path / "it.session")
        limit = 4 * SEGMENT_TOKENS * rt.plan.archive_token_bytes
    with open_runtime(**ARCHIVED | {"archive": limit}) as rt, rt.load_session(tmp_path / "it.session") as session:
        said(session)
        assert session.stats.archived_tokens == 4 * SEGMENT_TOKENS
        assert session.stats.recalled_cells > 0
        assert "are full; tokens from 512 on" in session.stats.archive_failure


@pytest.fixture
def failure_after(open_runtime, tmp_path, monkeypatch):
    """A function that saves an archive as these sections, loads it, and returns what the next reply says of it."""

    def told_of(sections):
        monkeypatch.setattr(conversation, "archive_sections", sections)
        with open_runtime(**ARCHIVED) as rt, rt.session() as session:
            session.read(words(150))
            session.save(tmp_path / "it.session")
            with rt.load_session(tmp_path / "it.session") as loaded:
                said(loaded)
                assert loaded.stats.forgotten_tokens > 0
                return loaded.stats.archive_failure

    return told_of


@pytest.mark.parametrize("positions", [[0], [5, 5], [-1, 100], [0, 1 << 30], [0, 200], [0, 100, 200]])
def test_impossible_positions_are_said_and_nothing_is_read_by_them(failure_after, positions):
    def sections(archive, cache):
        _, rows = stored_rows.archive_sections(archive, cache)
        return [Section.of("archived", np.array(positions, np.int32)), rows]

    assert "cannot be read" in failure_after(sections)


def test_rows_of_another_place_are_not_what_was_written(failure_after):
    def sections(archive, cache):
        positions, rows = stored_rows.archive_sections(archive, cache)
        pieces = [piece.copy() for piece in rows.pieces]
        whole = np.concatenate(pieces)
        half = len(whole) // 2
        return [positions, Section("archive", rows.n_bytes, (whole[half:], whole[:half]))]

    assert "is not what was written" in failure_after(sections)


def test_a_damaged_file_is_refused_whole(open_runtime, tmp_path):
    path = tmp_path / "it.session"
    with open_runtime(**ARCHIVED) as rt, rt.session() as session:
        session.read(words(150))
        session.save(path)
        with open(path, "r+b") as file:
            file.seek(-1000, 2)
            file.write(b"\xff\x00")
        with pytest.raises(SessionFileError, match="checksum"):
            rt.load_session(path)
