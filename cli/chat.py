"""`edgekv chat`: a conversation of any length, which can be kept and gone on with another day."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import typer

import edgekv
from edgekv.store.named import path_of

from .commands import Chat, Message, help_text, interrupt_cancels, is_command, run_command
from .options import System, opened, with_common_options
from .render import console, print_footer, reading_bar, write
from .reply import reply_arguments, with_reply_options
from .wording import worded


@with_common_options
@with_reply_options(temp=0.7)
def chat(
    runtime: dict[str, Any],
    reply: dict[str, Any],
    system: System = None,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="Keep the chat under a name, and go on with it if there is one.")
    ] = None,
) -> None:
    """Chat under the memory ceiling. Ctrl-C stops a reply and keeps the conversation."""
    arguments = reply_arguments(reply)
    saved = None if session is None else path_of(session)
    if saved is not None and saved.exists() and system is not None:
        raise edgekv.ConfigError(
            f"{session!r} has a system message of its own; leave out --system, or give another --session"
        )
    if sys.stdin.isatty():  # before the plan, which counts it
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  (line editing and history for input)
    with opened(runtime) as rt:
        goes_on = saved is not None and saved.exists()
        conversation = rt.load_session(saved) if saved is not None and goes_on else _session(rt, system)
        talk = Chat(rt, conversation, session)
        begun = f" {session}: {conversation.n_past:,} tokens seen." if goes_on else ""
        console.print(f"[dim]{rt.plan.model.name}, {rt.plan.budget_cells:,} cells.[/dim]", soft_wrap=True)
        console.print(f"{begun.strip()}\n{help_text()}".strip(), style="dim", markup=False, soft_wrap=True)
        for line in _lines():
            if not line.strip():
                continue
            with _problems_are_said():
                if is_command(line):
                    run_command(talk, line)
                else:
                    _reply(talk, Message(line, talk.files, talk.session.n_past), arguments)
                if talk.again is not None:
                    _reply(talk, talk.again, arguments)
            if talk.ended:
                return


def _lines() -> Iterator[str]:
    """Lines that the user types, until end of input. Ctrl-C at the prompt drops the line."""
    while True:
        try:
            yield input("> " if sys.stdin.isatty() else "")
        except EOFError:
            return
        except KeyboardInterrupt:
            console.print(f"\n{help_text()}", style="dim", markup=False, soft_wrap=True)


@contextlib.contextmanager
def _problems_are_said() -> Iterator[None]:
    """What is wrong with a line is said, and the conversation goes on. A worker that died is the end of it."""
    try:
        yield
    except (edgekv.NativeError, edgekv.WorkerError, edgekv.ModelError):
        raise
    except edgekv.EdgeKVError as error:
        console.print(f"edgekv: {worded(str(error))}", soft_wrap=True, markup=False)


def _session(rt: edgekv.Runtime, system: str | None) -> edgekv.Session:
    """A session that /undo can go back in, if the folder for temporary files takes its log."""
    try:
        return rt.session(system, log=True)
    except edgekv.SessionFileError:
        return rt.session(system)


def _reply(chat: Chat, message: Message, arguments: dict[str, Any]) -> None:
    """Answer a message, and keep the conversation up to here if it has a name."""
    chat.files, chat.again = [], None
    chat.messages.append(message)
    with interrupt_cancels(chat.session):
        try:
            with reading_bar() as progress:
                for piece in chat.session.chat(message.text, files=message.files, **arguments, progress=progress):
                    write(piece)
            write("\n")
            print_footer(chat.session.stats, chat.runtime.plan)
        finally:
            if chat.session.n_past == message.n_past:
                chat.messages.remove(message)
            chat.save()
