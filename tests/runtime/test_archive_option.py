"""The option `archive`: off, a size, or auto; what it does not go with, and where its file lies."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from small import words

import edgekv
from edgekv.archive.row_files import RowsFile
from edgekv.archive.session_archive import Archive
from edgekv.archive.space import ArchiveSpace, disk_folder, free_share, is_in_memory
from edgekv.binding.row_archive import SEGMENT_TOKENS
from edgekv.errors import ConfigError
from edgekv.generation.sampler import GREEDY
from edgekv.options import Options
from edgekv.store.temp_array import temp_file

FREE = 1 << 34  # bytes of a disk
WITH_DEVICES = [{"gpu_layers": 1}, {"rpc": "localhost:50052", "isolated": True}]


@pytest.fixture
def disk(monkeypatch):
    """A disk of which FREE bytes are free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=FREE))


@pytest.mark.parametrize("options", WITH_DEVICES, ids=str)
@pytest.mark.parametrize("archive", ["auto", "1MiB"])
def test_rows_on_a_device_are_archived_as_well(archive, options):
    assert Options(archive=archive, **options).archives


@pytest.mark.parametrize(
    ("archive", "n_bytes"), [("off", 0), (0, 0), ("0", 0), ("auto", None), ("1MiB", 1 << 20), (1 << 30, 1 << 30)]
)
def test_the_value_is_off_auto_or_a_size(archive, n_bytes):
    options = Options(archive=archive)
    assert (options.archive_bytes, options.archives) == (n_bytes, n_bytes != 0)


@pytest.mark.parametrize("archive", ["much", "always", None, True, -1, "1"])
def test_other_values_are_refused(archive):
    with pytest.raises(ConfigError, match=r"archive=.* is not possible: .*, or auto, or off"):
        Options(archive=archive)


def test_by_default_nothing_is_forgotten(tiny_model):
    options = {"memory": "4GiB", "budget": 64, "block": 32, "threads": 1}
    found = []
    for further in ({}, {"archive": "off"}):
        with edgekv.Runtime(tiny_model(), **options, **further) as rt, rt.session() as session:
            session.read(words(200))
            "".join(session.chat("What?", max_tokens=2))
            found.append((rt.plan.archive, session.stats.recalls, session.stats.forgotten_tokens > 0))
    assert found == [("auto", 1, False), ("off", 0, True)]


def test_auto_is_a_quarter_of_what_the_disk_has_free(open_runtime, disk):
    with open_runtime(archive="auto") as rt:
        plan = rt.plan
        assert rt.options.archives
        assert (plan.archive, plan.archive_bytes, plan.archive_obstacle) == ("auto", FREE // 4, "")
        assert plan.archive_tokens == plan.archive_bytes // (SEGMENT_TOKENS * plan.archive_token_bytes) * SEGMENT_TOKENS
        assert plan.as_dict()["archive_tokens"] == plan.archive_tokens
        with rt.session() as session:
            session.read(words(200))
            "".join(session.chat("What?", max_tokens=2))
            assert session.stats.recalled_cells > 0
            assert session.stats.archive_failure == ""
            n_segments = -(-session.stats.archived_tokens // SEGMENT_TOKENS)
            file = session._conversation.state.archive._file
            assert file.n_bytes <= n_segments * SEGMENT_TOKENS * plan.archive_token_bytes
            assert 0 < session.stats.archived_bytes <= session.stats.archived_tokens * plan.archive_token_bytes


def test_the_plan_of_a_worker_has_the_same_archive(open_runtime):
    with open_runtime(archive="1MiB") as here, open_runtime(archive="1MiB", isolated=True) as isolated:
        names = ("archive", "archive_bytes", "archive_token_bytes", "archive_tokens", "archive_obstacle")
        assert {name: getattr(here.plan, name) for name in names} == {
            name: getattr(isolated.plan, name) for name in names
        }
        assert here.plan.archive_tokens > 0


def test_without_a_disk_auto_is_off_and_a_size_is_refused(open_runtime, monkeypatch, tmp_path):
    monkeypatch.setattr("edgekv.archive.space.is_in_memory", lambda _folder: True)
    with open_runtime(archive="auto") as rt:
        assert (rt.options.archive, rt.options.archives) == ("off", False)
        assert rt.plan.archive_obstacle.startswith("no folder of temporary files")
    with pytest.raises(ConfigError, match=r"archive=1MiB needs a disk, and no folder .* name a folder with swap_dir"):
        open_runtime(archive="1MiB")
    with open_runtime(archive="auto", swap_dir=tmp_path) as rt:  # a folder that was named is taken as it is
        assert rt.options.archives


def test_archives_lie_on_a_disk(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    in_memory = {tmp_path}
    monkeypatch.setattr("edgekv.archive.space.is_in_memory", lambda folder: folder in in_memory)
    assert disk_folder() == "/var/tmp"
    in_memory.add(Path("/var/tmp"))
    assert disk_folder() is None
    in_memory.clear()
    assert disk_folder() == str(tmp_path)


def test_where_no_folder_takes_a_file_there_is_none_for_archives(monkeypatch):
    def no_folder():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", no_folder)
    assert disk_folder() is None


def test_archives_of_one_engine_promise_no_byte_twice(disk, tmp_path):
    assert free_share(str(tmp_path)) == FREE // 4
    assert free_share(str(tmp_path), FREE - 40) == 10
    assert free_share(str(tmp_path), 2 * FREE) == 0
    assert ArchiveSpace(str(tmp_path), 5).limit() == 5
    space = ArchiveSpace(str(tmp_path), None)
    archives = [Archive(space), Archive(space)]
    assert space.limit() == FREE // 4  # none of them has made its file
    file = temp_file(str(tmp_path))
    archives[0]._files, archives[0]._limit_bytes = (RowsFile(file),), 1000
    file.write(bytes(400))
    assert space.limit() == (FREE - 600) // 4
    archives[0].close()
    assert space.limit() == FREE // 4


def test_a_folder_that_is_not_there_yet_has_nothing_free(tmp_path):
    assert free_share(str(tmp_path / "later")) == 0
    assert edgekv.Options(archive="auto", swap_dir=tmp_path / "later").archives


def test_the_kind_of_a_file_system_is_that_of_the_innermost_mount(monkeypatch):
    mounts = "/dev/sda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/sdb /tmp/my\\040disk ext4 rw 0 0\n"
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, *encoding: mounts if str(path) == "/proc/self/mounts" else read(path)
    )
    found = {name: is_in_memory(Path(name)) for name in ("/var", "/tmp", "/tmp/x/y", "/tmp/my disk/z")}
    assert found == {"/var": False, "/tmp": True, "/tmp/x/y": True, "/tmp/my disk/z": False}


def test_two_runtimes_in_one_folder_leave_nothing_when_they_are_killed(open_runtime, tmp_path, workers):
    """Each has files without names, and recalls from its own."""
    options = {"policy": "keydiff", "archive": "4MiB", "reposition": "never", "swap_dir": tmp_path}
    with open_runtime(**options) as here, open_runtime(**options, isolated=True) as isolated:
        sessions = [rt.session() for rt in (here, isolated)]
        for session in sessions:
            session.read(words(150))
        said = ["".join(session.chat("What?", max_tokens=8, sampling=GREEDY)) for session in sessions]
        assert said[0] == said[1]
        assert [session.stats.recalled_cells for session in sessions] == [16, 16]
        assert list(tmp_path.iterdir()) == []
        (worker,) = workers
        worker.kill()
        worker.wait()
        assert list(tmp_path.iterdir()) == []
        assert "".join(sessions[0].chat("And?", max_tokens=2))
