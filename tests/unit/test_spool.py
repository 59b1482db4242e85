"""Copies of texts that can be read only once."""

from __future__ import annotations

import errno
import os
import sys
import threading
from pathlib import Path

import pytest
from children import LIMIT_S

from edgekv import InputError
from edgekv.documents.text_file import read_text
from edgekv.prompt import spool
from edgekv.prompt.spool import rereadable, spooled


@pytest.fixture(params=["nameless", "named"])
def folder(request, tmp_path, monkeypatch):
    """An empty folder where copies are made; on systems with /proc they have no names there."""
    if request.param == "named":
        monkeypatch.setattr(spool, "PROC", tmp_path / "no-proc")
    elif not spool.copies_are_nameless():
        pytest.skip("only systems with /proc have nameless copies")
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(place))
    return place


def test_a_copy_is_read_again_and_again_and_then_gone(folder):
    with spooled(["a", "é", "", "漢" * 100_000]) as copy:
        for _ in range(2):
            assert copy.read_text("utf-8") == "aé" + "漢" * 100_000
    assert not copy.exists()
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        "%PDF-1.7 is how a PDF begins",
        "PK\x03\x04 is how an archive begins",
        '<?xml version="1.0" encoding="latin-1"?><a>\u00e9</a>',
        "<?",
        "\ufeffa mark of an encoding begins it",
    ],
)
@pytest.mark.parametrize("piece_by_piece", [False, True])
def test_a_copied_text_stays_a_text(folder, text, piece_by_piece):
    """A client's message may begin as a document does, and may declare an encoding that its copy does not have."""
    with spooled(text if piece_by_piece else [text]) as copy, rereadable(copy) as same:
        assert same == copy
        assert "".join(read_text(copy)) == text


def test_nothing_is_left_of_what_cannot_be_read(folder):
    def pieces():
        yield "a"
        raise InputError("no more")

    with pytest.raises(InputError, match="no more"), spooled(pieces()):
        pass
    assert list(folder.iterdir()) == []


def test_a_full_disk_is_told(folder, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(folder / "absent"))
    with pytest.raises(InputError, match="copied to a temporary file: No such file or directory; name a folder"):
        spooled(["a"]).__enter__()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_disk_that_fills_up_is_told(folder, monkeypatch):
    monkeypatch.setattr(spool.tempfile, "mkstemp", lambda **_: (os.open("/dev/full", os.O_WRONLY), str(folder / "x")))
    (folder / "x").touch()
    with pytest.raises(InputError, match="No space left on device; name a folder with room in TMPDIR"):
        spooled(["a"]).__enter__()
    assert list(folder.iterdir()) == []


def test_a_regular_file_is_not_copied(folder):
    file = folder / "a.txt"
    file.write_text("a")
    with rereadable(file) as path:
        assert path == file
    with rereadable(folder / "absent") as path:
        assert path == folder / "absent"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes have no names there")
def test_a_pipe_is_copied_until_it_ends_or_is_cancelled(folder, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for cancelled, expected in ((None, "text"), (threading.Event(), "text"), (threading.Event(), "")):
        if not expected:
            cancelled.set()
        writer = threading.Thread(target=pipe.write_text, args=("text",), daemon=True)
        writer.start()
        with rereadable(pipe, cancelled) as path:
            assert path != pipe
            assert path.read_text() == expected
        writer.join(LIMIT_S)
    assert list(folder.iterdir()) == []


def test_files_that_are_too_many_at_once_are_told(folder, monkeypatch):
    def refuse(**_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(spool.tempfile, "mkstemp", refuse)
    with pytest.raises(InputError, match="Too many open files; name fewer files at once"):
        spooled(["a"]).__enter__()
