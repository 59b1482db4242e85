"""`edgekv chat`: a conversation of any length, which can be kept and gone on with another day."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated, Any

import typer

import edgekv
from edgekv.engine.thoughts import opens_thoughts
from edgekv.models import read_header
from edgekv.prompt.spool import spooled
from edgekv.store.named import path_of, saved_names

from .commands import COMMANDS, is_command, run_command
from .options import System, opened, with_common_options
from .render import console, reading_bar, say
from .reply import reply_arguments, with_reply_options
from .settings import preset_names, preset_options
from .talk.conversation import Chat, Message, interrupt_cancels, new_session, system_of
from .talk.front import Front, front
from .talk.lines import lines
from .talk.telling import bottom_line
from .wording import worded


def _use_preset(context: typer.Context, name: str | None) -> str | None:
    """Take the options of a preset where none are given."""
    if name is not None:
        context.default_map = {**(context.default_map or {}), **preset_options(name, context.command)}
    return name


@with_common_options
@with_reply_options(temp=0.7)
def chat(
    runtime: dict[str, Any],
    reply: dict[str, Any],
    system: System = None,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Keep the chat under a name, and go on with it if there is one.",
            autocompletion=saved_names,
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Options that the settings file has under this name.",
            is_eager=True,
            callback=_use_preset,
            envvar="EDGEKV_PRESET",
            autocompletion=preset_names,
        ),
    ] = None,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="No Markdown and no line editor, as in a pipe.", envvar="EDGEKV_PLAIN"),
    ] = False,
    history: Annotated[
        bool,
        typer.Option("--history/--no-history", help="Keep what is typed for the next chat.", envvar="EDGEKV_HISTORY"),
    ] = True,
) -> None:
    """Chat under the memory ceiling. Ctrl-C stops a reply, and leaves when it comes twice within a second."""
    arguments = reply_arguments(reply)
    saved = None if session is None else path_of(session)
    if saved is not None and saved.exists() and system is not None:
        raise edgekv.ConfigError(
            f"{session!r} has a system message of its own; leave out --system, or give another --session"
        )
    completed = {name: command.arguments for name, command in COMMANDS.items()}
    shown = front(runtime, completed, plain=plain, remember=history)
    with opened(runtime) as rt:
        begun = saved is not None and saved.exists()
        conversation = rt.load_session(saved) if saved is not None and begun else new_session(rt, system)
        talk = Chat(rt, conversation, session, system_of(conversation) if begun else system, arguments)
        talk.thinks = _thinks(rt)
        say(f"{rt.plan.model.name}, {rt.plan.budget_cells:,} cells; /help lists the commands")
        if begun:
            say(f"{session}: {conversation.n_past:,} tokens seen")
        with talk.pastes:
            _converse(talk, shown)


def _converse(chat: Chat, front: Front) -> None:
    """Answer what is typed, until the user leaves."""

    def interrupted() -> bool:
        if not chat.interrupts.is_second():
            console.print()
            say("Ctrl-C again leaves; /help lists the commands")
            return False
        return True

    for typed in lines(lambda: front.input.read(lambda width: bottom_line(chat, width)), interrupted):
        with _problems_are_said():
            chat.files += [chat.pastes.enter_context(spooled([paste])) for paste in typed.pastes]
            if is_command(typed.text):
                run_command(chat, typed.text)
            elif typed.text:
                _reply(chat, Message(typed.text, chat.files, chat.session.n_past), front)
            else:
                n = sum(map(len, typed.pastes))
                say(f"{n:,} characters go with your next message; write what you want to know of them")
            if chat.again is not None:
                _reply(chat, chat.again, front)
        if chat.ended:
            return


@contextlib.contextmanager
def _problems_are_said() -> Iterator[None]:
    """What is wrong with a line is said, and the conversation goes on. A worker that died is the end of it."""
    try:
        yield
    except (edgekv.NativeError, edgekv.WorkerError, edgekv.ModelError):
        raise
    except edgekv.EdgeKVError as error:
        say(f"edgekv: {worded(str(error))}", style="")


def _thinks(rt: edgekv.Runtime) -> bool:
    """Whether the model's chat template begins every reply with reasoning."""
    from edgekv.prompt.template import opens_with  # the runtime has imported it

    header = rt.model.header if rt.worker_pid is None else read_header(rt.plan.model)
    return opens_thoughts(opens_with(header.chat_template or ""))


def _reply(chat: Chat, message: Message, front: Front) -> None:
    """Answer a message, and keep the conversation up to here if it has a name."""
    chat.files, chat.again = [], None
    chat.messages.append(message)
    with interrupt_cancels(chat):
        try:
            with reading_bar() as progress, front.reply(chat) as shown:
                for piece in chat.session.chat(message.text, files=message.files, **chat.reply, progress=progress):
                    shown.add(piece)
            front.figures(chat)
        finally:
            if chat.session.n_past == message.n_past:
                chat.messages.remove(message)
            chat.save()
