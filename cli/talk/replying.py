"""Answers one message of a chat."""

from __future__ import annotations

import edgekv
from edgekv.cli.render import reading_bar

from .conversation import Chat, Message, interrupt_cancels
from .front import Front
from .going_back import give_back, hand_back


def reply_to(chat: Chat, message: Message, front: Front) -> None:
    """Answer a message, and keep the conversation up to here. One that got no answer is given back."""
    chat.files, chat.again = [], None
    chat.messages.append(message)
    answered = False
    try:
        with interrupt_cancels(chat):
            with reading_bar() as progress, front.reply(chat) as shown:
                for piece in chat.session.chat(message.text, files=message.files, **chat.reply, progress=progress):
                    answered = True
                    shown.add(piece)
            answered = answered or chat.session.stats.finish_reason != "cancelled"
            front.figures(chat)
    except (edgekv.WorkerError, edgekv.NativeError):
        hand_back(chat, message)
        raise
    finally:
        if message in chat.messages:
            if answered:
                chat.save()
            else:
                give_back(chat, message)
