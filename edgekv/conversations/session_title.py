"""Titles of saved sessions: the beginning of the first question, or of the text if nothing was asked yet."""

from __future__ import annotations

from edgekv.binding.model import Model
from edgekv.generation.request import without_instruction
from edgekv.prompt.text import PARAGRAPH
from edgekv.store.log import TokenLog, Turn

MOST_CHARACTERS = 60
WHOLE = 256  # tokens; the question is looked for in all of such a message, and only at the end of a longer one
END = 64  # tokens at the end of a longer message


def title_of(log: TokenLog, model: Model) -> str:
    """Return the title of a session, a line of at most MOST_CHARACTERS; "" if it holds no text of a user."""
    asked: list[Turn] = []
    is_answered = False
    for turn in log.turns():
        if turn.role in ("user", "text"):
            asked.append(turn)
        elif asked:
            is_answered = True
            break
    if not asked:
        return ""
    turn = asked[-1] if is_answered else asked[0]
    if turn.stop - turn.start <= WHOLE or not is_answered:
        return _first_line(_text(log, model, turn.start, min(turn.stop, turn.start + WHOLE)))
    _, gap, question = _text(log, model, turn.stop - END, turn.stop).rpartition(PARAGRAPH)
    return _first_line(without_instruction(question) if gap else _text(log, model, turn.start, turn.start + END))


def _text(log: TokenLog, model: Model, start: int, stop: int) -> str:
    return "".join(model.text(log.tokens(start, stop)))


def _first_line(text: str) -> str:
    line = next((" ".join(line.split()) for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= MOST_CHARACTERS else line[: MOST_CHARACTERS - 3].rstrip() + "..."
