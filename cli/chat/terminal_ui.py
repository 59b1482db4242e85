"""Input and output of a chat: drawn on a terminal, or plain."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from edgekv.cli.render import NOTES, console_of, print_footer, say
from edgekv.memory.sizes import format_size

from .chat import Chat
from .completion import Arguments
from .input_history import History, history_path
from .lines import Typed
from .plain import PlainInput, PlainReply
from .room import COMFORT_BYTES, can_draw, has_room, start_again
from .status import reply_line


class Input(Protocol):
    """Reads lines from the user. several_lines: how to type a message of several lines"""

    several_lines: str

    def read(self, bottom_line: Callable[[int], str]) -> Typed:
        """Return the next message or command. Below it stands `bottom_line`, made for a number of columns.

        Raises EOFError at the end, and KeyboardInterrupt for Ctrl-C.
        """

    def offer(self, text: str) -> bool:
        """Begin the next line with a text; return False if that is not possible."""


class Reply(Protocol):
    """Shows the pieces of one reply, in `with`."""

    def __enter__(self) -> Reply:
        """Begin the reply."""

    def add(self, piece: str) -> None:
        """Show a piece."""

    def __exit__(self, *_: Any) -> None:
        """End the reply, also after an error."""


@dataclass(frozen=True)
class TerminalUI:
    """Input and output of a chat.

    reply: makes the view of the next reply
    figures: shows the figures of a reply
    """

    input: Input
    reply: Callable[[Chat], Reply]
    figures: Callable[[Chat], None]


def terminal_ui(
    runtime: dict[str, Any], commands: Mapping[str, Arguments | None], *, plain: bool, remember: bool
) -> TerminalUI:
    """Return the UI that this terminal and the ceiling allow. Make it before the runtime, whose plan then counts it.

    runtime: arguments of `edgekv.Runtime`
    commands: by name, the completion of their argument
    remember: keep typed lines for later chats
    """
    if plain or not can_draw():
        return TerminalUI(PlainInput(), lambda _: PlainReply(), _print_footer)
    if not has_room(runtime):
        say(f"plain: the ceiling has no {format_size(COMFORT_BYTES)} for a line editor and Markdown")
        start_again(EDGEKV_PLAIN="1", EDGEKV_MEASURE_HEADS="0")
        return TerminalUI(PlainInput(), lambda _: PlainReply(), _print_footer)
    from . import live_reply

    live_reply.warm_up()
    console = console_of(stderr=False)

    def live(chat: Chat) -> Reply:
        figures = lambda n, seconds, width: reply_line(chat, n, seconds, width)  # noqa: E731
        return live_reply.LiveReply(console, figures, thinks=chat.thinks)

    return TerminalUI(_editor(commands, remember), live, _print_note)


def _editor(commands: Mapping[str, Arguments | None], remember: bool) -> Input:
    if importlib.util.find_spec("prompt_toolkit") is None:
        say("plain input: a line editor needs prompt_toolkit; pip install 'edgekv[chat]'")
        return PlainInput()
    from . import editor

    editor.warm_up()
    return editor.Editor(History(history_path()) if remember else None, commands)


def _print_footer(chat: Chat) -> None:
    print_footer(chat.session.stats, chat.runtime.plan)


def _print_note(chat: Chat) -> None:
    """Say how a reply ended, if that is unusual. The line below the input has its figures."""
    if chat.session.stats.finish_reason in NOTES:
        say(NOTES[chat.session.stats.finish_reason])
