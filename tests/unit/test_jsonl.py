"""Files of JSON lines: nothing half-written stays, and nothing foreign is touched."""

import errno
import json
import os
import sys

import pytest

from edgekv.errors import ConfigError, InputError
from edgekv.store.jsonl import JsonlFile

OPENING = '{"id": "'


def rows(path):
    with JsonlFile(path, OPENING) as file:
        return [value for _, value in file.read()]


def test_lines_are_read_in_their_order_with_their_numbers(tmp_path):
    path = tmp_path / "new" / "rows.jsonl"
    with JsonlFile(path, OPENING) as file:
        for i in range(3):
            file.append({"id": str(i)})
        assert list(file.read()) == [(i + 1, {"id": str(i)}) for i in range(3)]


@pytest.mark.parametrize("n_kept", range(1, 12))
def test_a_cut_line_is_removed_wherever_it_is_cut(tmp_path, n_kept):
    path = tmp_path / "rows.jsonl"
    whole = b'{"id": "first"}\n'
    path.write_bytes(whole + b'{"id": "second"}\n'[:n_kept])
    assert rows(path) == [{"id": "first"}]
    assert path.read_bytes() == whole


@pytest.mark.parametrize("text", [b"milk", b"milk\n", b'{"id": "first"}\nmilk', b'{"other": 1', b"[" * 100_000 + b"\n"])
def test_what_is_no_such_file_is_refused_and_stays(tmp_path, text):
    path = tmp_path / "shopping.txt"
    path.write_bytes(text)
    with pytest.raises(InputError, match=r"line \d of .*shopping.txt is no result"):
        rows(path)
    assert path.read_bytes() == text


class Full:
    """A file on a disk that has room for half of what comes next."""

    def __init__(self, file):
        self._file = file
        self._has_room = True

    def __getattr__(self, name):
        return getattr(self._file, name)

    def write(self, data):
        if not self._has_room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._has_room = False
        return self._file.write(bytes(data)[: len(data) // 2])


def test_a_full_disk_leaves_no_half_of_a_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    with JsonlFile(path, OPENING) as file:
        file.append({"id": "first"})
        file._file = Full(file._file)
        with pytest.raises(ConfigError, match=r"cannot be written to .*: No space left on device"):
            file.append({"id": "second"})
    assert path.read_bytes() == b'{"id": "first"}\n'


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no such device")
def test_only_plain_files_take_lines(tmp_path):
    for path, why in ((tmp_path, "is a folder"), ("/dev/full", "is no plain file"), (tmp_path / "a" / "b", "written")):
        (tmp_path / "a").write_text("")
        with pytest.raises(ConfigError, match=why):
            JsonlFile(type(tmp_path)(path), OPENING)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="whoever may do everything may write there")
def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ConfigError, match="Permission denied; name another file"):
        JsonlFile(tmp_path / "rows.jsonl", OPENING)


def test_one_process_at_a_time(tmp_path):
    path = tmp_path / "rows.jsonl"
    with JsonlFile(path, OPENING) as file:
        if sys.platform != "win32":
            with pytest.raises(ConfigError, match="in use by another process"):
                JsonlFile(path, OPENING)
        file.append({"id": "ä"})
    assert json.loads(path.read_text()) == {"id": "ä"}
