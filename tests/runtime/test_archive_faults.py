"""Archives whose file cannot be written, or is not what was written: replies go on, and what they lack is said."""

from __future__ import annotations

import itertools
import os
import random
from io import FileIO

import pytest
from small import SETTINGS, words

from edgekv.archive import session_archive
from edgekv.binding.row_archive import SEGMENT_TOKENS
from edgekv.generation.sampler import GREEDY

ARCHIVED = {"policy": "keydiff", "archive": "4MiB", "reposition": "never"}
RECALLED = SETTINGS["block"] // 2
HEADS = list(itertools.product(range(2), range(2)))
EIO = "/proc/self/mem"  # its first bytes cannot be read or written
pytestmark = pytest.mark.usefixtures("talkative")


@pytest.fixture(scope="module")
def archived(open_runtime):
    with open_runtime(**ARCHIVED) as rt:
        yield rt


def said(session, question="What was it?", n=40):
    return "".join(session.chat(question, max_tokens=n, sampling=GREEDY))


def archive_of(session):
    return session._conversation.state.archive


def use_instead(archive, path):
    """Have the file of an archive be another one."""
    other = os.open(path, os.O_RDWR)
    os.dup2(other, archive._file.fileno())
    os.close(other)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_disk_that_is_full_or_fails_ends_no_reply(archived, at_once, monkeypatch):
    """/dev/full takes nothing, and what it gives is not what was written."""
    with archived.session() as session:
        archive = archive_of(session)
        if at_once:
            monkeypatch.setattr(session_archive, "temp_file", lambda _place: FileIO("/dev/full", "r+"))
            session.read(words(150))
            assert "cannot be written: No space left on device; tokens from 0 on are forgotten" in archive.failure
            assert archive.n_tokens == 0
        else:
            session.read(words(150))
            use_instead(archive, "/dev/full")
        assert said(session, n=4)
        assert session.stats.recalled_cells == 0
        assert session.stats.archive_failure == archive.failure
        assert ("has another checksum" in archive.failure) != at_once
        assert said(session, words(60), n=4)
        assert session.stats.recalled_cells == 0


def test_after_a_full_disk_a_session_that_goes_back_replies(archived, monkeypatch):
    """The rows that were archived by then are recalled, and no error of the archive ends a reply."""
    with archived.session(history=True) as session:
        session.read(words(100))
        n = session.n_past
        session.read(words(50, "more"))
        disk = os.dup(archive_of(session)._file.fileno())
        use_instead(archive_of(session), "/dev/full")
        session.read(words(100, "most"))
        assert "No space left" in session.stats.archive_failure
        os.dup2(disk, archive_of(session)._file.fileno())
        os.close(disk)
        session.rewind(n // 2)
        session.read(words(200, "other"))
        assert said(session, n=4)
        assert session.stats.recalled_cells > 0


@pytest.mark.parametrize("folder", ["gone", "/sys"])
def test_a_folder_that_takes_no_file_is_named_when_something_is_evicted(open_runtime, tmp_path, folder):
    """In /sys nobody may make a file, not even root."""
    reason = "Permission denied" if folder == "/sys" else "No such file or directory"
    folder = tmp_path / folder
    with open_runtime(**ARCHIVED, swap_dir=tmp_path) as rt, rt.session() as session:
        archive_of(session).space.folder = str(folder)
        assert said(session, "Hi", n=2)
        assert session.stats.archive_failure == ""
        session.read(words(150))
        assert said(session, n=2)
        stats = session.stats
        assert f"{folder} takes no archive: {reason}; tokens from 0 on" in stats.archive_failure
        assert (stats.archived_tokens, stats.recallable_tokens) == (0, 0)
        assert stats.forgotten_tokens == stats.tokens_seen - stats.kept_tokens > 0


def damage_values(session):
    """Overwrite the archived values of all heads, and none of their keys."""
    cache, archive = session._conversation.state.block_loop.cache, archive_of(session)
    marks = {False: 8, True: 4}  # a checksum, and a key's RoPE position
    keys, values = (SEGMENT_TOKENS * (n + cache.row_format(0, values=at).stride_bytes) for at, n in marks.items())
    n_bytes = os.fstat(archive._file.fileno()).st_size
    for place in range(keys, n_bytes, keys + values):
        os.pwrite(archive._file.fileno(), bytes(min(values, n_bytes - place)), place)


def fail_from_now(session):
    use_instead(archive_of(session), EIO)


# two rounds of four heads; a file that fails while the second one scans leaves what the first one brought
@pytest.mark.parametrize(
    ("fail", "after", "recalled", "reason"),
    [
        (fail_from_now, 0, 0, "cannot be read: Input/output error"),
        (fail_from_now, 3, 0, "cannot be read: Input/output error"),
        (fail_from_now, 4, RECALLED, "cannot be read: Input/output error"),
        (fail_from_now, 7, RECALLED, "cannot be read: Input/output error"),
        (damage_values, 0, 0, "has another checksum"),
        (damage_values, 7, RECALLED, "has another checksum"),
    ],
)
def test_a_recall_that_fails_in_its_midst_counts_the_cells_that_it_leaves(archived, fail, after, recalled, reason):
    with archived.session() as session:
        session.read(words(150))
        cache, hot = session._conversation.state.block_loop.cache, {}

        def watch(progress):
            if progress.heads_total and progress.heads_scanned == 0:
                hot.update({at: set(cache.positions(*at).tolist()) for at in HEADS}, n_past=cache.n_past)
            if progress.heads_total and progress.heads_scanned == after:
                fail(session)

        assert "".join(session.chat("What?", max_tokens=4, sampling=GREEDY, progress=watch))
        found = {at: {it for it in cache.positions(*at).tolist() if it < hot["n_past"]} for at in HEADS}
        assert all(hot[at] <= found[at] for at in HEADS)
        assert sum(len(found[at] - hot[at]) for at in HEADS) == recalled * len(HEADS)
        stats = session.stats
        assert (stats.recalls, stats.recalled_cells) == (1, recalled)
        assert reason in stats.archive_failure
        assert said(session, n=3 * SETTINGS["block"])  # long enough for evictions
        assert (session.stats.recalls, session.stats.recalled_cells, session.stats.scanned_tokens) == (0, 0, 0)


@pytest.mark.parametrize("seed", range(5))
def test_a_file_that_is_cut_or_has_other_bytes_is_noticed(archived, seed):
    """A scan reads all keys, so any foreign byte of theirs is noticed; other values only if their tokens are wanted."""
    chance = random.Random(seed)
    with archived.session() as session:
        session.read(words(150))
        fd = archive_of(session)._file.fileno()
        n_bytes = os.fstat(fd).st_size
        if chance.random() < 0.5:
            os.truncate(fd, chance.randrange(n_bytes // 2))
        else:
            os.pwrite(fd, chance.randbytes(4096), 0)
        assert said(session, n=4)
        assert session.stats.recalled_cells == 0
        assert "the archive " in session.stats.archive_failure
        assert "; what was evicted is forgotten" in session.stats.archive_failure
        assert session.stats.forgotten_tokens == session.stats.tokens_seen - session.stats.kept_tokens > 0


@pytest.mark.parametrize("path", [EIO, "/dev/full"])
def test_a_session_that_begins_again_has_another_file(archived, path):
    with archived.session(history=True) as session:
        session.read(words(100))
        use_instead(archive_of(session), path)
        said(session, n=2)
        assert "the archive " in session.stats.archive_failure
        session.rewind(0)
        session.read(words(150, "other"))
        said(session, n=2)
        assert (session.stats.archive_failure, session.stats.recalled_cells) == ("", RECALLED)


def test_after_a_full_disk_a_session_that_goes_back_writes_again(archived):
    """If the disk is still full, that is said again."""
    with archived.session() as session:
        session.read(words(60))
        snapshot = session.snapshot()
        archive, n = archive_of(session), session.n_past
        session.read(words(30))
        assert archive.n_tokens > n
        disk = os.dup(archive._file.fileno())
        use_instead(archive, "/dev/full")
        for other in ("more", "other"):
            session.restore(snapshot)
            session.read(words(60, other))
            assert "No space left" in archive.failure
        os.dup2(disk, archive._file.fileno())
        os.close(disk)
        session.restore(snapshot)
        session.read(words(60, "another"))
        said(session, n=2)
        assert archive.failure == ""
        assert archive.n_tokens > n + 60
        assert session.stats.recalled_cells == RECALLED
