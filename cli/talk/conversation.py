"""A conversation at a terminal: its session, what goes with the next message, and where it is kept."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import edgekv
from edgekv.cli.render import say
from edgekv.store.ownership import Ownership
from edgekv.store.session_names import existing_path_of, free_name, holds_only_text, save_as

from .interrupts import Interrupts


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
    system: the system message; None = there is none
    reply: how replies are made, as arguments of `Session.chat`
    files: that go with the next message
    messages: what was written here; what was written before, the log of the session tells
    again: the message that is to be answered once more
    ended: whether the user has left
    pastes: long texts that were pasted, as files
    owned: files that were loaded or saved here, and may be replaced
    backup: where a chat without a name is kept meanwhile, since its worker may die; None = nowhere
    offer: has the next line begin with a text, where that is possible; says whether it is
    thinks: whether the chat template begins every reply with reasoning
    """

    runtime: edgekv.Runtime
    session: edgekv.Session
    name: str | None = None
    system: str | None = None
    reply: dict[str, Any] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    again: Message | None = None
    ended: bool = False
    interrupts: Interrupts = field(default_factory=Interrupts)
    pastes: ExitStack = field(default_factory=ExitStack)
    thinks: bool = False
    owned: Ownership = field(default_factory=Ownership)
    backup: Path | None = None
    offer: Callable[[str], bool] = lambda _: False

    def save(self) -> None:
        """Save it under its name, if it has one; under another where somebody changed that file.

        Raises SessionFileError.
        """
        if self.name is None:
            if self.backup is not None:
                with contextlib.suppress(edgekv.SessionFileError):  # it is only missed if the worker dies
                    self.session.save(self.backup)
            return
        name = save_as(self.session.save, self.name, self.owned)
        if name != self.name:
            say(
                f"{self.name} was changed by another process, and stays as it is; this chat is saved as {name}",
                style="",
            )
            self.name = name

    def go_on_with(self, session: edgekv.Session, name: str | None, system: str | None) -> None:
        """Go on with another session."""
        self.session, self.name, self.system = session, name, system
        self.messages.clear()
        if self.backup is not None:
            self.backup.unlink(missing_ok=True)

    def interrupted(self) -> None:
        """Ctrl-C was pressed: stop what is under way; the second time within a second, leave as well."""
        self.ended = self.interrupts.is_second() or self.ended
        self.session.cancel()


@contextlib.contextmanager
def interrupt_cancels(chat: Chat) -> Iterator[None]:
    """While it lasts, Ctrl-C stops the reply instead of the program."""
    before = signal.signal(signal.SIGINT, lambda *_: chat.interrupted())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def new_session(runtime: edgekv.Runtime, system: str | None) -> edgekv.Session:
    """A session that /undo can go back in, if the folder for temporary files takes its log."""
    try:
        return runtime.session(system, log=True)
    except edgekv.SessionFileError:
        return runtime.session(system)


def saved_session(
    runtime: edgekv.Runtime, name: str, owned: Ownership, instead_of: edgekv.Session | None = None
) -> tuple[edgekv.Session, str]:
    """A saved session, and the name that a chat with it is kept under: another one where it is a text that was read."""
    path = existing_path_of(name)
    is_text = holds_only_text(path)
    owned.note(path)
    session = runtime.load_session(path, instead_of=instead_of)
    if not is_text:
        return session, name
    chat = free_name(f"{name}-chat")
    say(f"{name} is a text that was read, and stays as it is; this chat is saved as {chat}")
    return session, chat


def system_of(session: edgekv.Session) -> str | None:
    """The system message that a session began with, as far as its log tells."""
    with contextlib.suppress(edgekv.SessionError):
        for turn in session.turns():
            return "".join(session.text(turn)) if turn.role == "system" else None
    return None


def last_turn(session: edgekv.Session, role: str) -> edgekv.Turn | None:
    """The newest turn of a role. Raises SessionError for a session without a log."""
    found = None
    for turn in session.turns():
        if turn.role == role:
            found = turn
    return found
