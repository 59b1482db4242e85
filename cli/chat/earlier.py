"""Messages and replies of a chat, from the log of its session: also those before it was opened, and what is kept."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

import edgekv
from edgekv.cli.kept_text import print_legend, print_shades
from edgekv.cli.render import console_of, printable, say
from edgekv.conversations.coverage import Shaded
from edgekv.generation.reasoning import split_reasoning
from edgekv.generation.request import without_instruction
from edgekv.prompt.named_files import NamedFile
from edgekv.prompt.spool import spooled
from edgekv.prompt.text import PARAGRAPH

from .chat import Chat, Message, last_turn

LONG = 256  # tokens of a message that holds a text to ask about
SHOWN_ASKED, SHOWN_SAID = 64, 512  # tokens that are shown of a message and of a reply
SHOWN_KEPT = 4096  # tokens that /kept shows at once, of messages and of a text
MESSAGE_MARK = "> "  # before a message that is shown
SHOWN, SHOWN_FIRST = 20, 4  # messages and replies that /history shows, and a chat that goes on

_Asked: TypeAlias = tuple[edgekv.Turn, int]  # a message, and the tokens before it


def last_message(chat: Chat) -> Message | None:
    """Return the newest message that was answered; None if the log has none.

    Raises SessionError for a session without a history.
    """
    found, _ = _newest_messages_of(chat)
    return None if found is None else _message(chat, *found)


def unanswered_message(chat: Chat) -> Message | None:
    """Return the message that no reply follows, as far as it was read; None if there is none, or no history."""
    with contextlib.suppress(edgekv.SessionError):
        _, asked = _newest_messages_of(chat)
        return None if asked is None else _message(chat, *asked)
    return None


def _newest_messages_of(chat: Chat) -> tuple[_Asked | None, _Asked | None]:
    """Return the newest message that was answered, and the one after it that was not.

    Raises SessionError for a session without a history.
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
    return found, asked


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
    return Message(without_instruction(question), [NamedFile(file, "")] if file.stat().st_size else [], n_past)


def history(chat: Chat, argument: str) -> None:
    """Show the last messages and replies. The argument is their number."""
    if argument and not (argument.isdecimal() and int(argument) > 0):
        raise edgekv.InputError(f"{argument!r} is no number of messages; write /history, or /history 40")
    if not _show(chat, int(argument or SHOWN)):
        say("nothing was said yet")


def show_last(chat: Chat) -> None:
    """Show the end of a chat that goes on, if its session has a log."""
    with contextlib.suppress(edgekv.SessionError):
        _show(chat, SHOWN_FIRST)


def _show(chat: Chat, n: int) -> int:
    """Show the last n messages and replies, as far as each is short; returns their number.

    Raises SessionError for a session without a history.
    """
    turns = deque((turn for turn in chat.session.turns() if turn.role in ("user", "assistant")), maxlen=n)
    for turn in turns:
        (_show_message if turn.role == "user" else _show_reply)(chat, turn)
    return len(turns)


def _show_message(chat: Chat, turn: edgekv.Turn) -> None:
    """Show a message. A long one is shown by its end, which has the question."""
    end = "".join(chat.session.text(turn._replace(start=max(turn.start, turn.stop - SHOWN_ASKED))))
    cut = "... " if turn.stop - turn.start > SHOWN_ASKED else ""
    say(f"{MESSAGE_MARK}{cut}{printable(without_instruction(end.rsplit(PARAGRAPH, 1)[-1]))}")


def _show_reply(chat: Chat, turn: edgekv.Turn) -> None:
    """Show a reply without its reasoning; of a long one its beginning."""
    shown = turn._replace(stop=min(turn.stop, turn.start + SHOWN_SAID))
    _, answer = split_reasoning("".join(chat.session.text(shown)), begun=chat.thinks)
    say(printable(answer) + (" ..." if shown.stop < turn.stop else ""))


def kept(chat: Chat, argument: str) -> None:
    """Show the user's messages and the last attached text. If no text was attached, show the last answer.

    An argument shows that text alone, and says where to begin.
    """
    turn = _attached(chat) or last_turn(chat.session, "assistant") or last_turn(chat.session, "user")
    if turn is None:
        raise edgekv.InputError("nothing was read yet; write /read and the path of a text file, then a message")
    n_tokens = turn.stop - turn.start
    if argument and not (argument.isdecimal() and int(argument) < n_tokens):
        raise edgekv.InputError(f"{argument!r} is no token of the text; give a number in [0, {n_tokens})")
    first = int(argument or 0)
    last = min(n_tokens, first + SHOWN_KEPT)
    console = console_of(stderr=False)
    print_legend(console, archives=chat.runtime.options.archives)
    if not argument:
        for message in _newest_messages(chat):
            print_shades(console, [(MESSAGE_MARK, 0), *_own_words(chat, message)])
    print_shades(console, chat.session.kept(turn._replace(start=turn.start + first, stop=turn.start + last)))
    more = f"; /kept {last} shows what follows" if last < n_tokens else ""
    say(f"tokens {first:,} to {last - 1:,} of {n_tokens:,}{more}")


def _newest_messages(chat: Chat) -> list[edgekv.Turn]:
    """Return the user's newest messages, as many as SHOWN_KEPT tokens of what is shown of them."""
    messages: deque[edgekv.Turn] = deque()
    n_shown = 0
    for turn in chat.session.turns():
        if turn.role == "user":
            messages.append(turn)
            n_shown += _n_own(turn)
        while n_shown > SHOWN_KEPT:
            n_shown -= _n_own(messages.popleft())
    return list(messages)


def _n_own(message: edgekv.Turn) -> int:
    """Return the number of last tokens of a message that hold all that the user has typed."""
    return min(LONG, message.stop - message.start)


def _own_words(chat: Chat, message: edgekv.Turn) -> Iterator[Shaded]:
    """Yield the typed part of a message, in shades. A long message is cut to its last paragraph, the question."""
    runs = list(chat.session.kept(message._replace(start=message.stop - _n_own(message))))
    typed = text = "".join(run.text for run in runs)
    if message.stop - message.start > LONG:
        typed = without_instruction(text.rsplit(PARAGRAPH, 1)[-1])
    n_before = len(text) - len(typed)
    for run in runs:
        if own := run.text[max(0, n_before) :]:
            yield run._replace(text=own)
        n_before -= len(run.text)


def _attached(chat: Chat) -> edgekv.Turn | None:
    """The turn of the newest message that has a file, or is as long as if it had one."""
    began = {message.n_past for message in chat.messages if message.files}
    found, answered = None, 0
    for turn in chat.session.turns():
        if turn.role == "user" and (answered in began or turn.stop - turn.start > LONG):
            found = turn
        answered = turn.stop if turn.role == "assistant" else answered
    return found
