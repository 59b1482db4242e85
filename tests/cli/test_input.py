"""Inputs of `ask` and `inspect`: files of every kind, and standard input if it is asked for or offered."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from children import LIMIT_S, started
from command import run_here, words
from diagonals import COMMANDS_HERE_BY_DAY

COMMAND = [sys.executable, "-m", "edgekv"]
SMALL = ["--memory", "4GiB", "--budget", "64", "--block", "32", "--threads", "1", "--max-tokens", "3"]
TEXT = words(200)

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes have no names there")


@pytest.fixture
def ask(model):
    """Runs `edgekv ask`; `stdin` is what is piped in, or an open file; a program begins with it `closed`."""

    def run(*arguments, stdin=None, closed=False):
        line = ["ask", "-m", model, *SMALL, "--json", *arguments]
        if not closed:
            return run_here(*line, stdin=stdin)
        command = [*COMMAND, *map(str, line)]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, preexec_fn=lambda: os.close(0))

    return run


@pytest.fixture
def book(tmp_path):
    path = tmp_path / "book.txt"
    path.write_text(TEXT)
    return path


def prompt_tokens(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["prompt_tokens"]


def refused(result, words):
    assert (result.returncode, result.stderr) == (2, "")
    assert json.loads(result.stdout)["error"]["message"].startswith(words)


@pytest.mark.parametrize("isolated", COMMANDS_HERE_BY_DAY, ids=["here", "isolated"])
def test_what_can_be_read_once_is_read_as_a_file_is(ask, book, tmp_path, isolated):
    """A named pipe, a descriptor as `<(...)` gives it, and /dev/stdin."""
    whole = prompt_tokens(ask("-f", book, "What?", *isolated))
    named = tmp_path / "named"
    os.mkfifo(named)
    writer = threading.Thread(target=named.write_text, args=(TEXT,), daemon=True)
    writer.start()
    assert prompt_tokens(ask("-f", named, "What?", *isolated)) == whole
    writer.join(LIMIT_S)
    reading, writing = os.pipe()
    os.write(writing, TEXT.encode())
    os.close(writing)
    assert prompt_tokens(ask("-f", f"/dev/fd/{reading}", "What?", *isolated)) == whole
    os.close(reading)
    assert prompt_tokens(ask("-f", "/dev/stdin", "What?", *isolated, stdin=TEXT)) == whole
    with book.open() as file:
        assert prompt_tokens(ask("-f", "/dev/stdin", "What?", *isolated, stdin=file)) == whole


def test_standard_input_is_read_where_it_is_asked_for_or_offered(ask, book):
    whole = prompt_tokens(ask("-f", book, "What?"))
    said = f"read {len(TEXT):,} bytes from standard input"
    for arguments in (["-f", "-"], []):
        result = ask(*arguments, "What?", stdin=TEXT)
        assert prompt_tokens(result) == whole
        assert said in result.stderr
    with book.open() as file:
        assert prompt_tokens(ask("What?", stdin=file)) == whole
    both = ask("-f", book, "-f", "-", "What?", stdin=TEXT)
    assert prompt_tokens(both) > 1.5 * whole
    assert said in both.stderr


def test_nothing_of_standard_input_is_taken_where_files_are_named(ask, book, tmp_path):
    """A loop over lines keeps them."""
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    with lines.open() as file:
        result = ask("-f", book, "What?", stdin=file)
        assert os.lseek(file.fileno(), 0, os.SEEK_CUR) == 0
    assert "standard input" not in result.stderr
    reading, writing = os.pipe()
    os.write(writing, b"one\ntwo\n")
    os.close(writing)
    with open(reading, closefd=False) as pipe:
        assert ask("-f", book, "What?", stdin=pipe).returncode == 0
    assert os.read(reading, 100) == b"one\ntwo\n"
    os.close(reading)


def test_an_empty_standard_input_that_nobody_asked_for_is_none(ask):
    plain = ask("What?")
    empty = ask("What?", stdin="")
    assert prompt_tokens(plain) == prompt_tokens(empty)
    assert plain.stderr == empty.stderr == ""


def test_what_holds_no_text_is_refused_by_name(ask, tmp_path):
    empty, blank = tmp_path / "empty.txt", tmp_path / "blank.txt"
    empty.touch()
    blank.write_text("\ufeff \n\t\n")
    refused(ask("-f", empty, "What?"), f"{empty} holds nothing;")
    refused(ask("-f", blank, "What?"), f"{blank} holds nothing but blanks;")
    refused(ask("-f", "-", "What?", stdin=""), "standard input holds nothing;")
    refused(ask("-f", "/dev/null", "What?"), "/dev/null holds nothing;")
    refused(ask("-f", "/dev/zero", "What?"), "/dev/zero is not text: byte 0 is 0;")
    refused(ask("-f", "-", "What?", stdin="a\0b"), "standard input is not text: byte 1 is 0;")
    refused(ask("-f", tmp_path, "What?"), f"{str(tmp_path)!r} holds no text;")


def test_a_closed_standard_input_is_none(ask):
    assert ask("What?", closed=True).returncode == 0
    refused(ask("-f", "-", "What?", closed=True), "standard input holds nothing;")


@pytest.mark.parametrize(
    "closed", [pytest.param(0, marks=pytest.mark.nightly), 1, pytest.param(2, marks=pytest.mark.nightly)]
)
def test_a_closed_stream_ends_no_command(model, closed):
    command = [*COMMAND, "chat", "-m", str(model), *SMALL, "--max-tokens", "2", "Hello"]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LIMIT_S, preexec_fn=lambda: os.close(closed)
    )
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False)
    done = subprocess.run(
        [*COMMAND, "policies"], capture_output=True, timeout=LIMIT_S, preexec_fn=lambda: os.close(closed)
    )
    assert (done.returncode, done.stderr, bool(done.stdout)) == (0, b"", closed != 1)


@pytest.mark.parametrize(
    ("proc", "number"),
    [pytest.param("/proc", signal.SIGKILL, marks=pytest.mark.nightly), ("/no/such/folder", signal.SIGTERM)],
    ids=["nameless", "named"],  # what is gone at a kill is gone at an end, too
)
def test_a_signal_leaves_no_copy_behind(model, tmp_path, number, proc):
    if number == signal.SIGKILL and not (proc == "/proc" and os.path.isdir(proc)):
        pytest.skip("a copy that has a name outlives a kill")
    script = f"import pathlib, edgekv.prompt.spool; edgekv.prompt.spool.PROC = pathlib.Path({proc!r})\n"
    script += "from edgekv.__main__ import main; raise SystemExit(main())"
    command = [sys.executable, "-c", script, "ask", "-m", model, *SMALL, "What?"]
    folder = tmp_path / "tmp"
    folder.mkdir()
    environment = os.environ | {"TMPDIR": str(folder)}
    with started(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
        process.stdin.write(words(100_000))
        process.stdin.close()
        assert "bytes from standard input" in process.stderr.readline()
        time.sleep(1)  # a while into loading or reading
        process.send_signal(number)
        status = process.wait(LIMIT_S)
    assert status in (-number, 143)
    assert list(folder.iterdir()) == []


def test_inspect_reads_pipes_too(model):
    shown = []
    for arguments in (["What?"], []):
        result = run_here("inspect", "-m", model, *SMALL[:-2], "--no-keys", "--json", *arguments, stdin=TEXT)
        assert result.returncode == 0, result.stderr
        shown.append("".join(json.loads(result.stdout)["pieces"]))
    assert TEXT in shown[0]
    assert shown[1].endswith(TEXT)


def test_it_is_said_what_is_waited_for(model):
    command = [*COMMAND, "ask", "-m", str(model), *SMALL, "What?"]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr.readline().startswith("waiting for standard input; name files with -f, or add </dev/null")
        output, _ = process.communicate("", timeout=LIMIT_S)
    assert (process.returncode, bool(output)) == (0, True)
