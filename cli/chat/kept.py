"""`/kept`: a text in shades, by how many heads still hold each token."""

from __future__ import annotations

import edgekv
from edgekv.cli.kept_text import print_legend, print_shades
from edgekv.cli.render import console_of, say

from .chat import Chat, last_turn
from .earlier import LONG

SHOWN = 4096  # tokens at once


def kept(chat: Chat, argument: str) -> None:
    """Show the text that was attached last; without one, the last answer. An argument says where to begin."""
    turn = _attached(chat) or last_turn(chat.session, "assistant") or last_turn(chat.session, "user")
    if turn is None:
        raise edgekv.InputError("nothing was read yet; write /read and the path of a text file, then a message")
    n_tokens = turn.stop - turn.start
    if argument and not (argument.isdecimal() and int(argument) < n_tokens):
        raise edgekv.InputError(f"{argument!r} is no token of the text; give a number in [0, {n_tokens})")
    first = int(argument or 0)
    last = min(n_tokens, first + SHOWN)
    console = console_of(stderr=False)
    print_legend(console)
    print_shades(console, chat.session.kept(turn._replace(start=turn.start + first, stop=turn.start + last)))
    more = f"; /kept {last} shows what follows" if last < n_tokens else ""
    say(f"tokens {first:,} to {last - 1:,} of {n_tokens:,}{more}")


def _attached(chat: Chat) -> edgekv.Turn | None:
    """The turn of the newest message that has a file, or is as long as if it had one."""
    began = {message.n_past for message in chat.messages if message.files}
    found, answered = None, 0
    for turn in chat.session.turns():
        if turn.role == "user" and (answered in began or turn.stop - turn.start > LONG):
            found = turn
        answered = turn.stop if turn.role == "assistant" else answered
    return found
