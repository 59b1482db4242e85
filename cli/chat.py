"""`edgekv chat`: a conversation of any length."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import edgekv

from .options import System, opened, with_common_options
from .render import console, print_footer, reading_bar, write
from .reply import reply_arguments, with_reply_options
from .wording import worded

HELP = "/read FILE attaches a text file to your next message, /help shows this, /exit (or Ctrl-D) leaves."


@with_common_options
@with_reply_options(temp=0.7)
def chat(
    runtime: dict[str, Any],
    reply: dict[str, Any],
    system: System = None,
) -> None:
    """Chat under the memory ceiling. Ctrl-C stops a reply and keeps the conversation."""
    arguments = reply_arguments(reply)
    if sys.stdin.isatty():  # before the plan, which counts it
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input)
    with opened(runtime) as rt, rt.session(system) as session:
        console.print(f"[dim]{rt.plan.model.name}, {rt.plan.budget_cells:,} cells. {HELP}[/dim]")
        files: list[Path] = []
        for line in _lines():
            command, _, argument = line.strip().partition(" ")
            if command == "/exit":
                return
            if command == "/read":
                files += _attached(argument.strip())
            elif command == "/help":
                console.print(HELP)
            elif line.strip():
                _reply(session, line, files, arguments, rt.plan)
                files = []


def _lines() -> Iterator[str]:
    """Lines that the user types, until end of input. Ctrl-C at the prompt drops the line."""
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            console.print(f"\n[dim]{HELP}[/dim]")


def _attached(name: str) -> list[Path]:
    path = Path(name).expanduser()
    if not name or not path.is_file():
        console.print(f"edgekv: {name or 'nothing'!r} is not a file; write /read and the path of a text file")
        return []
    console.print(f"[dim]{path} goes with your next message[/dim]", soft_wrap=True)
    return [path]


def _reply(
    session: edgekv.Session,
    text: str,
    files: list[Path],
    arguments: dict[str, Any],
    plan: edgekv.Plan,
) -> None:
    """Answer one line. What is wrong with the line is said, and the conversation goes on."""
    with _interrupt_cancels(session):
        try:
            with reading_bar() as progress:
                for piece in session.chat(text, files=files, **arguments, progress=progress):
                    write(piece)
        except (edgekv.InputError, edgekv.CeilingExceededError) as error:
            console.print(f"edgekv: {worded(str(error))}", soft_wrap=True, markup=False)
            return
    write("\n")
    print_footer(session.stats, plan)


@contextlib.contextmanager
def _interrupt_cancels(session: edgekv.Session) -> Iterator[None]:
    """While it lasts, Ctrl-C stops the reply instead of the program."""
    before = signal.signal(signal.SIGINT, lambda *_: session.cancel())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
