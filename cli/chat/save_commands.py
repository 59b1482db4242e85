"""`/save`, `/load`, `/session` and `/system`: chats under names, and chats that begin anew."""

from __future__ import annotations

from pathlib import Path

import edgekv
from edgekv.cli.render import console, packed, printable, remembered, say
from edgekv.store.kept_folder import is_kept, remove_kept, was_stopped
from edgekv.store.session_names import path_of, save_as, saved_names, writable_path_of
from edgekv.store.transcript import FORMATS, names_format

from .chat import Chat, new_session, saved_session, system_of, system_of_template
from .earlier import show_last
from .undo import take_unanswered_back

FORCE = "--force"
# endings of files that a user who writes them expects to get
FOREIGN = {".pdf", ".docx", ".doc", ".odt", ".rtf", ".epub", ".html", ".htm", ".txt", ".csv", ".jsonl", ".xml", ".gguf"}


def save(chat: Chat, argument: str) -> None:
    """Keep the chat under a name from now on, or write it as text. A file of somebody else's stays, unless forced."""
    force, name = (argument == FORCE or argument.startswith(f"{FORCE} ")), argument
    if force:
        name = argument.removeprefix(FORCE).strip()
    is_text = names_format(Path(name))
    _check_ending(name)
    if not name and chat.name is None:
        raise edgekv.InputError("this chat has no name yet; write /save and a name")
    path = Path(name).expanduser() if is_text else path_of(name or str(chat.name))
    if chat.session.kept_in == path:
        say(f"{name or chat.name} is kept as it grows")
        return
    if force:
        chat.owned.note(path)
    if chat.owned.is_foreign(path):
        raise edgekv.InputError(
            f"{path if is_text else name or chat.name} is there, and was not written by this chat; "
            f"give another name, or replace it with /save {FORCE} {name or chat.name}"
        )
    if is_text:
        chat.session.export(path)
        chat.owned.note(path)
        say(f"what was said is in {path}")
        return
    name = name or str(chat.name)
    if force and is_kept(path):
        remove_kept(path)
    if chat.runtime.keeps_sessions and not path.exists():
        chat.session.keep(writable_path_of(name))
        chat.name = name
        say(f"saved as {name}, and kept as it grows")
    else:
        chat.name = save_as(chat.session.save, name, chat.owned)
        say(f"saved as {chat.name}, and again after every reply")


def _check_ending(name: str) -> None:
    """Raise InputError for a name that looks like a file of a format that no chat is written in."""
    path = Path(name)
    if path.suffix.lower() in FOREIGN:
        raise edgekv.InputError(
            f"{name!r} looks like a file, and a chat is written as {' or '.join(FORMATS)}; write /save "
            f"{path.with_suffix(FORMATS[0])}, or /save {path.stem} to keep the chat under a name"
        )


def load(chat: Chat, name: str) -> None:
    """Go on with a saved chat."""
    if not name:
        raise edgekv.InputError("nothing is named; write /load and the name of a saved session (/session lists them)")
    if chat.session.kept_in == path_of(name):
        raise edgekv.InputError(f"{name} is this chat; name another one, or go back in this one with /undo")
    stopped = is_kept(path_of(name)) and was_stopped(path_of(name))
    session, kept = saved_session(chat.runtime, name, chat.owned, chat.session)
    chat.go_on_with(session, kept, system_of(session))
    say(f"{name}: {remembered(session.n_cells, session.n_past)}")
    if stopped:
        take_unanswered_back(chat)
    show_last(chat)


def session(chat: Chat, name: str) -> None:
    """List the saved chats, or go to one, which may be new."""
    if not name:
        names = [f"{name} (this one)" if name == chat.name else name for name in saved_names()]
        for line in packed(names, console.width) or ["no session was saved yet; /save NAME saves this one"]:
            say(line)
    elif path_of(name).exists():
        load(chat, name)
    else:
        _begin_anew(chat, name, chat.system)
        say(f"{name}: a new chat, kept under this name")


def system(chat: Chat, text: str) -> None:
    """Show the system message, or begin anew with another one."""
    if not text:
        _show_system(chat)
        return
    had_begun = chat.session.n_past > 0
    _begin_anew(chat, None if had_begun else chat.name, text)
    say(f"a {'new ' * had_begun}chat with this system message")


def _show_system(chat: Chat) -> None:
    """Show the system message, or the chat template's own if there is none."""
    if chat.system is not None:
        say(chat.system)
    elif added := system_of_template(chat.runtime):
        say(f"there is none of yours, so the model's chat template adds one: {printable(added)}")
        say("/system TEXT begins a new chat with another")
    else:
        say("there is no system message; /system TEXT begins a new chat with one")


def _begin_anew(chat: Chat, name: str | None, system: str | None) -> None:
    """Leave the session for a new one, which is opened first: the old one stays if that fails."""
    opened = new_session(chat.runtime, system)
    chat.session.close()
    chat.go_on_with(opened, name, system)
