"""Input and output of a chat: drawn on a terminal if the ceiling has room for that beside enough cells, or plain."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import edgekv
from edgekv.cli.render import NOTES, console_of, print_footer, say
from edgekv.extras import install_command
from edgekv.memory.sizes import MIB, format_size
from edgekv.models import find_model

from .chat import Chat
from .completion import Arguments
from .input_history import History, history_path
from .lines import Typed
from .plain import PlainInput, PlainReply
from .status import reply_line

COMFORT_BYTES = 18 * MIB  # 16 measured (docs/chat.md), and what this plan itself leaves behind


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
    if plain or not _can_draw():
        return TerminalUI(PlainInput(), lambda _: PlainReply(), _print_footer)
    if not _has_room(runtime):
        say(f"plain: the ceiling has no {format_size(COMFORT_BYTES)} for a line editor and Markdown")
        _start_again_plain()
        return TerminalUI(PlainInput(), lambda _: PlainReply(), _print_footer)
    from . import live_reply

    live_reply.warm_up()
    console = console_of(stderr=False)

    def live(chat: Chat) -> Reply:
        figures = lambda n, seconds, width: reply_line(chat, n, seconds, width)  # noqa: E731
        return live_reply.LiveReply(console, figures, thinks=chat.thinks)

    return TerminalUI(_editor(commands, remember), live, _print_note)


def _can_draw() -> bool:
    """Return True if this is a terminal that can be drawn on, and its user wants that."""
    dull = os.environ.get("TERM", "dumb") in ("dumb", "unknown") and sys.platform != "win32"
    return sys.stdin.isatty() and sys.stdout.isatty() and not dull and not os.environ.get("NO_COLOR")


def _has_room(options: dict[str, Any]) -> bool:
    """Return True if a runtime of these options has enough cells beside the editor, or all that it asks for.

    For the editor's sake no more layers may be streamed.
    """
    if options["isolated"]:  # the ceiling is for the worker
        return True
    from edgekv.planning.choice import Request  # other commands show their help without these
    from edgekv.planning.default_memory import ENOUGH_CELLS

    request = Request.of(**{name: value for name, value in options.items() if name != "model"})
    asked = request.of_model(find_model(options["model"])).options
    try:
        plan = edgekv.plan(**options | {"memory": asked.ceiling_bytes - COMFORT_BYTES})
        if plan.n_streamed > edgekv.plan(**options).n_streamed:
            return False  # weights in memory are worth more than an editor
    except edgekv.CeilingError:
        return False
    beside = plan.block + asked.probe_cells
    enough = min(ENOUGH_CELLS, plan.n_ctx_train - beside) if asked.budget is None else asked.budget
    return not plan.cell_bytes or plan.budget_cells >= enough


def _start_again_plain() -> None:
    """Run this command anew in the same process, plain, and without the MiB that a plan left behind.

    Returns if that is not possible.
    """
    arguments = sys.argv[1:]
    as_started = not arguments or sys.orig_argv[-len(arguments) :] == arguments
    if os.name == "posix" and as_started and sys.executable:
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(sys.executable, sys.orig_argv, os.environ | {"EDGEKV_PLAIN": "1"})


def _editor(commands: Mapping[str, Arguments | None], remember: bool) -> Input:
    if importlib.util.find_spec("prompt_toolkit") is None:
        say(f"plain input: a line editor needs prompt_toolkit; {install_command('chat')}")
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
