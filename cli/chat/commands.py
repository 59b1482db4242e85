"""Slash commands of `edgekv chat`: one table, which /help shows too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import edgekv
from edgekv.cli.files import checked_texts, found_files, paths_in
from edgekv.cli.render import console, packed, say
from edgekv.counting import counted
from edgekv.store.session_names import saved_names

from . import clipboard, earlier, save_commands, status, undo
from .chat import Chat
from .completion import Arguments, paths


@dataclass(frozen=True, slots=True)
class Command:
    """A command. usage, meaning: for /help; run: called with the chat and the text after the command's name.

    arguments: completes the text after the name; None = completes nothing
    """

    usage: str
    meaning: str
    run: Callable[[Chat, str], None]
    arguments: Arguments | None = None


def is_command(line: str) -> bool:
    """Return True if a line is a command and no message."""
    return line.lstrip().startswith("/")


def command_behind(offered: str, line: str) -> str | None:
    """Return the command that was typed behind the text that a line began with; None = there is none."""
    if not offered or not line.startswith(offered):
        return None
    rest = line.removeprefix(offered).strip()
    name, _, _ = rest.partition(" ")
    return rest if name in COMMANDS else None


def run_command(chat: Chat, line: str) -> None:
    """Run the command of a line. Raises EdgeKVError for a line that cannot be run; the chat goes on."""
    name, *rest = line.strip().split(maxsplit=1)
    command = COMMANDS.get(name)
    if command is None:
        raise edgekv.InputError(f"{name!r} is no command; possible: {', '.join(COMMANDS)}")
    command.run(chat, "".join(rest))


def help_text(several_lines: str) -> str:
    """Return all commands, in as many lines as they need. several_lines: how to type a message of several lines"""
    commands = [f"{it.usage} {it.meaning}" for it in COMMANDS.values()]
    return "\n".join([*packed(commands, console.width), f"several lines: {several_lines}"])


def _read(chat: Chat, names: str) -> None:
    paths = [path for named in paths_in(names) for path in (found_files([named]) if not named.is_dir() else [named])]
    if not paths:
        raise edgekv.InputError("nothing is named; write /read and the paths of text files")
    for path in paths:
        if not path.is_file():
            what = "is a folder; begin the chat with -f, or name files" if path.is_dir() else "is not a file"
            raise edgekv.InputError(f"{str(path)!r} {what}; write /read and the paths of text files")
    texts = checked_texts(paths, chat.pastes)
    chat.files += texts
    for text in texts:
        say(f"{text.name} goes with your next message")


def _drop(chat: Chat, _argument: str) -> None:
    n = len(chat.files)
    chat.files.clear()
    say(f"{counted(n, 'file')} left out; your next message goes alone" if n else "no file goes with your next message")


def _help(chat: Chat, _argument: str) -> None:
    console.print(help_text(chat.several_lines), markup=False)


def _exit(chat: Chat, _argument: str) -> None:
    chat.ended = True


def _saved(_beginning: str) -> Iterable[str]:
    return saved_names()


def _settings(_beginning: str) -> Iterable[str]:
    return (f"{name} " for name in status.SETTINGS)


COMMANDS = {
    "/read": Command("/read FILE...", "attaches texts or documents to your next message", _read, paths),
    "/drop": Command("/drop", "leaves attached files out", _drop),
    "/kept": Command("/kept", "shows what of it is still there", earlier.kept),
    "/history": Command("/history [N]", "shows the last messages and replies", earlier.history),
    "/undo": Command("/undo", "takes your last message back", undo.undo),
    "/retry": Command("/retry", "answers it again", undo.retry),
    "/copy": Command("/copy", "puts the last answer on the clipboard", clipboard.copy),
    "/thoughts": Command("/thoughts", "shows the reasoning before it", clipboard.thoughts),
    "/set": Command("/set [NAME VALUE]", "shows or changes temp, seed, max-tokens, ...", status.set_, _settings),
    "/system": Command(
        "/system [TEXT]", "shows the system message, or begins a new chat with another", save_commands.system
    ),
    "/policy": Command("/policy", "shows what chooses the cells that stay", status.policy),
    "/memory": Command("/memory [SIZE]", "shows the ceiling, or moves it", status.memory),
    "/stats": Command("/stats", "shows tokens, speed and memory", status.stats),
    "/save": Command(
        "/save [--force] [NAME]",
        "keeps this chat under a name, or as text in NAME.md or NAME.json",
        save_commands.save,
        _saved,
    ),
    "/load": Command("/load NAME", "goes on with a saved one", save_commands.load, _saved),
    "/session": Command(
        "/session [NAME]", "lists them, or goes to one, which may be new", save_commands.session, _saved
    ),
    "/help": Command("/help", "shows this", _help),
    "/exit": Command("/exit", "(or Ctrl-D) leaves", _exit),
}
