"""A chat whose worker process died goes on in another one, from its last save."""

from __future__ import annotations

from collections.abc import Callable

import edgekv
from edgekv.cli.render import say
from edgekv.store.session_names import path_of

from .chat import Chat, new_session


def go_on_in(chat: Chat, reopened: Callable[[], edgekv.Runtime]) -> None:
    """Go on in another runtime: with the last save of the chat; without one it begins anew.

    Raises what opening the runtime raises, and SessionFileError if the saved chat cannot be read any more.
    """
    chat.runtime.close()
    chat.runtime = reopened()
    path = chat.backup if chat.name is None else path_of(chat.name)
    if path is not None and path.is_file():
        chat.session = chat.runtime.load_session(path)
    else:
        chat.session = new_session(chat.runtime, chat.system)
    n_past = chat.session.n_past
    lost = [message for message in chat.messages if message.n_past >= n_past]
    chat.messages = [message for message in chat.messages if message.n_past < n_past]
    if lost:
        n = len(lost)
        say(f"{n} {'message that was not saved is' if n == 1 else 'messages that were not saved are'} lost", style="")
