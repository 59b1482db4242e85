"""/undo, /retry, and what was said as text, in `edgekv chat`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from contextlib import contextmanager

import pytest
from command import COMMAND, SMALL, run_here, run_program, words
from diagonals import COMMANDS_HERE_BY_DAY
from wheel_environment import CHECKOUT

import edgekv
from edgekv.cli.chat.chat import Chat, Message
from edgekv.cli.chat.commands import run_command
from edgekv.generation.request import INSTRUCTION

SHORT = ["--max-tokens", "8", "--stop", "\n"]  # a reply is a line


def chat(model, lines, *options):
    """The lines that were said, and what was shown beside them."""
    result = run_here("chat", "-m", model, *SMALL, *SHORT, *options, stdin=lines)
    assert result.returncode == 0, result.stderr
    return result.stdout.split("\n")[:-1], result.stderr


@pytest.mark.parametrize("isolated", COMMANDS_HERE_BY_DAY, ids=["here", "isolated"])
def test_what_is_undone_was_never_said(model, isolated):
    options = ["--seed", "5", "--temp", "0", *isolated]
    plain = chat(model, "Hello\nWhy?\n", *options)
    undone = chat(model, "Hello\nOther\nThird\n/undo\n/undo\nWhy?\n/undo\n/undo\n/undo\nHello\n", *options)
    (first, second), (said, shown) = plain[0], undone
    assert (said[0], said[3], said[4]) == (first, second, first)
    assert "nothing can be taken back" in shown
    seen = re.findall(r"taken back: ([\d,]+) tokens seen", shown)
    assert len(seen) == 4
    assert seen[-1] == "0"


def test_a_retry_says_something_else(model, text_file):
    """With the files that the message had; where nothing is drawn, the same."""
    book = text_file(words(60))
    lines = f"Hello\n/read {book}\nWhat?\n/retry\n/retry\n"
    said, shown = chat(model, lines, "--temp", "1.5", "--seed", "4", "--top-k", "4")
    assert len(set(said[1:])) == 3
    assert len(set(re.findall(r"([\d,]+) tokens seen", shown)[1:])) <= 2  # a reply may end early
    said, _ = chat(model, lines, "--temp", "0")
    assert said[1] == said[2] == said[3]
    assert "nothing can be taken back" in chat(model, "/retry\n")[1]


def test_the_plan_of_a_chat_has_room_for_going_back(model, monkeypatch):
    """A checkpoint of full cells is read beside them."""
    plans, runtime_of = [], edgekv.Runtime

    def noted(**options):
        runtime = runtime_of(**options)
        plans.append(runtime.plan)
        return runtime

    monkeypatch.setattr(edgekv, "Runtime", noted)
    chat(model, "Hello\n")
    assert plans[0].parts.swap > 0


@pytest.mark.nightly
def test_going_back_to_full_cells_stays_below_the_ceiling(default_model):
    lines = "/read examples/oz.txt\nWho is Toto?\nAnd then?\n/undo\n/stats\n"
    options = ("--memory", "256MiB", "--temp", "0", "--max-tokens", "20")
    shown = run_program("chat", "-m", default_model, *options, stdin=lines, folder=CHECKOUT).stderr
    assert "taken back: 4,1" in shown
    assert max(map(float, re.findall(r"([\d.]+) MiB of 256\.0 MiB", shown))) <= 256, shown


@pytest.mark.parametrize("raw", [[], ["--raw"]], ids=["told", "raw"])
def test_a_question_about_a_file_is_told_how_to_be_answered(model, text_file, tmp_path, raw, monkeypatch):
    """As `ask` tells it: once, also if it is asked again in a later run; and a message without a file is not told."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    book, told = text_file(words(400)), "" if raw else f"{INSTRUCTION} "
    chat(model, f"/read {book}\nWhat?\nHello\n", *raw, "--session", "mine")
    _, shown = chat(model, f"/undo\n/retry\n/history\n/save {tmp_path / 'a.json'}\n", *raw, "--session", "mine")
    messages = json.loads((tmp_path / "a.json").read_text())["messages"]
    asked = [message["content"] for message in messages if message["role"] == "user"]
    assert [text.rsplit("\n\n", 1)[-1] for text in asked] == [f"{told}What?"]
    assert asked[0].count(INSTRUCTION) == bool(told)
    assert shown.count("What?") == 2  # when it goes on, and by /history
    assert INSTRUCTION not in shown


def test_the_system_message_of_the_template_is_shown(default_model, model):
    options = ["--memory", "1GiB", "--budget", "128", "--threads", "1"]
    shown = run_here("chat", "-m", default_model, *options, stdin="/system\n/system Be brief.\n/system\n").stderr
    assert "the model's chat template adds one: You are a helpful AI assistant named SmolLM" in shown
    assert "Be brief." in shown
    assert "there is no system message; /system TEXT" in chat(model, "/system\n")[1]


def test_what_was_said_is_saved_as_text(model, tmp_path):
    _, shown = chat(model, f"Hello\n/save {tmp_path / 'a.json'}\n/save {tmp_path / 'a.md'}\n/save {tmp_path}/no/a.md\n")
    messages = json.loads((tmp_path / "a.json").read_text())["messages"]
    assert [message["role"] for message in messages][:1] == ["user"]
    assert messages[0]["content"] == "Hello"
    assert (tmp_path / "a.md").read_text().startswith("## User\n\nHello\n")
    assert "what was said is in" in shown
    assert "cannot be written" in shown


def test_a_chat_goes_on_where_no_folder_takes_its_log(model):
    """The system lets the program write no file."""
    command = ["bash", "-c", 'ulimit -f 0; exec "$@"', "-", *COMMAND, "chat", "-m", str(model), *SMALL, *SHORT]
    ended = subprocess.run(
        command, input="Hello\n/undo\nWhy?\n", capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("tok/s") == 4
    assert "keeps no history" in ended.stderr


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
def test_ctrl_c_stops_a_return(model, monkeypatch, isolated):
    """Without checkpoints and archive all is read again. An interrupted session goes on from where it came to."""

    @contextmanager
    def interrupted():
        yield lambda progress: os.kill(os.getpid(), signal.SIGINT) if progress.tokens_done == 64 else None

    monkeypatch.setattr("edgekv.cli.chat.undo.reading_bar", interrupted)
    options = {"memory": "4GiB", "budget": 64, "block": 32, "threads": 1, "isolated": isolated, "archive": "off"}
    with edgekv.Runtime(model, **options) as rt, rt.session(history=True, checkpoint_bytes=0) as session:
        session.read(words(60))
        talk = Chat(rt, session, messages=[Message("Why?", [], session.n_past)])
        "".join(session.chat("Why?", max_tokens=4))
        with pytest.raises(edgekv.InputError, match=r"^stopped after 64 of \d+ tokens that were kept"):
            run_command(talk, "/undo")
        assert (session.n_past, talk.messages) == (64, [])
        with pytest.raises(edgekv.InputError, match="nothing can be taken back"):
            run_command(talk, "/undo")
        assert "".join(session.chat("Why?", max_tokens=4)) or session.stats.finish_reason == "end"
