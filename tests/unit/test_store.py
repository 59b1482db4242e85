"""Files that are whole or not there: the format, what is refused of it, and writers that die or race."""

from __future__ import annotations

import json
import os
import sys
import threading
import zlib
from contextlib import ExitStack
from pathlib import Path
from subprocess import PIPE

import numpy as np
import pytest
from children import LIMIT_S, started

import edgekv
from edgekv.models.header import header_digest, read_header
from edgekv.store.atomic_write import SUFFIX, atomic_write, remove_leftovers
from edgekv.store.shared_files import lock
from edgekv.store.snapshot_file import (
    FRAME,
    MAX_HEADER_BYTES,
    VERSION,
    Section,
    open_snapshot_file,
    write_snapshot_file,
)
from edgekv.store.temp_folder import TempFolder

ABOUT = {"system": "Sei knapp: ä", "n": 2**40, "floats": [0.1, 1e-300], "none": None}


def sections():
    yield Section.of("cells", np.arange(300, dtype=np.uint8))
    yield Section.of("none", np.empty(0, np.float32))
    yield Section("tokens", 20, iter([np.arange(2, dtype=np.int32), np.arange(3, dtype=np.int32)]))


def write(path, about, sections):
    with atomic_write(path) as file:
        write_snapshot_file(file, about, sections)


def check(path):
    with open_snapshot_file(path):
        pass


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a"
    write(path, ABOUT, list(sections()))
    return path


def summed(data):
    return data + zlib.crc32(data).to_bytes(4, "little")


def framed(header):
    return FRAME.pack(b"edgekv\r\n", VERSION, len(header), FRAME.size + len(header) + 4) + header


# ---- the format ----


def test_the_next_piece_may_overwrite_the_last_one(tmp_path):
    def pieces():
        buffer = np.empty(2, np.int32)
        for i in range(5):
            buffer[:] = i
            yield buffer

    write(tmp_path / "a", {}, [Section("tokens", 40, pieces())])
    with open_snapshot_file(tmp_path / "a") as file:
        assert np.concatenate(list(file.numbers("tokens"))).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]


def test_what_is_written_is_read(path):
    with open_snapshot_file(path) as file:
        assert file.header.values == ABOUT
        cells = np.empty(file.n_bytes, np.uint8)
        file.read_into(0, cells)
        assert cells.tolist() == np.arange(300, dtype=np.uint8).tolist()
        assert (list(file.numbers("none")), file.n("none")) == ([], 0)
        assert [piece.tolist() for piece in file.numbers("tokens")] == [[0, 1, 0, 1, 2]]
        middle = np.empty(2, np.int32)
        file.read("tokens", 12, middle)
        assert middle.tolist() == [1, 2]
        assert "tokens" in file
        assert "other" not in file
        for use in (lambda: file.n("other"), lambda: file.read("tokens", 16, middle)):
            with pytest.raises(edgekv.SessionFileError, match="is damaged"):
                use()


def test_the_documented_bytes(path):
    """As docs/design/session-files.md says, without the reader."""
    raw = path.read_bytes()
    magic, version, header_bytes, file_bytes = FRAME.unpack_from(raw)
    assert (magic, version, file_bytes) == (b"edgekv\r\n", 2, len(raw))
    header = json.loads(raw[24 : 24 + header_bytes])
    assert header["sections"] == [["cells", 300], ["none", 0], ["tokens", 20]]
    cells = 24 + header_bytes
    tokens = cells + 300
    assert raw[cells:tokens] == bytes(range(256)) + bytes(range(44))
    assert raw[tokens : tokens + 20] == np.array([0, 1, 0, 1, 2], "<i4").tobytes()
    assert int.from_bytes(raw[-4:], "little") == zlib.crc32(raw[:-4])
    assert len(raw) == tokens + 20 + 4


def test_a_long_section_comes_in_pieces(tmp_path):
    tokens = np.arange(300_000, dtype=np.int32)
    write(tmp_path / "a", {}, [Section.of("tokens", tokens)])
    with open_snapshot_file(tmp_path / "a") as file:
        pieces = list(file.numbers("tokens"))
    assert len(pieces) > 1
    assert np.array_equal(np.concatenate(pieces), tokens)


@pytest.mark.parametrize("step", [1, 7])
def test_every_byte_counts(path, step):
    raw = path.read_bytes()
    for at in range(0, len(raw), step):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :])
        with pytest.raises(edgekv.SessionFileError):
            check(path)
        path.write_bytes(raw[:at])
        with pytest.raises(edgekv.SessionFileError):
            check(path)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"about": {}}',
        b'{"about": [], "sections": []}',
        b'{"about": {}, "sections": {"ab": 0}}',
        b'{"about": {}, "sections": [[]]}',
        b'{"about": {}, "sections": 1}',
        b'{"about": {}, "sections": ["ab"]}',
        b'{"about": {}, "sections": [["a", 0, 0]]}',
        b'{"about": {}, "sections": [["a", -1]]}',
        b'{"about": {}, "sections": [["a", 1], ["b", -1]]}',
        b'{"about": {}, "sections": [["a", 0.0]]}',
        b'{"about": {}, "sections": [["a", false]]}',
        b'{"about": {}, "sections": [[0, 0]]}',
        b'{"about": {}, "sections": [[[], 0]]}',
        b'{"about": {}, "sections": [["a", 0], ["a", 0]]}',
        b'{"about": {}, "sections": [["a", 4611686018427387904]]}',
        b'{"about": {"n": NaN}, "sections": []}',
        b'{"about": {"n": 123456789012345678901234567890}, "sections": []}',
    ],
)
def test_headers_that_are_none(path, header):
    path.write_bytes(summed(framed(header)))
    with pytest.raises(edgekv.SessionFileError, match=r"its header|its sections"):
        check(path)


def test_a_header_that_is_too_long(path, tmp_path):
    long = b" " * MAX_HEADER_BYTES + b'{"about": {}, "sections": []}'
    path.write_bytes(summed(framed(long)))
    with pytest.raises(edgekv.SessionFileError, match="is damaged"):
        check(path)
    with pytest.raises(edgekv.SessionFileError, match=r"would have a header of .* and 1048576 are possible"):
        write(tmp_path / "b", {"system": "x" * MAX_HEADER_BYTES}, [])
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("lie", [["cells", 100], ["cells", 400], ["cells", 325], ["none", 300]])
def test_sections_that_lie_about_their_sizes(path, lie):
    """The checksum is right, and so are all places but those that follow from the lie."""
    raw = path.read_bytes()
    n = FRAME.unpack_from(raw)[2]
    header = json.loads(raw[24 : 24 + n])
    header["sections"][0] = lie
    text = json.dumps(header, separators=(",", ":")).encode()
    data = text.ljust(n) + raw[24 + n : -4]
    path.write_bytes(summed(FRAME.pack(b"edgekv\r\n", VERSION, n, len(raw)) + data))
    with pytest.raises(edgekv.SessionFileError, match="is damaged: its"):
        check(path)


# ---- writing ----


def test_writers_that_race_leave_a_whole_file(tmp_path):
    """Two processes replace a file again and again; whoever reads it finds one or the other, whole."""
    path, over = tmp_path / "files" / "a", tmp_path / "over"
    path.parent.mkdir()
    write(path, {"who": 0}, [])
    code = (
        "import sys, numpy as np; from pathlib import Path; from edgekv.store.atomic_write import atomic_write\n"
        "from edgekv.store.snapshot_file import Section, write_snapshot_file\n"
        "while not Path(sys.argv[3]).exists():\n"
        "    data = np.full(200_000, int(sys.argv[2]), np.uint8)\n"
        "    with atomic_write(Path(sys.argv[1])) as file:\n"
        "        write_snapshot_file(file, {'who': int(sys.argv[2])}, [Section.of('cells', data)])\n"
    )
    with ExitStack() as stack:
        commands = ([sys.executable, "-c", code, path, str(who), over] for who in (1, 2))
        writers = [stack.enter_context(started(command)) for command in commands]
        seen, n_read = set(), 0
        while n_read < 300 or seen < {0, 1, 2}:
            assert all(writer.poll() is None for writer in writers)
            with open_snapshot_file(path) as file:
                who = file.header.values["who"]
                if who != 0:
                    file.read_into(0, cells := np.empty(file.n_bytes, np.uint8))
                    assert set(cells.tolist()) == {who}
                seen |= {0, who}
            n_read += 1
        over.touch()
        assert [writer.wait(LIMIT_S) for writer in writers] == [0, 0]
    assert [it.name for it in path.parent.iterdir()] == ["a"]


def test_what_dies_before_it_is_renamed_leaves_the_old_file(path, tmp_path):
    before = path.read_bytes()

    def fail(error):
        with atomic_write(path) as file:
            file.write(b"half")
            raise error

    for error in (OSError("gone"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            fail(error)
        assert path.read_bytes() == before
        assert os.listdir(tmp_path) == ["a"]


def test_leftovers_are_those_that_nobody_writes(tmp_path):
    with atomic_write(tmp_path / "a") as file:
        file.write(b"half")
        assert remove_leftovers(tmp_path) == 0
    left = tmp_path / f".x-1{SUFFIX}"
    left.write_bytes(b"half")
    with left.open("rb") as other:
        assert lock(other.fileno())
        assert remove_leftovers(tmp_path) == 0
    assert remove_leftovers(tmp_path, "a") == 0  # it is not a's
    assert remove_leftovers(tmp_path) == 1
    assert os.listdir(tmp_path) == ["a"]
    assert remove_leftovers(tmp_path / "absent") == 0


def test_a_file_that_is_taken_for_a_leftover_before_it_is_locked_is_made_anew(tmp_path, monkeypatch):
    """The time between making a file and locking it, as another process may use it."""
    from edgekv.store import shared_files

    lock, n = shared_files.lock, []

    def lock_late(descriptor):
        n.append(descriptor)
        if len(n) == 1:
            assert remove_leftovers(tmp_path) == 1
        return lock(descriptor)

    monkeypatch.setattr(shared_files, "lock", lock_late)
    with atomic_write(tmp_path / "a") as file:
        file.write(b"whole")
    assert len(n) == 2
    assert (tmp_path / "a").read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["a"]


def test_threads_do_not_share_a_file(tmp_path):
    def write_often(i):
        for _ in range(20):
            write(tmp_path / "a", {"who": i}, [])

    threads = [threading.Thread(target=write_often, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == ["a"]
    check(tmp_path / "a")


HOLDER = """
import sys; from pathlib import Path; from edgekv.store.temp_folder import TempFolder
folder = TempFolder(Path(sys.argv[1]))
(folder.path / "a").write_text("private")
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_a_temporary_folder_goes_with_its_process(tmp_path):
    """The next one removes it if the process was killed, and not while it lives."""
    with started([sys.executable, "-c", HOLDER, tmp_path], stdin=PIPE, stdout=PIPE, text=True) as child:
        held = Path(child.stdout.readline().strip())
        assert sys.platform == "win32" or held.stat().st_mode & 0o077 == 0
        own = TempFolder(tmp_path)
        assert (held / "a").read_text() == "private"
        child.kill()
        child.wait()
    TempFolder(tmp_path).close()
    assert not held.exists()
    own.close()
    assert list(tmp_path.iterdir()) == []


FORKING = """
import os, sys; from pathlib import Path; from edgekv.store.temp_folder import TempFolder
folder = TempFolder(Path(sys.argv[1]))
if os.fork():
    os.wait()
    print(folder.path.is_dir())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_fork_that_ends_leaves_a_temporary_folder_to_its_parent(tmp_path):
    with started([sys.executable, "-c", FORKING, tmp_path], stdout=PIPE, text=True) as parent:
        assert parent.stdout.read() == "True\n"
        assert parent.wait() == 0
    assert list(tmp_path.iterdir()) == []


# ---- which model ----


def test_a_digest_is_of_the_header_alone(tiny_model, tmp_path):
    path = tiny_model(n_layer=2)
    header = read_header(path)
    raw = path.read_bytes()
    digest = header_digest(path, header)
    (tmp_path / "weights.gguf").write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert header_digest(tmp_path / "weights.gguf", header) == digest
    at = raw.index(b"general.name")
    (tmp_path / "name.gguf").write_bytes(raw[: at + 20] + bytes([raw[at + 20] ^ 1]) + raw[at + 21 :])
    assert header_digest(tmp_path / "name.gguf", header) != digest
    with pytest.raises(edgekv.InvalidModelError, match="cannot be read"):
        header_digest(tmp_path / "absent.gguf", header)
