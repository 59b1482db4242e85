"""`edgekv chat` on a terminal: the editor, Markdown, every command, Ctrl-C, and what it does where it cannot draw."""

from __future__ import annotations

import json
import re
import signal
import sys
from pathlib import Path

import pytest
from command import COMMAND, SMALL, run_here, words
from diagonals import COMMANDS_HERE_BY_DAY, by_night

pytest.importorskip("prompt_toolkit", reason="the extra chat is not installed")
pytest.importorskip("pyte")
pytest.importorskip("pexpect")

from screen import screen
from waiting import until

from edgekv.cli.chat.commands import COMMANDS, help_text
from edgekv.cli.chat.input_history import history_path
from edgekv.generation.request import INSTRUCTION

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals")

REPLY = ["--max-tokens", "12", "--temp", "0"]


@pytest.fixture(autouse=True)
def homes(tmp_path, monkeypatch):
    """A user's folders of this test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def chat(model):
    """A function that opens a chat with a model in a terminal, and waits for its prompt."""

    def opened(*options, program=COMMAND[-1], **terminal):
        given = [] if "-m" in options else ["-m", model, *SMALL]
        return screen([*COMMAND[:-1], program, "chat", *given, *REPLY, *options], **terminal)

    return opened


def begun(shown):
    shown.wait_for("/help lists the commands", "0 tokens seen")


def done(shown, line, *expected):
    """Send a message or a command, and wait for what it shows, and for the next prompt."""
    shown.type(line)
    shown.wait_for(f"{line}\n", *expected, "\n>")


def written(path):
    """Return the user's messages of a chat that was saved as JSON."""
    return [it["content"] for it in json.loads(path.read_text())["messages"] if it["role"] == "user"]


def exercised(shown, book, folder):
    """Every command, in a conversation about a book."""
    begun(shown)
    done(shown, "/help", *(command.usage for command in COMMANDS.values()), "several lines: Alt-Enter")
    done(shown, f"/read {book}", "goes with your")
    done(shown, "What is it?")
    done(shown, "/kept", "forgotten", "archived", "tokens 0 to ")
    done(shown, "/stats", "last reply:", "first token after", "evictions")
    done(shown, "/policy", "policy keydiff", " · focus", "cells in each of the heads")
    done(shown, "/policy h2o", "a chat keeps its policy", "--policy 'h2o'")
    done(shown, "/memory", "memory 4096.0 MiB", "64 cells", "planned", "python", "a lower ceiling takes swap, then kv")
    done(shown, "/memory 3GiB", "memory 3072.0 MiB")
    done(shown, "/memory 1MiB", "does not hold what stays", "name at least")
    for name, value in (("temp", "0.5"), ("top-p", "0.8"), ("min-p", "0.1"), ("seed", "7"), ("max-tokens", "9")):
        done(shown, f"/set {name} {value}", f"{name} {value}")
    done(shown, "/set temp hot", "'hot' is not possible for temp; give a number")
    done(shown, "/set temp", "temp needs a value; give a number")
    done(shown, "/set volume 11", "'volume' cannot be set; possible: temp")
    done(shown, "/retry")
    done(shown, "/copy", "the answer is on the clipboard, ", "if this terminal allows it")
    done(shown, "/thoughts", "came without reasoning")
    done(shown, "/undo", "your last message and its answer are taken back: 0 tokens seen")
    done(shown, "/undo", "nothing can be taken back")
    done(shown, "/save one", "saved as one")
    done(shown, "Hello")
    done(shown, "/session two", "two: a new chat")
    done(shown, "Other")
    done(shown, "/session", "one · two (this one)")
    done(shown, "/load one", "one: ", "tokens")
    done(shown, f"/save {folder / 'said.md'}", "what was said is in")
    done(shown, "/system Be brief.", "a new chat with this system message")
    done(shown, "/system", "Be brief.")
    done(shown, "Hello")
    done(shown, "/nothing at all", "'/nothing' is no command; possible: /read")
    shown.type("/exit")
    assert shown.ended() == 0
    assert (folder / "said.md").read_text().startswith("## User\n\nHello\n\n## Assistant")


@pytest.mark.parametrize("isolated", COMMANDS_HERE_BY_DAY, ids=["here", "isolated"])
def test_every_command(chat, text_file, tmp_path, isolated):
    with chat(*isolated, columns=160) as shown:
        exercised(shown, text_file(words(200)), tmp_path)
        assert "Traceback" not in shown.text()


@pytest.mark.nightly  # commands do not look at the model; tests/memory/test_terminal.py, too, has them with this one
def test_every_command_with_the_default_model(chat, default_model, text_file, tmp_path):
    with chat("-m", default_model, *SMALL, columns=160) as shown:
        exercised(shown, text_file("The old house by the river was red. " * 20), tmp_path)


def test_lines_history_and_completion(chat, tmp_path):
    (tmp_path / "novel.txt").write_text("Once upon a time.")
    with chat(columns=160) as shown:
        begun(shown)
        shown.press("/re\t")
        shown.wait_for("/read", "/retry")
        shown.press(f"ad {tmp_path}/nov\t\r")
        shown.wait_for("novel.txt goes with your next message", "tokens")
        shown.press("one\x1b\rtwo\r")
        shown.wait_for("> one", "  two", "tok/s")
        shown.press('"""three\rfour"""\r')
        shown.wait_for('"""three', 'four"""', "tok/s")
        shown.type(f"/save {tmp_path / 'said.json'}")
        shown.wait_for("what was said is in", "tok/s")
        shown.press("\x04")
        assert shown.ended() == 0
    said = [
        it["content"] for it in json.loads((tmp_path / "said.json").read_text())["messages"] if it["role"] == "user"
    ]
    assert said == [f"[file novel.txt]\nOnce upon a time.\n\n{INSTRUCTION} one\ntwo", "three\nfour"]
    assert history_path().stat().st_mode & 0o777 == 0o600
    with chat() as shown:
        begun(shown)
        shown.press("\x1b[A" * 2)
        shown.wait_for('"""three', 'four"""')
    kept = history_path().read_bytes()
    with chat("--no-history") as shown:
        begun(shown)
        done(shown, "Hello")
    assert history_path().read_bytes() == kept


def test_lines_that_are_pasted_into_a_plain_chat_are_one_message(chat, tmp_path):
    with chat("--plain") as shown:
        shown.wait_for("/help lists the commands", "\n>")
        shown.type("/help")
        shown.wait_for('several lines: """ before the first and after the last, or paste them')
        shown.paste("one\ntwo\nthree\nfour")
        shown.press("\r")
        shown.wait_for("generation")
        shown.type(f"/save {tmp_path / 'said.json'}")
        shown.wait_for("what was said is in")
    assert written(tmp_path / "said.json") == ["one\ntwo\nthree\nfour"]


def test_a_long_paste_goes_with_the_message(chat, tmp_path):
    """The paste is not drawn. A question behind it is answered with it; without one it waits for the next message."""
    pasted = "The old house by the river. " * 3572
    with chat() as shown:
        begun(shown)
        shown.paste(pasted)
        shown.wait_for("[paste 1: 100,016 characters]")
        shown.press("\x7f" * 40)
        shown.paste("short ")
        shown.paste("a\nb\n" * 50)
        shown.wait_for("short [paste 2: 200 characters]")
        done(shown, "What?")
        shown.paste(pasted[:2000])
        done(shown, "", "pasted 2,000 characters for your next message")
        done(shown, "Why?")
        shown.type(f"/save {tmp_path / 'said.json'}")
        shown.wait_for("what was said is in")
        assert len(shown.raw) < 30_000
    said = [
        it["content"] for it in json.loads((tmp_path / "said.json").read_text())["messages"] if it["role"] == "user"
    ]
    assert said == ["a\nb\n" * 50 + f"\n\n{INSTRUCTION} short What?", f"{pasted[:2000]}\n\n{INSTRUCTION} Why?"]
    assert all(len(entry) < 100 for entry in map(json.loads, history_path().read_text().splitlines()))


def test_a_paste_of_100_000_characters_stays_under_the_ceiling(chat, tmp_path):
    with chat() as shown:
        begun(shown)
        before = float(re.search(r"([\d.]+) MiB of", shown.text())[1])
        shown.paste("The old house by the river. " * 3572)
        shown.wait_for("characters]")
        shown.press("\x15")
        done(shown, "/stats", "planned")
        after = [float(it) for it in re.findall(r"([\d.]+) MiB of", shown.text())]
        assert max(after) - before < 1  # the margin of every plan


# A reply that no token ends, slow enough to be short when it is stopped. A second Ctrl-C is one within an hour: a busy
# machine may see two as one signal, or a second apart.
ENDLESS = """
import sys, time
from edgekv.binding.model import Model
from edgekv.cli.chat import chat
from edgekv.cli.main import main
Model.is_end = lambda model, token: time.sleep(0.01)
chat.TWICE_S = 3600
sys.exit(main())
"""


def test_ctrl_c_once_stops_and_twice_leaves(chat):
    with chat("--max-tokens", "1000000", "--allow-loops", program=ENDLESS) as shown:
        begun(shown)
        shown.type("Hello")
        shown.wait_for("Ctrl-C stops")
        shown.interrupt()
        shown.wait_for("stopped", "MiB of")
        done(shown, "/undo", "taken back: 0 tokens seen")
        shown.type("Hello")
        shown.wait_for("Ctrl-C stops")
        shown.interrupt()
        assert shown.ended() == 0


def interrupt_at_rest(shown):
    """Press Ctrl-C when the program waits for a key: Python's readline does not see a signal that comes just before."""
    status = Path(f"/proc/{shown.child.pid}/stat")
    if status.exists():
        until(lambda: status.read_text().rpartition(") ")[2].startswith("S"), "a wait for a key")
    shown.interrupt()


@pytest.mark.parametrize("plain", by_night([[], ["--plain"]], [[]]), ids=["drawn", "plain"])
def test_ctrl_c_at_the_prompt_drops_the_line_and_then_leaves(chat, plain):
    with chat(*plain, program=ENDLESS) as shown:
        shown.wait_for("/help lists the commands", "\n>")
        shown.press("half a line")
        shown.wait_for("half a line")
        interrupt_at_rest(shown)
        shown.wait_for("Ctrl-C again leaves", "\n>")
        done(shown, "/policy", "policy keydiff")
        interrupt_at_rest(shown)
        assert shown.ended() == 0


# It kills itself when its second reply has a few tokens: the first one, which nothing ends early, has twelve.
KILLED = """
import itertools, os, signal, sys
from edgekv.binding.model import Model
from edgekv.cli.main import main
said = itertools.count(1)
Model.is_end = lambda model, token: next(said) > 12 + 6 and os.kill(os.getpid(), signal.SIGKILL)
sys.exit(main())
"""


@pytest.mark.parametrize("how", ["drawn", pytest.param("plain", marks=pytest.mark.nightly)])
def test_a_killed_chat_has_all_but_the_running_turn(chat, model, how):
    """The chat that goes on says what one says that was never killed."""
    long = ["--allow-loops", "--repeat-penalty", "1"]  # a first reply of twelve tokens here, too
    with chat("--session", "mine", *(["--plain"] if how == "plain" else []), *long, program=KILLED) as shown:
        shown.wait_for("/help lists the commands", "\n>")
        done(shown, "Hello")
        shown.type("And?")
        assert shown.ended() == -signal.SIGKILL
    command = ["chat", "-m", model, *SMALL, *REPLY, *long]
    said = {}
    for session, lines in ((["--session", "mine"], "And then?\n"), ([], "Hello\nAnd then?\n")):
        said[len(session)] = run_here(*command, *session, stdin=lines).stdout
    assert said[0].endswith(said[2])
    assert said[2]


@pytest.mark.parametrize("columns", [40, pytest.param(120, marks=pytest.mark.nightly)])
def test_lines_fit_the_terminal(chat, columns):
    with chat(columns=columns) as shown:
        begun_narrow = ["/help lists", "0 tokens seen"]
        shown.wait_for(*begun_narrow)
        shown.press("中文" * 30)
        shown.wait_for("中文" * 5)
        shown.press("\r")
        shown.wait_for("MiB of")
        done(shown, "/stats", "last reply:", "evictions")
        assert not any("tokens" in line and len(line) > columns for line in shown.lines())
        shown.press("\x04")
        assert shown.ended() == 0


@pytest.mark.nightly
def test_help_breaks_no_word(chat):
    with chat(columns=40) as shown:
        shown.wait_for("/help lists", "0 tokens seen")
        done(shown, "/help", "several lines", "paste")
        words_shown = {word for line in shown.lines() for word in line.split()}
        assert {*help_text("").split()} <= words_shown
        shown.press("\x04")
        assert shown.ended() == 0


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({"TERM": "dumb"}, id="dumb", marks=pytest.mark.nightly),
        pytest.param({"NO_COLOR": "1"}, id="no colour"),
        pytest.param({}, id="plain", marks=pytest.mark.nightly),
    ],
)
def test_where_nothing_is_drawn_there_are_no_escape_codes(chat, variables):
    with chat(*([] if variables else ["--plain"]), **variables) as shown:
        shown.wait_for("/help lists the commands")
        shown.type("Hello")
        shown.wait_for("generation")
        shown.type("/kept")
        shown.wait_for("tokens 0 to ")
        shown.type("/exit")
        assert shown.ended() == 0
        if variables:
            assert not re.findall(r"\x1b(?!\[\?2004[hl])[^\r\n]*", shown.raw)


def test_a_pipe_is_given_no_escape_codes(model):
    lines = 'Hello\n/kept\n/stats\n/copy\n"""a\nb"""\n/nothing\n'
    ended = run_here("chat", "-m", model, *SMALL, *REPLY, stdin=lines)
    assert ended.returncode == 0
    assert "\x1b" not in ended.stdout + ended.stderr
    assert ended.stderr.count("generation") == 2 + 1  # two replies, and /stats
    assert "there is no clipboard here" in ended.stderr


def test_kept_begins_at_a_token_of_the_text(model):
    def said(*commands):
        lines = "\n".join(["Hello", *commands, ""])
        return run_here("chat", "-m", model, *SMALL, *REPLY, stdin=lines).stderr

    (n,) = map(int, re.findall(r"tokens 0 to \d+ of (\d+)", said("/kept")))
    told = said(f"/kept {n - 1}", f"/kept {n}")
    assert f"tokens {n - 1} to {n - 1} of {n}\n" in told
    assert f"'{n}' is no token of the text; give a number in [0, {n})" in told


IMPORTED = "import sys; from edgekv.cli.main import main; main(); "
IMPORTED += "print('imported', *{'prompt_toolkit', 'markdown_it', 'pygments', 'asyncio'} & set(sys.modules), sep=':')"


@pytest.mark.parametrize("variables", by_night([{}, {"TERM": "dumb"}], [{}]), ids=["plain", "dumb"])
def test_plain_chats_import_nothing_to_draw_with(model, variables):
    plain = [] if variables else ["--plain"]
    with screen([sys.executable, "-c", IMPORTED, "chat", "-m", model, *SMALL, *plain], **variables) as shown:
        shown.wait_for("commands", "\n>")
        shown.type("/exit")
        assert shown.ended() == 0
        assert shown.text().endswith("imported")


def test_without_prompt_toolkit_lines_are_read_plainly(model):
    program = "import sys; sys.modules['prompt_toolkit'] = None; from edgekv.cli.main import main; sys.exit(main())"
    with screen([sys.executable, "-c", program, "chat", "-m", model, *SMALL, *REPLY]) as shown:
        shown.wait_for("a line editor needs prompt_toolkit; pip install", "\n>")
        shown.type("Hello")
        shown.wait_for("\n>")
        shown.type("/exit")
        assert shown.ended() == 0
        assert shown.text().count("needs prompt_toolkit") == 1
