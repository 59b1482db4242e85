"""A conversation at a terminal: its session, what goes with the next message, and what can be taken back."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import edgekv
from edgekv.store.named import writable_path_of

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
    messages: what was written here, and can be taken back
    again: the message that is to be answered once more
    ended: whether the user has left
    pastes: long texts that were pasted, as files
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

    def save(self) -> None:
        """Save it under its name, if it has one. Raises SessionFileError."""
        if self.name is not None:
            self.session.save(writable_path_of(self.name))

    def go_on_with(self, session: edgekv.Session, name: str | None, system: str | None) -> None:
        """Go on with another session; nothing of it can be taken back yet."""
        self.session, self.name, self.system = session, name, system
        self.messages.clear()

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
