"""Sessions that are kept by name: chats that go on another day, texts that are read once, and what manages them."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import time
from types import SimpleNamespace

import click
import pytest
from children import LIMIT_S, started
from command import COMMAND, KILLED, SMALL, run_here
from diagonals import COMMANDS_HERE_BY_DAY
from terminal import Terminal

import edgekv
from edgekv.cli.chat.chat import Chat
from edgekv.cli.chat.commands import COMMANDS, run_command
from edgekv.store.atomic_write import SUFFIX
from edgekv.store.session_names import MAX_NAME_BYTES, path_of, saved_names, sessions_folder, writable_path_of

REPLY = ["--max-tokens", "10", "--temp", "0"]
WHOLE = ["--archive", "off"]  # a chat that is saved whole after each reply


@pytest.fixture(autouse=True)
def data_home(tmp_path, monkeypatch):
    """A user's data folder of this test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data"


def chat(model, lines, *options):
    result = run_here("chat", "-m", model, *SMALL, *REPLY, *options, stdin=lines)
    assert result.returncode == 0, result.stderr
    return result


# ---- commands ----


@pytest.mark.parametrize("isolated", COMMANDS_HERE_BY_DAY, ids=["here", "isolated"])
def test_a_chat_goes_on_where_it_was_left(model, isolated):
    """The second half says what it says in a chat that was never left."""
    whole = chat(model, "Hello\nAnd then?\n", *isolated).stdout
    first = chat(model, "Hello\n", "--session", "mine", *isolated).stdout
    second = chat(model, "And then?\n", "--session", "mine", *isolated)
    assert first + second.stdout == whole
    assert "mine: " in second.stderr
    assert "tokens seen" in second.stderr


def test_slash_commands_of_a_chat(model, data_home):
    lines = "/session\nHello\n/save\n/save a/b\n/save one\n/save two\n/load one\n/session\n/load none\n/load\n"
    result = chat(model, lines + "/nothing\n/what is it\nWhat?\n/help\n")
    for said in (
        "no session was saved yet",
        "this chat has no name yet; write /save and a name",
        "'a/b' cannot name a session",
        "saved as one, and kept as it grows",
        "one (this one) · two",
        "there is no saved session 'none'; saved: one, two",
        "'/nothing' is no command; possible: /read, /drop, /kept, /history, /undo, /retry, /copy, /thoughts, /set, ",
        "'/what' is no command",
        "nothing is named; write /load and the name",
        "/load NAME goes on with a saved one",
    ):
        assert said in result.stderr, said
    assert result.stderr.count("generation") == 2  # two replies: no command became a message
    sizes = {name: json.loads(run_here("sessions", "show", name, "--json").stdout)["n_past"] for name in ("one", "two")}
    assert sizes["one"] > sizes["two"]  # it was gone on with, and kept
    assert sorted(path.name for path in (data_home / "edgekv" / "sessions").iterdir()) == ["one.session", "two.session"]


def test_a_killed_chat_loses_the_running_turn_alone(model, book):
    main, terminal = pty.openpty()
    command = [*COMMAND[:-1], KILLED, "chat", "-m", str(model), *SMALL, *REPLY, *WHOLE, "--session", "mine", "--plain"]
    ends = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    with started(command, **ends, cwd=book.parent, start_new_session=True) as process:
        os.close(terminal)
        output = Terminal(main)
        output.wait_for("> ")
        output.type("Hello")
        output.wait_for("generation")
        output.wait_for("> ")
        output.type(f"/read {book.name}")  # a short name, which leaves the answer on one line
        output.wait_for("goes with your next message")
        output.type("What?")
        assert process.wait(LIMIT_S) == -signal.SIGKILL
    os.close(main)
    whole = chat(model, "Hello\nAnd then?\n", *WHOLE).stdout
    assert whole.endswith(chat(model, "And then?\n", *WHOLE, "--session", "mine").stdout)


def test_a_text_is_read_once_and_asked_about_again(model, book):
    read = run_here("read", "-m", model, *SMALL, "-f", book, "--save", "book")
    assert read.returncode == 0, read.stderr
    assert re.search(r"saved as book, [\d.]+ \w+, and [\d.]+ \w+ of archive\n", read.stderr)
    assert "remembers " in read.stderr
    assert "generation" not in read.stderr
    asked = ["ask", "-m", model, *SMALL, "--archive", "off", "--from", "book", "What?", "--max-tokens", 20]
    answers = [run_here(*asked) for _ in range(2)]
    forgetting = {"memory": "4GiB", "budget": 64, "block": 32, "threads": 1, "archive": "off"}
    with edgekv.Runtime(model, **forgetting) as rt, rt.session() as session:
        session.read(files=[book])
        expected = "".join(session.ask("What?", max_tokens=20)) + "\n"
    assert [answer.stdout for answer in answers] == [expected] * 2
    assert run_here("ask", "-m", model, *SMALL, "--from", "other", "What?").returncode == 2
    piped = run_here("read", "-m", model, *SMALL, "--save", "piped", stdin="some words")
    assert piped.returncode == 0, piped.stderr
    nothing = run_here("read", "-m", model, *SMALL, "--save", "empty")
    assert (nothing.returncode, saved_names()) == (2, ["book", "piped"])
    assert "there is nothing to read" in nothing.stderr


def test_a_full_disk_is_found_before_anything_is_read(model, book, monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1 << 10))
    monkeypatch.setattr("edgekv.Session.read", lambda *_, **__: pytest.fail("the text is read"))
    refused = run_here("read", "-m", model, *SMALL, "-f", book, "--save", "full")
    assert refused.returncode == 2
    assert "has 1.0 KiB free, and the session may take " in refused.stderr


def test_a_short_text_needs_no_room_for_all_cells(model, text_file, monkeypatch):
    """A disk that has half of what a session may take at most under such a ceiling."""
    made = edgekv.plan(model, memory="4GiB", swap_bytes=0)
    most = made.session_bytes + 2 * made.n_cells * made.archive_token_bytes
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=most // 2))
    read = run_here("read", "-m", model, "--memory", "4GiB", "-f", text_file("Some words."), "--save", "short")
    assert (read.returncode, saved_names()) == (0, ["short"]), read.stderr


def test_listing_showing_and_removing(model, data_home):
    assert json.loads(run_here("sessions", "list", "--json").stdout) == []
    chat(model, "Hello\n", "--session", "mine")
    folder = data_home / "edgekv" / "sessions"
    (folder / "broken.session").write_bytes(b"no session")
    (folder / f".0-0{SUFFIX}").write_bytes(b"half of one")
    listed = {it["name"]: it for it in json.loads(run_here("sessions", "list", "--json").stdout)}
    assert set(listed) == {"mine", "broken"}
    assert "is no session file" in listed["broken"]["error"]
    assert listed["mine"]["policy"] == "keydiff(rope=off)"
    assert listed["mine"]["bytes"] == sum(file.stat().st_size for file in (folder / "mine.session").iterdir())
    assert not (folder / f".0-0{SUFFIX}").exists()
    table = run_here("sessions", "list").stdout
    assert "mine" in table
    assert "cannot be read" in table
    shown = run_here("sessions", "show", "mine").stdout
    assert "n_past: " in shown
    assert run_here("sessions", "show", "broken").returncode == 2
    assert run_here("sessions", "rm", "mine", "nobody").returncode == 2
    assert (folder / "mine.session").exists()  # all are there, or none is removed
    assert run_here("sessions", "rm", "mine", "broken").returncode == 0
    assert saved_names() == []


def test_a_title_is_the_first_question(model, book):
    """Of a text that was read it is the beginning; of a file and a question, the question."""
    chat(model, "Hello there\nAnd then?\n", "--session", "talk")
    run_here("chat", "-m", model, *SMALL, *REPLY, "-f", book, "--session", "asked", "What is it?", stdin="")
    run_here("read", "-m", model, *SMALL, "-f", book, "--save", "text")
    titles = {it["name"]: it["title"] for it in json.loads(run_here("sessions", "list", "--json").stdout)}
    assert titles.pop("text").startswith("word0 word1 ")
    assert titles == {"talk": "Hello there", "asked": "What is it?"}


def test_a_session_shows_when_it_was_saved(model):
    chat(model, "Hello\n", *WHOLE, "--session", "mine")
    os.utime(path_of("mine"), (1_700_000_000, 1_700_000_000))
    shown = run_here("sessions", "show", "mine").stdout
    assert f"saved: {time.strftime('%Y-%m-%d %H:%M', time.localtime(1_700_000_000))}\n" in shown
    assert "title: Hello\n" in shown


def test_renaming(model):
    chat(model, "Hello\n", "--session", "mine")
    chat(model, "Hello\n", "--session", "other")
    taken = run_here("sessions", "rename", "mine", "other")
    assert (taken.returncode, saved_names()) == (2, ["mine", "other"])
    assert "'other' is saved already; give another name" in taken.stderr
    assert run_here("sessions", "rename", "mine", "a/b").returncode == 2
    assert run_here("sessions", "rename", "nobody", "new").returncode == 2
    assert run_here("sessions", "rename", "mine", "new").returncode == 0
    assert saved_names() == ["new", "other"]
    assert "new: " in chat(model, "And then?\n", "--session", "new").stderr


@pytest.mark.parametrize("ending", ["md", "json"])
def test_an_export_is_what_the_chat_itself_writes(model, tiny_model, tmp_path, ending):
    """The vocabulary alone makes it, also of the last token, which was generated and never fed."""
    written, exported = tmp_path / f"written.{ending}", tmp_path / f"exported.{ending}"
    chat(model, f"Hello\nAnd then?\n/save {written}\n", "--session", "mine", "--system", "Be brief.")
    done = run_here("sessions", "export", "mine", exported, "-m", model)
    assert (done.returncode, done.stderr) == (0, "")
    assert exported.read_text() == written.read_text()
    assert "And then?" in exported.read_text()
    again = run_here("sessions", "export", "mine", exported, "-m", model)
    assert (again.returncode, "--force" in again.stderr) == (2, True)
    assert run_here("sessions", "export", "mine", exported, "-m", model, "--force").returncode == 0
    other = run_here("sessions", "export", "mine", tmp_path / f"o.{ending}", "-m", tiny_model(n_layer=1))
    assert "was not saved with the model" in other.stderr
    unknown = run_here("sessions", "export", "mine", tmp_path / f"o.{ending}")
    assert (unknown.returncode, "give its path with --model" in unknown.stderr) == (4, True)
    assert run_here("sessions", "export", "mine", tmp_path / "o.pdf", "-m", model).returncode == 2


def test_what_was_said_is_shown_again(model):
    first = chat(model, "One\nTwo\nThree\n/history\n/history 2\n/history x\n", "--session", "mine")
    shown = [line for line in first.stderr.splitlines() if line.startswith("> ")]
    assert shown == ["> One", "> Two", "> Three", "> Three"]
    assert "'x' is no number of messages" in first.stderr
    again = chat(model, "/exit\n", "--session", "mine").stderr
    assert [line for line in again.splitlines() if line.startswith("> ")] == ["> Two", "> Three"]
    assert "nothing was said yet" in chat(model, "/history\n").stderr


def test_a_chat_is_not_saved_under_the_name_of_a_document(model):
    result = chat(model, "Hello\n/save x.pdf\n/save notes/x.txt\n/save old.2\n")
    assert "'x.pdf' looks like a file" in result.stderr
    assert "write /save notes/x.md, or /save x to keep" in result.stderr
    assert saved_names() == ["old.2"]


def test_names_of_sessions_are_completed_where_one_is_named():
    """Options and arguments that name a saved session list those that exist."""
    import typer.main

    from edgekv.cli.main import app

    path_of("mine").parent.mkdir(parents=True)
    path_of("mine").touch()
    command = typer.main.get_command(app)
    sessions = command.commands["sessions"].commands
    named = [
        *((command.commands[name], option) for name, option in (("ask", "saved"), ("chat", "session"))),
        *((sessions[name], "name") for name in ("show", "rename", "export")),
        (sessions["rm"], "names"),
    ]
    for inner, parameter in named:
        found = next(it for it in inner.params if it.name == parameter)
        completed = found.shell_complete(click.Context(inner), "mi")
        assert [item.value for item in completed] == ["mine"], (inner.name, parameter)


def test_what_is_refused(model, tmp_path):
    chat(model, "Hello\n", *WHOLE, "--session", "mine", "--system", "Be brief.")
    for arguments, message in (
        (
            ("chat", "--session", "mine", "--system", "Be long."),
            "'mine' has a system message of its own; leave out --system",
        ),
        (("chat", "--session", "../mine"), "'../mine' cannot name a session"),
        (("chat", "--session", "mine", "--policy", "h2o"), "was saved with --policy 'keydiff(rope=off)'"),
        (("ask", "--from", "mine", "--system", "Be long.", "What?"), "has a system message of its own"),
        (("read", "--save", "", "-f", "x"), "'' cannot name a session"),
        (("ask", "--from", "nobody", "What?"), "there is no saved session 'nobody'; saved: mine"),
    ):
        result = run_here(arguments[0], "-m", model, *SMALL, *arguments[1:], stdin="Hello\n")
        assert (result.returncode, result.stdout) == (2, ""), arguments
        assert message in result.stderr, result.stderr
    assert chat(model, "And then?\n", "--session", "mine").stdout


# ---- names ----


@pytest.mark.parametrize(
    "name", ["", ".", "..", "_a", "a/b", "a\\b", "/a", ".a", "-a", "a b", "a\0", "a\n", "nul", "COM1.x", "ä" * 60]
)
def test_names_that_cannot_be(name):
    with pytest.raises(edgekv.SessionFileError, match="cannot name a session"):
        path_of(name)


@pytest.mark.parametrize("name", ["a", "2", "my-chat_2.old", "café", "a" * MAX_NAME_BYTES, "console"])
def test_names_that_can(name):
    assert path_of(name).parent == sessions_folder()
    assert path_of(name).name == f"{name}.session"


def test_a_folder_that_cannot_be_made(data_home):
    data_home.write_text("no folder")
    with pytest.raises(edgekv.SessionFileError, match=r"cannot be made: .*; make it, or name another"):
        writable_path_of("a")
    assert saved_names() == []


# ---- the table ----


def test_every_command_is_written_as_it_is_called():
    for name, command in COMMANDS.items():
        assert command.usage.split()[0] == name
        assert command.meaning


def test_a_refused_load_leaves_the_chat(model, tmp_path):
    with edgekv.Runtime(model, memory="4GiB", budget=64, block=32, threads=1) as rt:
        talk = Chat(rt, rt.session(), "mine")
        list(talk.session.chat("Hello", max_tokens=2))
        talk.save()
        before, n_past = talk.session, talk.session.n_past
        path_of("bad").write_bytes(b"no session")
        with pytest.raises(edgekv.SessionFileError):
            run_command(talk, "/load bad")
        assert (talk.session, talk.session.closed, talk.name) == (before, False, "mine")
        run_command(talk, "/load mine")
        assert before.closed
        assert talk.session.n_past == n_past
        run_command(talk, "/exit")
        assert talk.ended
