"""Answers one message of a chat."""

from __future__ import annotations

import edgekv
from edgekv.cli.render import reading_bar

from .chat import Chat, Message, interrupt_cancels
from .terminal_ui import TerminalUI
from .undo import give_back, hand_back


def reply_to(chat: Chat, message: Message, ui: TerminalUI) -> None:
    """Answer a message, and keep the conversation up to here. One that got no answer is given back."""
    chat.files, chat.again = [], None
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
    except (edgekv.WorkerError, edgekv.NativeError):
        hand_back(chat, message)
        raise
    finally:
        if message in chat.messages:
            if answered:
                chat.save()
            else:
                give_back(chat, message)
