"""Messages and replies from before a chat was opened, from the log of its session."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import edgekv
from edgekv.cli.render import printable, say
from edgekv.generation.reasoning import split_reasoning
from edgekv.prompt.spool import spooled
from edgekv.prompt.text import PARAGRAPH

from .chat import Chat, Message, last_turn

LONG = 256  # tokens of a message that holds a text to ask about
SHOWN_ASKED, SHOWN_SAID = 64, 512  # tokens of the last message and its answer


def last_message(chat: Chat) -> Message | None:
    """Return the newest message that was answered; None if the log has none.

    Raises SessionError for a session without a log.
    """
    found = asked = before = None
    answered = 0
    for turn in chat.session.turns(apart=True):
        if turn.role == "user":
            goes_on = before is not None and (before.role, before.stop) == ("user", turn.start)
            asked = turn, (turn.start if goes_on else answered)
        elif turn.role == "assistant":
            found, asked, answered = asked or found, None, turn.stop
        before = turn
    return None if found is None else _message(chat, *found)


def _message(chat: Chat, turn: edgekv.Turn, n_past: int) -> Message:
    """Return a turn as a message. The last paragraph of a long one is the question; all before it becomes a file."""
    if turn.stop - turn.start <= LONG:
        return Message("".join(chat.session.text(turn)).removeprefix(PARAGRAPH), [], n_past)
    question, gap = "", ""

    def before() -> Iterator[str]:
        nonlocal question, gap
        for piece in chat.session.text(turn):
            *paragraphs, question = (question + piece).rsplit(PARAGRAPH, 1)
            for paragraph in paragraphs:
                yield gap + paragraph
                gap = PARAGRAPH

    file = chat.pastes.enter_context(spooled(before()))
    return Message(question, [file] if file.stat().st_size else [], n_past)


def show_last(chat: Chat) -> None:
    """Show the last message and its answer, as far as they are short."""
    try:
        asked, said = last_turn(chat.session, "user"), last_turn(chat.session, "assistant")
    except edgekv.SessionError:
        return  # the session has no log
    if asked is None or said is None:
        return
    end = "".join(chat.session.text(asked._replace(start=max(asked.start, asked.stop - SHOWN_ASKED))))
    cut = "... " if asked.stop - asked.start > SHOWN_ASKED else ""
    say(f"> {cut}{printable(end.rsplit(PARAGRAPH, 1)[-1])}")
    shown = said._replace(stop=min(said.stop, said.start + SHOWN_SAID))
    _, answer = split_reasoning("".join(islice(chat.session.text(shown), SHOWN_SAID)), begun=chat.thinks)
    say(printable(answer) + (" ..." if shown.stop < said.stop else ""))
