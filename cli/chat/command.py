"""`edgekv chat`: a conversation of any length, which can be kept and gone on with another day."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

import edgekv
from edgekv.cli.files import checked_texts, found_files, readable
from edgekv.cli.render import console, reading_bar, remembered, say
from edgekv.cli.settings import preset_names, preset_options
from edgekv.cli.shared_options import Raw, System, opened, reply_arguments, with_common_options, with_reply_options
from edgekv.cli.wording import worded
from edgekv.counting import counted
from edgekv.generation.reasoning import opens_reasoning
from edgekv.generation.request import INSTRUCTION
from edgekv.generation.sampler import CONVERSATION
from edgekv.prompt.named_files import NamedFile
from edgekv.prompt.spool import spooled
from edgekv.store.kept_folder import is_kept, was_stopped
from edgekv.store.ownership import Ownership
from edgekv.store.session_names import path_of, saved_names
from edgekv.store.temp_folder import TempFolder
from edgekv.warmup import reserve

from .chat import Chat, Message, interrupt_cancels, new_session, saved_session, system_of
from .commands import COMMANDS, command_behind, is_command, run_command
from .earlier import show_last
from .lines import Typed, lines
from .status import bottom_line, tell_forgetting
from .terminal_ui import TerminalUI, terminal_ui
from .undo import give_back, hand_back, take_unanswered_back

CHAT_BYTES = 6 << 20  # bytes that lines and commands take in an hour of use


def _use_preset(context: typer.Context, name: str | None) -> str | None:
    """Take the options of a preset as defaults."""
    if name is not None:
        context.default_map = {**(context.default_map or {}), **preset_options(name, context.command)}
    return name


@with_common_options
@with_reply_options(CONVERSATION)
def chat(
    runtime: dict[str, Any],
    reply: dict[str, Any],
    message: Annotated[str | None, typer.Argument(help="First message. Default: you type it.")] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", help="Texts or documents for the first message: names, patterns, folders."),
    ] = None,
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
    raw: Raw = False,
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
    arguments = reply_arguments(reply) | {"instruction": "" if raw else INSTRUCTION}
    files = readable(found_files(file or ()))
    saved = None if session is None else path_of(session)
    if saved is not None and saved.exists() and system is not None:
        raise edgekv.ConfigError(
            f"{session!r} has a system message of its own; leave out --system, or give another --session"
        )
    completed = {name: command.arguments for name, command in COMMANDS.items()}
    with ExitStack() as stack:
        stack.callback(reserve(CHAT_BYTES))  # first, so that the editor is drawn only where there is room for both
        ui = terminal_ui(runtime, completed, plain=plain, remember=history)
        texts = checked_texts(files, stack)
        rt = stack.enter_context(opened(runtime, goes_back=True))
        owned = Ownership()
        kept = session
        stopped = saved is not None and is_kept(saved) and was_stopped(saved)
        if saved is not None and session is not None and saved.exists():
            conversation, kept = saved_session(rt, session, owned)
            system = system_of(conversation)
        else:
            conversation = new_session(rt, system)
        talk = Chat(rt, conversation, kept, system, arguments, owned=owned, offer=ui.input.offer)
        talk.several_lines = ui.input.several_lines
        talk.files = [*texts]
        talk.thinks = _thinks(rt)
        if rt.worker_pid is not None:  # a worker may die
            with contextlib.suppress(OSError):
                folder = TempFolder(Path(tempfile.gettempdir()))
                stack.callback(folder.close)
                talk.backup = folder.path / "chat.session"
        say(f"{rt.plan.model.name}, {rt.plan.budget_cells:,} cells; /help lists the commands")
        if conversation.n_past:
            say(f"{session}: {remembered(conversation.n_cells, conversation.n_past)}")
            if stopped:
                take_unanswered_back(talk)
            show_last(talk)
        for text in texts:
            say(f"{text.name} goes with your {'message' if message else 'first message'}")
        with talk.pastes:
            _converse(talk, ui, lambda: stack.enter_context(opened(runtime, goes_back=True)), message)
        if talk.name is not None and talk.messages:
            with contextlib.suppress(edgekv.EdgeKVError):  # it was saved after the last reply
                talk.save(leaves=True)


def _converse(chat: Chat, ui: TerminalUI, reopened: Callable[[], edgekv.Runtime], first: str | None = None) -> None:
    """Answer lines until the user leaves. reopened: opens the runtime again; first: a message that is typed already"""

    def interrupted() -> bool:
        if not chat.interrupts.is_second():
            console.print()
            say("Ctrl-C again leaves; /help lists the commands")
            return False
        return True

    typed_lines = lines(lambda: ui.input.read(lambda width: bottom_line(chat, width)), interrupted)
    for typed in itertools.chain([Typed(first)] if first else [], typed_lines):
        try:
            with _problems_are_said():
                _answer(chat, typed, ui)
        except edgekv.WorkerError as error:
            say(f"edgekv: {worded(str(error))}", style="")
            go_on_in(chat, reopened)
            say(f"another worker goes on with this chat: {counted(chat.session.n_past, 'token')} seen", style="")
        if chat.ended:
            return


def _answer(chat: Chat, typed: Typed, ui: TerminalUI) -> None:
    """Run a command, or reply to a message."""
    offered, chat.offered, text = chat.offered, "", typed.text
    if behind := command_behind(offered, text):
        chat.offer_again(offered)
        text = behind
    chat.files += [NamedFile(chat.pastes.enter_context(spooled([paste])), "") for paste in typed.pastes]
    if is_command(text):
        run_command(chat, text)
    elif text:
        reply_to(chat, Message(text, [*chat.files], _n_past(chat, text)), ui)
    else:
        n = sum(map(len, typed.pastes))
        say(f"pasted {counted(n, 'character')} for your next message; write what you want to know")
    if chat.again is not None:
        reply_to(chat, chat.again, ui)


def reply_to(chat: Chat, message: Message, ui: TerminalUI) -> None:
    """Answer a message, and keep the conversation up to here. One that got no answer is given back."""
    chat.files, chat.again = [], None
    with contextlib.suppress(edgekv.SessionFileError):  # the save after the reply says so
        chat.keep()
    chat.messages.append(message)
    answered = False
    try:
        with interrupt_cancels(chat):
            with reading_bar() as progress, ui.reply(chat) as shown:
                for piece in chat.session.ask(message.text, message.files, **chat.reply, progress=progress):
                    answered = True
                    shown.add(piece)
            answered = answered or chat.session.stats.finish_reason != "cancelled"
            ui.figures(chat)
            tell_forgetting(chat)
    except (edgekv.WorkerError, edgekv.NativeError):
        hand_back(chat, message)
        raise
    finally:
        if message in chat.messages:
            if answered:
                chat.save()
            else:
                give_back(chat, message)


def _n_past(chat: Chat, text: str) -> int:
    """Tokens seen before a message. A worker that died meanwhile has not seen the message."""
    try:
        return chat.session.n_past
    except edgekv.WorkerError:
        hand_back(chat, Message(text, [*chat.files], 0))
        raise


@contextlib.contextmanager
def _problems_are_said() -> Iterator[None]:
    """Say what is wrong with a line, and go on with the conversation."""
    try:
        yield
    except (edgekv.NativeError, edgekv.WorkerError, edgekv.ModelError):
        raise
    except edgekv.EdgeKVError as error:
        say(f"edgekv: {worded(str(error))}", style="")


def go_on_in(chat: Chat, reopened: Callable[[], edgekv.Runtime]) -> None:
    """Open another runtime and load the last save of the chat. If there is none, the chat begins anew.

    Raises the errors of `Runtime`, and SessionFileError if the saved chat cannot be read any more.
    """
    chat.runtime.close()
    chat.runtime = reopened()
    path = chat.backup if chat.name is None else path_of(chat.name)
    if path is not None and path.exists():
        chat.session = chat.runtime.load_session(path, keep=is_kept(path))
    else:
        chat.session = new_session(chat.runtime, chat.system)
    n_past = chat.session.n_past
    lost = [message for message in chat.messages if message.n_past >= n_past]
    chat.messages = [message for message in chat.messages if message.n_past < n_past]
    if lost:
        n = len(lost)
        say(f"{counted(n, 'message')} not saved, and lost", style="")


def _thinks(rt: edgekv.Runtime) -> bool:
    """Return True if the model's chat template begins every reply with reasoning."""
    from edgekv.prompt.template import opens_with  # the runtime has imported it

    return opens_reasoning(opens_with(rt.header.chat_template or ""))
