"""What a line of `edgekv chat` that begins with a slash does: one table, which /help shows too."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import edgekv
from edgekv.store.named import existing_path_of, saved_names, writable_path_of
from edgekv.store.transcript import FORMATS

from .render import console, packed, reading_bar


@dataclass(frozen=True, slots=True)
class Message:
    """What the user wrote, the files that went with it, and how many tokens the session had seen before."""

    text: str
    files: list[Path]
    n_past: int


@dataclass
class Chat:
    """A conversation at a terminal.

    name: that it is kept under; None = it is not kept
    files: that go with the next message
    messages: what was written here, and can be taken back
    again: the message that is to be answered once more
    ended: whether the user has left
    """

    runtime: edgekv.Runtime
    session: edgekv.Session
    name: str | None = None
    files: list[Path] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    again: Message | None = None
    ended: bool = False

    def save(self) -> None:
        """Save it under its name, if it has one. Raises SessionFileError."""
        if self.name is not None:
            self.session.save(writable_path_of(self.name))


@dataclass(frozen=True, slots=True)
class Command:
    """A command: how it is written, what it does, and what is called with the chat and the text after its name."""

    usage: str
    meaning: str
    run: Callable[[Chat, str], None]


def is_command(line: str) -> bool:
    """Whether a line is a command and no message."""
    return line.lstrip().startswith("/")


def run_command(chat: Chat, line: str) -> None:
    """Do what a line says. Raises EdgeKVError for one that says nothing that can be done; the chat goes on."""
    name, _, argument = line.strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise edgekv.InputError(f"{name!r} is no command; possible: {', '.join(COMMANDS)}")
    command.run(chat, argument.strip())


def help_text() -> str:
    """All commands, in as many lines as they need."""
    return "\n".join(packed([f"{it.usage} {it.meaning}" for it in COMMANDS.values()], console.width))


def _read(chat: Chat, name: str) -> None:
    path = Path(name).expanduser()
    if not name or not path.is_file():
        raise edgekv.InputError(f"{name or 'nothing'!r} is not a file; write /read and the path of a text file")
    chat.files.append(path)
    _say(f"{path} goes with your next message")


def _undo(chat: Chat, _argument: str) -> None:
    _take_back(chat)
    chat.save()
    _say(f"your last message and its answer are taken back: {chat.session.n_past:,} tokens seen")


def _retry(chat: Chat, _argument: str) -> None:
    chat.again = _take_back(chat)


def _take_back(chat: Chat) -> Message:
    """Go back to before the last message; what is said from there on draws other random numbers."""
    if not chat.messages:
        raise edgekv.InputError("nothing was written since the chat was opened, so nothing can be taken back")
    message = chat.messages[-1]
    with interrupt_cancels(chat.session), reading_bar() as progress:
        chat.session.rewind(message.n_past, other_draws=True, progress=progress)
    del chat.messages[-1]
    if chat.session.n_past != message.n_past:
        chat.messages = [earlier for earlier in chat.messages if earlier.n_past <= chat.session.n_past]
        raise edgekv.InputError(f"stopped after {chat.session.n_past:,} of {message.n_past:,} tokens that were kept")
    return message


@contextlib.contextmanager
def interrupt_cancels(session: edgekv.Session) -> Iterator[None]:
    """While it lasts, Ctrl-C stops the reply instead of the program."""
    before = signal.signal(signal.SIGINT, lambda *_: session.cancel())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _save(chat: Chat, name: str) -> None:
    if Path(name).suffix in FORMATS:
        path = Path(name).expanduser()
        chat.session.export(path)
        _say(f"what was said is in {path}")
        return
    if not name and chat.name is None:
        raise edgekv.InputError("this chat has no name yet; write /save and a name")
    chat.session.save(writable_path_of(name or str(chat.name)))
    chat.name = name or chat.name
    _say(f"saved as {chat.name}, and again after every reply")


def _load(chat: Chat, name: str) -> None:
    if not name:
        raise edgekv.InputError("nothing is named; write /load and the name of a saved session (/sessions lists them)")
    chat.session = chat.runtime.load_session(existing_path_of(name), instead_of=chat.session)
    chat.messages.clear()
    chat.name = name
    _say(f"{name}: {chat.session.n_past:,} tokens seen, {chat.session.n_cells:,} cells")


def _list(chat: Chat, _argument: str) -> None:
    names = [f"{name} (this one)" if name == chat.name else name for name in saved_names()]
    for line in packed(names, console.width) or ["no session was saved yet; /save NAME saves this one"]:
        _say(line)


def _help(_chat: Chat, _argument: str) -> None:
    console.print(help_text(), markup=False, soft_wrap=True)


def _exit(chat: Chat, _argument: str) -> None:
    chat.ended = True


def _say(text: str) -> None:
    console.print(text, style="dim", markup=False, soft_wrap=True)


COMMANDS = {
    "/read": Command("/read FILE", "attaches a text file to your next message", _read),
    "/undo": Command("/undo", "takes your last message back", _undo),
    "/retry": Command("/retry", "answers it again", _retry),
    "/save": Command("/save [NAME]", "keeps this chat under a name, or as text in NAME.md or NAME.json", _save),
    "/load": Command("/load NAME", "goes on with a saved one", _load),
    "/sessions": Command("/sessions", "lists them", _list),
    "/help": Command("/help", "shows this", _help),
    "/exit": Command("/exit", "(or Ctrl-D) leaves", _exit),
}
