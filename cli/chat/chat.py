"""A conversation at a terminal: its session, the files for the next message, and its name."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import edgekv
from edgekv.cli.render import say
from edgekv.prompt.named_files import File
from edgekv.store.kept_folder import is_kept
from edgekv.store.ownership import Ownership
from edgekv.store.session_names import existing_path_of, free_name, holds_only_text, save_as, writable_path_of

TWICE_S = 1.0


class Interrupts:
    """Remembers when Ctrl-C came last: once cancels the reply, twice within a second leaves."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: float | None = None

    def is_second(self) -> bool:
        """Note a Ctrl-C; return True if another came less than a second before."""
        now, last = self._clock(), self._last
        self._last = now
        return last is not None and now - last < TWICE_S


@dataclass(frozen=True, slots=True)
class Message:
    """A message of the user, the files that went with it, and the tokens that the session had seen before."""

    text: str
    files: list[File]
    n_past: int


@dataclass
class Chat:
    """A conversation at a terminal.

    name: name that the chat is saved under; None = it is not saved
    system: the system message; None = there is none
    reply: arguments of `Session.ask` for replies
    files: files that go with the next message
    messages: messages of this run; the log of the session has earlier ones
    again: the message to answer once more
    ended: True = the user has left
    forgets: True = the last reply came after parts of the chat were evicted
    pastes: long texts that were pasted, as files
    owned: files that were loaded or saved here, and may be replaced
    backup: file for a chat without a name, since its worker may die; None = there is none
    offer: begins the next line with a text; returns False if that is not possible
    offered: the text that the next line begins with
    several_lines: how to type a message of several lines
    thinks: True = the chat template begins every reply with reasoning
    """

    runtime: edgekv.Runtime
    session: edgekv.Session
    name: str | None = None
    system: str | None = None
    reply: dict[str, Any] = field(default_factory=dict)
    files: list[File] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    again: Message | None = None
    ended: bool = False
    forgets: bool = False
    interrupts: Interrupts = field(default_factory=Interrupts)
    pastes: ExitStack = field(default_factory=ExitStack)
    thinks: bool = False
    owned: Ownership = field(default_factory=Ownership)
    backup: Path | None = None
    offer: Callable[[str], bool] = lambda _: False
    offered: str = ""
    several_lines: str = ""

    def keep(self) -> None:
        """Have a new chat with a name kept in a folder as it grows, if the runtime can. Raises SessionFileError."""
        if self.name is None or self.session.kept_in is not None or not self.runtime.keeps_sessions:
            return
        path = writable_path_of(self.name)
        if not path.exists():
            with contextlib.suppress(edgekv.SessionError):  # one without a history is saved whole
                self.session.keep(path)

    def save(self, *, leaves: bool = False) -> None:
        """Save it under its name, if it has one; under another name if somebody changed that file.

        A chat that is appended to its folder needs no save.

        leaves: write the archive as well, which takes longer

        Raises SessionFileError.
        """
        if self.name is None:
            if self.backup is not None:
                with contextlib.suppress(edgekv.SessionFileError):  # the backup matters only if the worker dies
                    self.session.save(self.backup, archive=False)
            return
        self.keep()
        if self.session.kept_in is not None:
            return
        name = save_as(functools.partial(self.session.save, archive=leaves), self.name, self.owned)
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
        self.forgets = False
        if self.backup is not None:
            self.backup.unlink(missing_ok=True)

    def offer_again(self, text: str) -> bool:
        """Begin the next line with a message that was not answered; return False if that is not possible."""
        self.offered = text if self.offer(text) else ""
        return bool(self.offered)

    def interrupted(self) -> None:
        """Handle Ctrl-C: cancel the reply; the second time within a second, leave as well."""
        self.ended = self.interrupts.is_second() or self.ended
        self.session.cancel()


@contextlib.contextmanager
def interrupt_cancels(chat: Chat) -> Iterator[None]:
    """Have Ctrl-C stop the reply instead of the program, for the length of the block."""
    before = signal.signal(signal.SIGINT, lambda *_: chat.interrupted())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def new_session(runtime: edgekv.Runtime, system: str | None) -> edgekv.Session:
    """Open a session that /undo can rewind, if the folder for temporary files takes its log."""
    try:
        return runtime.session(system, history=True)
    except edgekv.SessionFileError:
        return runtime.session(system)


def saved_session(
    runtime: edgekv.Runtime, name: str, owned: Ownership, instead_of: edgekv.Session | None = None
) -> tuple[edgekv.Session, str]:
    """Load a session; return it with the name to save the chat under: a new name if the session is a text."""
    path = existing_path_of(name)
    is_text = holds_only_text(path)
    owned.note(path)
    session = runtime.load_session(path, instead_of=instead_of, keep=is_kept(path))
    if not is_text:
        return session, name
    chat = free_name(f"{name}-chat")
    say(f"{name} is a text that was read, and stays as it is; this chat is saved as {chat}")
    return session, chat


def system_of(session: edgekv.Session) -> str | None:
    """Return the system message that a session began with, as far as its log tells."""
    with contextlib.suppress(edgekv.SessionError):
        for turn in session.turns():
            return "".join(session.text(turn)) if turn.role == "system" else None
    return None


def system_of_template(runtime: edgekv.Runtime) -> str | None:
    """Return the system message that the chat template adds to a chat without one; None = it adds none."""
    mark, first = "\u2603", {"role": "user", "content": "?"}
    try:
        without = runtime.prompt_text([first])
        before, _, after = runtime.prompt_text([{"role": "system", "content": mark}, first]).partition(mark)
    except edgekv.EdgeKVError:  # the model has no template, or one that takes no system message
        return None
    added = without[len(before) : len(without) - len(after)]
    return added.strip() or None if without == before + added + after else None


def last_turn(session: edgekv.Session, role: str) -> edgekv.Turn | None:
    """Return the newest turn of a role. Raises SessionError for a session without a history."""
    found = None
    for turn in session.turns():
        if turn.role == role:
            found = turn
    return found
