"""The command line loses no turns, notes, books, messages or hours of reading, and its errors are plain."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from unittest import mock

import pytest
from children import LIMIT_S, started
from command import COMMAND, SMALL, run_here, words

import edgekv
from edgekv.cli.chat.chat import Chat, Message
from edgekv.cli.chat.command import _answer, reply_to
from edgekv.cli.chat.commands import command_behind, run_command
from edgekv.cli.chat.lines import Typed
from edgekv.cli.chat.plain import PlainReply
from edgekv.cli.chat.terminal_ui import TerminalUI
from edgekv.generation.request import INSTRUCTION
from edgekv.store.kept_folder import is_kept, open_journal
from edgekv.store.ownership import Ownership
from edgekv.store.session_names import path_of, save_as, saved_names, sessions_folder

# typer imports what click calls deprecated
pytestmark = pytest.mark.filterwarnings("ignore:'click:DeprecationWarning")

REPLY = ["--max-tokens", "8", "--temp", "0", "--stop", "\n"]  # a reply is a line
WHOLE = ["--archive", "off"]  # a chat that is saved whole after each reply


@pytest.fixture(autouse=True)
def data_home(tmp_path, monkeypatch):
    """A user's data folder of this test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def runtime(model):
    with edgekv.Runtime(model, memory="4GiB", budget=64, block=32, threads=1) as rt:
        yield rt


def run(*arguments, stdin="", interrupted=False):
    """Run a command; Ctrl-C comes to an interrupted one, once, when 64 tokens of a text are read."""
    if not interrupted:
        return run_here(*arguments, stdin=stdin)
    pressed = []

    @contextmanager
    def bar():
        def progress(it):
            if it.tokens_done == 64 and it.tokens_total > 64 and not pressed:
                pressed.append(True)
                os.kill(os.getpid(), signal.SIGINT)

        yield progress

    with mock.patch("edgekv.cli.chat.command.reading_bar", bar), mock.patch("edgekv.cli.read.reading_bar", bar):
        return run_here(*arguments, stdin=stdin)


def content(name):
    """Return the files of a chat that was kept, and their bytes."""
    return {file.name: file.read_bytes() for file in path_of(name).iterdir()}


def chat(model, lines, *options, interrupted=False):
    result = run("chat", "-m", model, *SMALL, *REPLY, *options, stdin=lines, interrupted=interrupted)
    assert result.returncode == 0, result.stderr
    return result


# ---- turns and messages ----


@pytest.mark.parametrize("isolated", [[], ["--isolated"]], ids=["here", "isolated"])
def test_ctrl_c_while_a_file_is_read_takes_the_turn_back(model, book, isolated):
    """The chat goes on as if the message had never been sent, and the files are still attached."""
    whole = chat(model, "Hello\nAnd then?\n").stdout
    lines = f"Hello\n/read {book}\nWhat?\n/drop\nAnd then?\n"
    stopped = chat(model, lines, *isolated, interrupted=True)
    first, *rest = stopped.stdout.split("\n")
    assert "\n".join([first, *(line for line in rest if line)]) == whole.rstrip("\n")
    assert "not answered, with 1 file that goes with the next one (/drop leaves it out)" in stopped.stderr
    assert "what was read of it is taken back: " in stopped.stderr
    assert "1 file left out" in stopped.stderr


def test_what_is_no_text_is_told_when_it_is_attached(model, book, tmp_path):
    (tmp_path / "bad.pdf").write_bytes(b"%PDF-1.4 \xff\xfe")
    (tmp_path / "zero.pdf").write_bytes(b"%PDF\0")
    said = tmp_path / "said.json"
    lines = f"/read {book}\n/read {tmp_path}/bad.pdf\n/read {tmp_path}/zero.pdf\nWhat?\n/save {said}\n"
    shown = chat(model, lines).stderr
    assert "bad.pdf is not a whole PDF" in shown
    assert "zero.pdf is not text" in shown
    assert (
        json.loads(said.read_text())["messages"][0]["content"]
        == f"[file book.txt]\n{words(200)}\n\n{INSTRUCTION} What?"
    )


def test_a_message_that_fails_is_given_back_with_its_files(runtime, book, tmp_path, capsys):
    """A file went between the moment it was attached and that of the message."""
    offered = []
    talk = Chat(runtime, runtime.session(history=True), offer=lambda text: not offered.append(text))
    ui = TerminalUI(None, lambda _: PlainReply(), lambda _: None)
    files = [book, tmp_path / "gone.txt"]
    with pytest.raises(edgekv.InputError, match="cannot be read"):
        reply_to(talk, Message("What?", files, 0), ui)
    assert (talk.files, offered, talk.messages, talk.session.n_past) == (files, ["What?"], [], 0)
    assert "not answered, with 2 files that go with the next one (/drop leaves them out)" in capsys.readouterr().err
    run_command(talk, "/drop")
    assert "2 files left out" in capsys.readouterr().err
    assert talk.files == []
    run_command(talk, "/drop")
    assert "no file goes with your next message" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("offered", "typed", "command"),
    [
        ("What?", "What?/drop", "/drop"),
        ("What?", "What? /read a b ", "/read a b"),
        ("one\ntwo", "one\ntwo/drop", "/drop"),
        ("What?", "/drop", None),  # a command by itself: the line was cleared
        ("What?", "What? and/drop", None),
        ("What?", "What?/nothing", None),
        ("", "/drop", None),
        ("What?", "What?", None),
    ],
)
def test_a_command_behind_a_message_that_is_offered_again(offered, typed, command):
    assert command_behind(offered, typed) == command


def test_a_message_that_is_offered_stays_so_after_a_command_behind_it(runtime, book):
    offered = []
    talk = Chat(runtime, runtime.session(), offer=lambda text: not offered.append(text), files=[book])
    talk.offer_again("What?")
    _answer(talk, Typed("What?/drop"), None)
    assert (talk.files, offered, talk.session.n_past) == ([], ["What?", "What?"], 0)
    _answer(talk, Typed("What? /help"), None)
    assert offered == ["What?"] * 3


def test_retry_behind_an_offered_message_answers_the_last_one_again(runtime, monkeypatch):
    talk = Chat(runtime, runtime.session(history=True), offer=lambda _: True, reply={"max_tokens": 2})
    talk.messages = [Message("Hello", [], 0)]
    again = []
    monkeypatch.setattr("edgekv.cli.chat.command.reply_to", lambda chat, message, ui: again.append(message.text))
    talk.offer_again("What?")
    _answer(talk, Typed("What?/retry"), None)
    assert (again, talk.offered) == (["Hello"], "What?")


# ---- files of others ----


def test_a_file_that_the_chat_did_not_write_is_replaced_by_force_alone(model, tmp_path):
    notes, own = tmp_path / "notes.md", tmp_path / "own.md"
    notes.write_text("dear notes")
    shown = chat(model, f"Hello\n/save {notes}\n/save {own}\nAgain\n/save {own}\n").stderr
    assert f"{notes} is there, and was not written by this chat" in shown
    assert f"/save --force {notes}" in shown
    assert notes.read_text() == "dear notes"
    assert own.read_text().count("## User") == 2
    chat(model, f"Hello\n/save --force {notes}\n")
    assert notes.read_text().startswith("## User\n\nHello\n")


def test_a_session_of_another_chat_is_replaced_by_force_alone(model):
    chat(model, "Hello\n/save one\n")
    before = content("one")
    shown = chat(model, "Other\n/save one\n/save two\n/save two\n").stderr
    assert "one is there, and was not written by this chat" in shown
    assert "saved as two, and kept as it grows" in shown
    assert "two is kept as it grows" in shown
    assert content("one") == before
    assert "saved as one" in chat(model, "Other\n/save --force one\n").stderr
    assert content("one") != before


def test_a_book_is_replaced_by_force_alone_and_chats_about_it_have_names_of_their_own(model, book, text_file):
    line = ["read", "-m", model, *SMALL, "--save", "book", "-f"]
    assert run(*line, book).returncode == 0
    before = path_of("book").read_bytes()
    again = run(*line, text_file(words(100)))
    assert again.returncode == 2
    assert "'book' was saved before; give another --save, or replace it with --force" in again.stderr
    shown = chat(model, "What?\n/load book\nWhat?\n", "--session", "book").stderr
    assert "book is a text that was read, and stays as it is; this chat is saved as book-chat" in shown
    assert "this chat is saved as book-chat-2" in shown
    assert path_of("book").read_bytes() == before
    assert saved_names() == ["book", "book-chat", "book-chat-2"]
    shown = chat(model, "/undo\nWhat?\n/undo\n/undo\n", "--session", "book-chat").stderr
    assert "taken back: 0 tokens" not in shown  # the text that was read stays
    assert run(*line, text_file(words(100)), "--force").returncode == 0
    assert path_of("book").read_bytes() != before


def test_two_processes_on_one_session_lose_no_turn(model):
    command = [*COMMAND, "chat", "-m", str(model), *SMALL, *REPLY, *WHOLE, "--session", "mine"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with started(command, **pipes, text=True, bufsize=1) as first:

        def shows(expected):
            for line in first.stderr:
                if expected in line:
                    return
            raise AssertionError(f"{expected!r} was not shown")

        first.stdin.write("Hello\n/session\n")
        shows("mine (this one)")
        second = chat(model, "Other\n", *WHOLE, "--session", "mine").stdout
        first.stdin.write("More\n/session\n")
        shows("mine was changed by another process, and stays as it is; this chat is saved as mine-2")
        shows("mine · mine-2 (this one)")
        first.stdin.close()
        first.wait(300)
    assert second
    said = {}
    for name in ("mine", "mine-2"):
        chat(model, f"/save {path_of(name).with_suffix('.json')}\n", "--session", name)
        messages = json.loads(path_of(name).with_suffix(".json").read_text())["messages"]
        said[name] = [it["content"] for it in messages if it["role"] == "user"]
    assert said == {"mine": ["Hello", "Other"], "mine-2": ["Hello", "More"]}


def test_a_name_that_came_meanwhile_is_not_replaced(tmp_path):
    ours, theirs = Ownership(), Ownership()
    assert save_as(lambda path: path.write_text("ours"), "a", ours) == "a"
    assert save_as(lambda path: path.write_text("theirs"), "a", theirs) == "a-2"
    assert save_as(lambda path: path.write_text("ours again"), "a", ours) == "a"
    assert [path_of(name).read_text() for name in saved_names()] == ["ours again", "theirs"]


# ---- chats that go on ----


def test_a_chat_that_goes_on_can_go_back(model):
    """A resumed chat shows where it was left; an undone turn was never said."""
    whole = chat(model, "Hello\nOther\n", "--session", "mine").stdout.split("\n")
    resumed = chat(model, "/retry\n/kept\n/undo\n/undo\n/undo\nHello\n", "--session", "mine")
    answers = resumed.stdout.split("\n")
    assert (answers[0], answers[-2:]) == (whole[1], [whole[0], ""])
    assert "> Other" in resumed.stderr
    assert whole[1].strip() in resumed.stderr
    assert "tokens 0 to 0 of 1" not in resumed.stderr
    assert "taken back: 0 tokens seen" in resumed.stderr
    assert "nothing can be taken back" in resumed.stderr


def test_a_question_about_a_text_is_answered_again_in_a_chat_that_goes_on(model, book):
    chat(model, f"/read {book}\nWhat?\n", "--session", "mine")
    resumed = chat(model, f"/retry\n/save {book.parent / 'said.json'}\n/kept\n", "--session", "mine")
    assert "> ... What?" in resumed.stderr
    assert resumed.stdout.split("\n")[0]
    messages = json.loads((book.parent / "said.json").read_text())["messages"]
    assert [it["content"] for it in messages if it["role"] == "user"] == [
        f"[file book.txt]\n{words(200)}\n\n{INSTRUCTION} What?"
    ]


@pytest.mark.parametrize("archive", ["off", "8MiB"])
def test_a_reading_that_is_stopped_goes_on(model, book, text_file, archive):
    options = [*SMALL, "--archive", archive]
    line = ["read", "-m", model, *options, "--save", "book", "-f"]
    stopped = run(*line, book, interrupted=True)
    assert stopped.returncode == 130, stopped.stderr
    assert "stopped; 64 tokens read, saved as book.partial; the same command goes on" in stopped.stderr
    assert saved_names() == ["book.partial"]
    other = run(*line, text_file(words(100).upper()))
    assert other.returncode == 2
    assert "'book.partial' is the beginning of another text" in other.stderr
    rest = run(*line, book)
    assert rest.returncode == 0, rest.stderr
    assert "64 tokens read; going on from there" in rest.stderr
    assert saved_names() == ["book"]
    with (
        edgekv.Runtime(model, memory="4GiB", budget=64, block=32, threads=1) as rt,
        rt.load_session(path_of("book")) as session,
    ):
        (turn,) = session.turns()
        assert "".join(session.text(turn)) == words(200)
    asked = run("ask", "-m", model, *options, "--from", "book", "What?", "--max-tokens", "4", "--json")
    report = json.loads(asked.stdout)
    is_archived = archive != "off"
    assert (report["forgotten_tokens"] == 0, report["recalls"] > 0) == (is_archived, is_archived)


@pytest.mark.parametrize(("n_tokens", "system"), [(64, []), (32, ["--system", words(8)])], ids=["text", "opening"])
def test_a_reading_that_is_killed_goes_on(model, book, monkeypatch, tmp_path, n_tokens, system):
    options = [*SMALL, "--budget", "128", "--archive", "8MiB"]
    line = ["read", "-m", model, *options, "--save", "book", "-f", book, *system]
    killed = tmp_path / "killed"

    @contextmanager
    def bar():
        yield lambda it: it.tokens_done == n_tokens and shutil.copytree(sessions_folder(), killed / "edgekv/sessions")

    with mock.patch("edgekv.cli.read.reading_bar", bar):
        assert run(*line).returncode == 0
    assert saved_names() == ["book"]
    monkeypatch.setenv("XDG_DATA_HOME", str(killed))
    assert saved_names() == ["book.partial"]
    rest = run(*line)
    assert (rest.returncode, f"{n_tokens} tokens read; going on" in rest.stderr) == (0, not system), rest.stderr
    assert saved_names() == ["book"]
    with (
        edgekv.Runtime(model, memory="4GiB", budget=128, block=32, threads=1, archive="8MiB") as rt,
        rt.load_session(path_of("book")) as session,
    ):
        (turn,) = (turn for turn in session.turns() if turn.role == "user")
        assert "".join(session.text(turn)) == words(200)
        assert session.n_recallable == session.n_past - session.n_cells > 0


def test_a_text_takes_the_place_of_a_kept_chat_if_it_is_told_to(model, book):
    line = ["read", "-m", model, *SMALL, "--save", "mine", "-f", book]
    chat(model, "Hello\n", "--session", "mine", "--archive", "8MiB")
    assert is_kept(path_of("mine"))
    with closing(open_journal(path_of("mine"), "append")), mock.patch("edgekv.Session.read") as read:
        refused = run(*line, "--force")
        assert (refused.returncode, "is open elsewhere" in refused.stderr, read.called) == (2, True, False)
    assert run(*line).returncode == 2
    assert is_kept(path_of("mine"))
    assert run(*line, "--force").returncode == 0
    assert path_of("mine").is_file()


def test_a_reading_of_several_files_goes_on(model, book, text_file):
    files = [book, text_file(words(100).upper())]
    line = ["read", "-m", model, *SMALL, "--save", "book", "-f", *files]
    assert run(*line, interrupted=True).returncode == 130
    rest = run(*line)
    assert (rest.returncode, "64 tokens read; going on from there" in rest.stderr) == (0, True), rest.stderr
    with (
        edgekv.Runtime(model, memory="4GiB", budget=64, block=32, threads=1) as rt,
        rt.load_session(path_of("book")) as session,
    ):
        (turn,) = session.turns()
        names = [Path(os.path.relpath(path, os.path.commonpath([it.parent for it in files]))) for path in files]
        texts = [f"[file {name.as_posix()}]\n{path.read_text()}" for name, path in zip(names, files, strict=True)]
        assert "".join(session.text(turn)) == "\n\n".join(texts)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the worker is found in /proc")
@pytest.mark.parametrize(
    "name", [[], pytest.param(["--session", "mine"], marks=pytest.mark.nightly)], ids=["nameless", "named"]
)
def test_a_chat_whose_worker_is_killed_goes_on(model, name):
    command = [*COMMAND, "chat", "-m", str(model), *SMALL, *REPLY, "--isolated", *name]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with started(command, **pipes, text=True, bufsize=1) as process:

        def shows(expected):
            for line in process.stderr:
                if expected in line:
                    return
            raise AssertionError(f"{expected!r} was not shown")

        process.stdin.write("Hello\n/policy\n")
        shows("policy keydiff")
        (worker,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(worker), signal.SIGKILL)
        process.stdin.write("And then?\n")
        shows("your message was not answered; write it again")
        shows("another worker goes on with this chat: ")
        process.stdin.write("And then?\n/undo\n")
        shows("taken back")
        process.stdin.close()
        said = process.stdout.read()
        assert process.wait(300) == 0
    assert said == chat(model, "Hello\nAnd then?\n").stdout


# ---- plain errors ----


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize("command", [["ask", "Hello", "--max-tokens", "2"], ["--help"]])
def test_an_output_that_is_full(model, command):
    options = [] if command == ["--help"] else ["-m", str(model), *SMALL]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [*COMMAND, *command, *options], stdout=full, stderr=subprocess.PIPE, text=True, timeout=300, check=False
        )
    assert ended.returncode == 1
    (line,) = (it for it in ended.stderr.splitlines() if it.startswith("edgekv"))
    assert line.startswith("edgekv: standard output cannot be written: No space left on device; ")
    assert "Traceback" not in ended.stderr
    assert "Exception ignored" not in ended.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="arguments are text there")
@pytest.mark.parametrize(
    ("arguments", "isolated"),
    [((b"caf\xe9",), []), ((b"Hello", b"--system", b"caf\xe9"), ["--isolated"])],
)
def test_arguments_that_are_no_text(model, arguments, isolated):
    """Each goes through the same check, before a worker is started."""
    ended = subprocess.run(
        [*COMMAND, "ask", *arguments, "-m", str(model), *SMALL, *isolated],
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert b"is not UTF-8 text" in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_a_message_that_is_no_text(model):
    """The user is told, and the chat goes on."""
    ended = subprocess.run(
        [*COMMAND, "chat", "-m", str(model), *SMALL, *REPLY],
        input=b"caf\xe9\nHello\n",
        capture_output=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    assert b"is not UTF-8 text" in ended.stderr
    assert ended.stderr.count(b"generation") == 1


def test_a_home_that_takes_no_files(tmp_path, monkeypatch):
    home = tmp_path / "home"
    home.write_text("no folder")
    monkeypatch.setenv("HOME", str(home))
    command = f"{shlex.join([*COMMAND, '--install-completion'])}; exit $?"  # bash stays, and is found
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert ended.returncode == 1
    assert ended.stderr.startswith("edgekv: ")
    assert "check the path and its permissions" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_shell_that_is_unknown(monkeypatch):
    shellingham = pytest.importorskip("shellingham")

    def detect_shell():
        raise shellingham.ShellDetectionFailure

    monkeypatch.setattr(shellingham, "detect_shell", detect_shell)
    ended = run("--install-completion")
    assert ended.returncode == 1
    assert ended.stderr.startswith("edgekv: the shell that runs edgekv is unknown; ")


def test_memory_that_the_system_refuses():
    """In the words of llama.cpp; it is neither a damaged model nor a fault of edgekv."""
    from edgekv.binding.library import error_of

    for status in (4, 6, 7):
        error = error_of(
            status, "ggml_aligned_malloc: insufficient memory (attempted to allocate 44.85 MB);std::bad_alloc"
        )
        assert type(error) is edgekv.NativeError
        assert str(error).startswith("the system gives this process no more memory: ggml_aligned_malloc")
        assert "ulimit -v" in str(error)
