"""`/undo` and `/retry`: the session goes back to before the last message."""

from __future__ import annotations

import edgekv
from edgekv.cli.render import reading_bar, say

from .conversation import Chat, Message, interrupt_cancels


def undo(chat: Chat, _argument: str) -> None:
    """Take the last message and its answer back."""
    _take_back(chat)
    chat.save()
    say(f"your last message and its answer are taken back: {chat.session.n_past:,} tokens seen")


def retry(chat: Chat, _argument: str) -> None:
    """Have the last message answered again."""
    chat.again = _take_back(chat)


def _take_back(chat: Chat) -> Message:
    """Go back to before the last message; what is said from there on draws other random numbers."""
    if not chat.messages:
        raise edgekv.InputError("nothing was written since the chat was opened, so nothing can be taken back")
    message = chat.messages[-1]
    with interrupt_cancels(chat), reading_bar() as progress:
        chat.session.rewind(message.n_past, other_draws=True, progress=progress)
    del chat.messages[-1]
    if chat.session.n_past != message.n_past:
        chat.messages = [earlier for earlier in chat.messages if earlier.n_past <= chat.session.n_past]
        raise edgekv.InputError(f"stopped after {chat.session.n_past:,} of {message.n_past:,} tokens that were kept")
    return message
