"""`/undo` and `/retry`, and messages that were not answered: the session goes back to before the last message."""

from __future__ import annotations

import edgekv
from edgekv.cli.render import reading_bar, say
from edgekv.counting import counted
from edgekv.store.session_names import path_of

from .chat import Chat, Message, interrupt_cancels, new_session, saved_session
from .earlier import last_message, unanswered_message


def undo(chat: Chat, _argument: str) -> None:
    """Take the last message and its answer back."""
    _take_back(chat)
    chat.save()
    say(f"your last message and its answer are taken back: {counted(chat.session.n_past, 'token')} seen")


def retry(chat: Chat, _argument: str) -> None:
    """Answer the last message again."""
    chat.again = _take_back(chat)


def _take_back(chat: Chat) -> Message:
    """Go back to before the last message. Replies from there on draw other random numbers."""
    message = chat.messages[-1] if chat.messages else last_message(chat)
    if message is None:
        raise edgekv.InputError("nothing was answered yet, so nothing can be taken back")
    _go_back(chat, message, other_draws=True)
    del chat.messages[-1:]
    return message


def _go_back(chat: Chat, message: Message, *, other_draws: bool) -> None:
    """Go back to before a message. If that is stopped, a chat that is saved is as it was."""
    with interrupt_cancels(chat), reading_bar() as progress:
        chat.session.rewind(message.n_past, other_draws=other_draws, progress=progress)
    n_past = chat.session.n_past
    if n_past == message.n_past:
        return
    if chat.name is not None and chat.session.kept_in is None and not chat.owned.is_foreign(path_of(chat.name)):
        chat.session, _ = saved_session(chat.runtime, chat.name, chat.owned, chat.session)
        raise edgekv.InputError(
            f"stopped after {n_past:,} of {counted(message.n_past, 'token')}; the chat is as it was saved"
        )
    chat.messages = [earlier for earlier in chat.messages if earlier.n_past <= n_past]
    raise edgekv.InputError(f"stopped after {n_past:,} of {message.n_past:,} tokens that were kept")


def give_back(chat: Chat, message: Message) -> None:
    """Put an unanswered message and its files back into the input, and remove its tokens from the session."""
    hand_back(chat, message)
    if chat.session.n_past == message.n_past:
        return
    try:
        _go_back(chat, message, other_draws=False)
    except edgekv.SessionError:
        if message.n_past:
            say("what was read of it stays in this chat, which keeps no history to go back by", style="")
            return
        begun = new_session(chat.runtime, chat.system)
        chat.session.close()
        chat.session = begun
    say(f"what was read of it is taken back: {counted(chat.session.n_past, 'token')} seen")


def take_unanswered_back(chat: Chat) -> None:
    """Take back the message that a chat was reading when its process was killed, and offer it again."""
    message = unanswered_message(chat)
    if message is not None:
        chat.messages.append(message)
        give_back(chat, message)


def hand_back(chat: Chat, message: Message) -> None:
    """Put a message and its files back before the user."""
    if message in chat.messages:
        chat.messages.remove(message)
    chat.files = [*message.files]
    written = "" if chat.offer_again(message.text) else "; write it again"
    say(f"your message was not answered{_with_files(len(chat.files))}{written}")


def _with_files(n: int) -> str:
    if not n:
        return ""
    files, them = ("file that goes", "it") if n == 1 else ("files that go", "them")
    return f", with {n} {files} with the next one (/drop leaves {them} out)"
