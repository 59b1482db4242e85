"""Sessions with an archive: each recalls from its own, and says what it would alone, wherever it rests meanwhile."""

from __future__ import annotations

import itertools
import os
import pickle
from pathlib import Path

import pytest
from small import SETTINGS, words

import edgekv
from edgekv.archive.folders import archive_folder, is_in_memory
from edgekv.errors import ConfigError, SessionFileError
from edgekv.generation.sampler import GREEDY

ARCHIVED = {"policy": "keydiff", "archive": "1MiB", "reposition": "never"}
RECALLED = SETTINGS["block"] // 2
pytestmark = pytest.mark.usefixtures("talkative")


@pytest.fixture(scope="module")
def archived(open_runtime):
    with open_runtime(**ARCHIVED) as rt:
        yield rt


def said(session, question="What was it?", n=40):
    return "".join(session.chat(question, max_tokens=n, sampling=GREEDY))


def kept(session):
    return [session.kept_positions(*at).tolist() for at in itertools.product(range(2), range(2))]


def conversation(session, i):
    """Yield after every step what a session says and holds."""
    session.read(words(90, f"book{i}-"))
    yield kept(session)
    for n, question in ((12, "What?"), (40, words(50, f"more{i}-")), (12, "And then?")):
        yield from session.chat(question, max_tokens=n, sampling=GREEDY)
        stats = session.stats
        yield kept(session), stats.recalls, stats.recalled_cells, stats.archived_tokens


def alone(runtime, i):
    with runtime.session() as session:
        return list(conversation(session, i))


def test_a_prompt_recalls_what_was_evicted(archived):
    with archived.session() as session:
        session.chat("Hi", max_tokens=1)
        session.read(words(200))
        assert session.stats.recalls == 0  # without a reply there is nothing to recall for
        said(session, n=1)
        stats = session.stats
        assert (stats.recalls, stats.recalled_cells) == (1, RECALLED)
        assert 0 < stats.archived_tokens <= stats.tokens_seen
        assert stats.cells_used > SETTINGS["budget"]


def test_it_recalls_again_after_each_eviction_of_a_reply(archived):
    with archived.session() as session:
        session.read(words(200))
        said(session, n=3 * SETTINGS["block"])
        stats = session.stats
        assert stats.recalls == 1 + (stats.evictions - 1)
        assert stats.recalls >= 3
        assert stats.recalled_cells == RECALLED * stats.recalls


def test_what_fits_is_neither_recalled_nor_archived(archived):
    with archived.session() as session:
        said(session, "Hi", n=8)
        assert (session.stats.recalls, session.stats.archived_tokens) == (0, 0)


def test_sessions_in_turn_say_what_they_say_alone(archived):
    expected = [alone(archived, i) for i in range(3)]
    sessions = [archived.session() for _ in range(3)]
    steps = zip(*(conversation(session, i) for i, session in enumerate(sessions)), strict=False)
    found = list(map(list, zip(*steps, strict=True)))
    n = min(map(len, expected))
    assert [it[:n] for it in found] == [it[:n] for it in expected]
    assert any(step[1] for step in expected[0] if isinstance(step, tuple))
    for session in sessions:
        session.close()


@pytest.mark.parametrize("options", [{"isolated": True}, {"parallel": 2, "repack": False}])
def test_a_session_says_the_same_in_a_worker_and_beside_slots(archived, open_runtime, options):
    expected = alone(archived, 0)
    with open_runtime(**ARCHIVED | options) as rt:
        assert alone(rt, 0) == expected


def test_a_session_that_goes_back_archives_what_it_reads_instead(archived):
    with archived.session(log=True) as session, archived.session(log=True) as fresh:
        session.read(words(150))
        n = session.n_past
        expected = said(session)
        session.rewind(n)
        assert said(session) == expected
        session.rewind(n // 2)
        session.read(words(150, "other"))
        found, n_archived = said(session), session.stats.archived_tokens
        assert n_archived <= session.n_past
        fresh.read(words(150))
        fresh.rewind(n // 2)
        fresh.read(words(150, "other"))
        assert (said(fresh), fresh.stats.archived_tokens) == (found, n_archived)


def test_a_restored_session_recalls_as_it_did_before(archived):
    with archived.session() as session:
        session.read(words(150))
        snapshot = session.snapshot()
        expected = said(session, n=3 * SETTINGS["block"])
        for _ in range(2):
            session.restore(snapshot)
            assert said(session, n=3 * SETTINGS["block"]) == expected
            assert session.stats.recalled_cells > 0


def begun_anew(session):
    """Return True if a session that was just restored recalls nothing of what was evicted before."""
    said(session, n=1)
    return session.stats.recalled_cells == 0 and session.stats.archived_tokens < SETTINGS["block"]


def test_a_snapshot_whose_tokens_gave_way_to_others_begins_the_archive_anew(archived):
    with archived.session() as session:
        session.read(words(60))
        early = session.snapshot()
        session.read(words(100))
        late = session.snapshot()
        session.restore(early)
        session.read(words(200, "other"))
        session.restore(late)
        assert begun_anew(session)


@pytest.mark.parametrize("other", [False, True], ids=["pickled", "of another session"])
def test_a_snapshot_from_elsewhere_begins_the_archive_anew(archived, other):
    with archived.session() as session, archived.session() as second:
        session.read(words(150))
        snapshot = session.snapshot()
        if other:
            second.read(words(150, "other"))
            second.restore(snapshot)
            assert begun_anew(second)
        else:
            session.restore(pickle.loads(pickle.dumps(snapshot)))
            assert begun_anew(session)
        session.read(words(100))
        said(session, n=1)
        assert session.stats.recalled_cells > 0


def test_a_loaded_session_archives_from_there_on(archived, tmp_path):
    with archived.session() as session:
        session.read(words(150))
        session.save(tmp_path / "it.edgekv")
        n = session.n_past
    with archived.load_session(tmp_path / "it.edgekv") as session:
        session.read(words(100, "more"))
        said(session, n=1)
        assert 0 < session.stats.archived_tokens <= session.n_past - n


def test_with_an_archive_keys_stay_up_to_the_trained_context(open_runtime):
    """Without one they are turned from its half on."""
    with open_runtime(**ARCHIVED | {"reposition": "auto"}) as rt, rt.session() as session:
        session.read(words(250))
        assert rt.model.n_ctx_train // 2 < session.n_past < rt.model.n_ctx_train - 100
        said(session, n=2)
        assert (session.stats.recalled_cells, session.stats.archive_failure) == (RECALLED, "")


def test_turned_keys_end_recall_and_it_is_said(open_runtime):
    with open_runtime(**ARCHIVED | {"reposition": "always"}) as rt, rt.session() as session:
        session.read(words(150))
        assert said(session, n=2)
        assert session.stats.recalled_cells == 0
        assert "keys were turned to other positions" in session.stats.archive_failure


def test_the_file_of_a_closed_session_is_gone(archived):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with archived.session() as session:
            session.read(words(150))
            said(session, n=2)
    archived.session().close()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def use_instead(archive, path):
    """Have the file of an archive be another one."""
    other = os.open(path, os.O_RDWR)
    os.dup2(other, archive._file.fileno())
    os.close(other)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_disk_that_is_full_or_fails_ends_no_reply(archived, at_once):
    """/dev/full takes nothing, and what it gives is not what was written."""
    with archived.session() as session:
        archive = session._conversation.state.archive
        if at_once:
            use_instead(archive, "/dev/full")
            session.read(words(150))
            assert "cannot be written: No space left on device" in archive.failure
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "h2o"}, "does not go with policy=h2o"),
        ({"policy": "keydiff+critical"}, r"does not go with policy=keydiff\+critical"),
        ({"policy": "keydiff+merge"}, r"without carried scores, \+critical, \+merge and replay"),
        ({"policy": "replay"}, "does not go with policy=replay"),
        ({"focus_policy": "snapkv"}, "does not go with focus_policy=snapkv, which reads texts with a probe"),
        ({"gpu_layers": 1}, "does not go with gpu_layers=1, which keeps cells on a device"),
        ({"archive": "much"}, "much"),
    ],
)
def test_what_does_not_go_with_an_archive_is_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        edgekv.Options(**{"archive": "1MiB"} | options)


def test_a_folder_that_takes_no_file_is_named(open_runtime, tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    with open_runtime(**ARCHIVED, swap_dir=folder) as rt:
        folder.rmdir()
        with pytest.raises(SessionFileError, match=f"{folder} takes no archive"):
            rt.session()


def test_archives_lie_on_a_disk(monkeypatch, tmp_path):
    monkeypatch.setattr("edgekv.archive.folders.is_in_memory", lambda folder: True)
    assert archive_folder(None) == "/var/tmp"
    assert archive_folder(str(tmp_path)) == str(tmp_path)  # a folder that was named is taken as it is
    monkeypatch.setattr("edgekv.archive.folders.is_in_memory", lambda folder: False)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert archive_folder(None) == str(tmp_path)


def test_the_kind_of_a_file_system_is_that_of_the_innermost_mount(monkeypatch):
    mounts = "/dev/sda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/sdb /tmp/my\\040disk ext4 rw 0 0\n"
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, *encoding: mounts if str(path) == "/proc/self/mounts" else read(path)
    )
    found = {name: is_in_memory(Path(name)) for name in ("/var", "/tmp", "/tmp/x/y", "/tmp/my disk/z")}
    assert found == {"/var": False, "/tmp": True, "/tmp/x/y": True, "/tmp/my disk/z": False}
