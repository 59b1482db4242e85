"""Chats that are kept as they grow, with an archive: they survive a kill, and one process at a time appends to each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from children import LIMIT_S
from command import KILLED, SMALL, run_here, words

import edgekv
from edgekv.store.kept_folder import is_kept
from edgekv.store.session_names import path_of, saved_names

OPTIONS = ["--max-tokens", "10", "--temp", "0", "--archive", "64MiB"]


@pytest.fixture(autouse=True)
def data_home(tmp_path, monkeypatch):
    """A user's data folder of this test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def chat(model, lines, *options, code=0):
    result = run_here("chat", "-m", model, *SMALL, *OPTIONS, *options, stdin=lines)
    assert result.returncode == code, result.stderr
    return result


def shown(name):
    return json.loads(run_here("sessions", "show", name, "--json").stdout)


def test_a_chat_goes_on_where_it_was_left(model, monkeypatch):
    monkeypatch.setattr(edgekv.Session, "save", None)  # nothing is written whole
    first = chat(model, "Hello\n", "--session", "mine")
    assert is_kept(path_of("mine"))
    second = chat(model, "And then?\n/session\n/load mine\n", "--session", "mine")
    assert "mine: " in second.stderr
    assert "mine (this one)" in second.stderr
    assert "mine is this chat; name another one" in second.stderr
    assert chat(model, "/history\n", "--session", "mine").stderr.count("> ") >= 2
    assert first.stdout


def test_it_is_listed_shown_exported_renamed_and_removed(model, tmp_path):
    said = chat(model, "Hello there\n/save mine\nAnd then?\n").stderr
    assert "saved as mine, and kept as it grows" in said
    (listed,) = json.loads(run_here("sessions", "list", "--json").stdout)
    found = shown("mine")
    assert (listed["name"], listed["title"], listed["n_past"]) == ("mine", "Hello there", found["n_past"])
    assert found["bytes"] == sum(file.stat().st_size for file in path_of("mine").iterdir())
    assert run_here("sessions", "export", "mine", str(tmp_path / "it.json"), "-m", model).returncode == 0
    (turns,) = json.loads((tmp_path / "it.json").read_text()).values()
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user", "assistant"]
    assert run_here("sessions", "rename", "mine", "yours").returncode == 0
    assert "Hello there" in chat(model, "/history\n", "--session", "yours").stderr
    assert run_here("ask", "--from", "yours", "-m", model, *SMALL, *OPTIONS, "Why?").returncode == 0
    with (
        edgekv.Runtime(model, memory="4GiB", budget=64, threads=1, archive="64MiB") as rt,
        rt.load_session(path_of("yours"), keep=True),
    ):
        for command in (("rm", "yours"), ("rename", "yours", "ours")):
            refused = run_here("sessions", *command)
            assert refused.returncode != 0
            assert "yours.session' is open elsewhere" in refused.stderr
        refused = run_here("chat", "-m", model, *SMALL, *OPTIONS, "--session", "yours", stdin="Hello\n")
        assert refused.returncode != 0
        assert "is open elsewhere, and grows there; end that session first" in refused.stderr
    assert run_here("sessions", "rm", "yours").returncode == 0
    assert not path_of("yours").exists()


def test_a_chat_in_which_nothing_was_said_leaves_nothing(model):
    chat(model, "/stats\n", "--session", "mine")
    assert saved_names() == []


def test_a_message_that_was_not_answered_is_given_back(model, text_file):
    """The one before it is there, with its answer."""
    chat(model, "Hello\n", "--session", "mine")
    n_past = shown("mine")["n_past"]
    lines = f"/read {text_file(words(100))}\nWhat was it?\n"
    command = [sys.executable, "-c", KILLED, "chat", "-m", model, *SMALL, *OPTIONS, "--session", "mine"]
    ended = subprocess.run(command, input=lines, text=True, capture_output=True, timeout=LIMIT_S, env=os.environ)
    assert ended.returncode == -signal.SIGKILL
    assert shown("mine")["n_past"] > n_past
    said = chat(model, "/history\n", "--session", "mine").stderr
    assert "your message was not answered" in said
    assert "> Hello" in said
    assert shown("mine")["n_past"] == n_past + 1  # the last token of the answer has its cell now


def test_a_full_disk_is_said_below_the_reply(model, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    append = edgekv.store.journal.Journal.append
    calls = []

    def sometimes(journal, *arguments, **further):
        calls.append(journal)
        return full() if len(calls) > 2 else append(journal, *arguments, **further)

    monkeypatch.setattr("edgekv.store.journal.Journal.append", sometimes)
    assert "and none after them: No space left on device" in chat(model, "Hello\n", "--session", "mine").stderr


def test_a_folder_that_cannot_be_made_costs_no_reply(model, data_home):
    (data_home / "edgekv").mkdir(parents=True)
    (data_home / "edgekv" / "sessions").touch()
    said = chat(model, "Hello\n", "--session", "mine")
    assert said.stdout.strip()
    assert "cannot be made" in said.stderr


def test_a_chat_that_was_saved_whole_stays_so(model):
    whole = ["--max-tokens", "10", "--archive", "off", "--session", "mine"]
    run_here("chat", "-m", model, *SMALL, *whole, stdin="Hello\n")
    chat(model, "And then?\n", "--session", "mine")
    assert path_of("mine").is_file()
