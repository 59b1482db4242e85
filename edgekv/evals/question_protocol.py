"""Asking a model about a text that went through a small cache: in the same turn, or only once it is compacted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import edgekv
from edgekv.generation.request import ProgressCallback
from edgekv.generation.sampler import GREEDY

from .answer_likelihood import answer_nll, read_question
from .document import Question
from .setting import QUESTION, TURN, Setting


@dataclass(frozen=True)
class Answered:
    """The result of a question.

    reply: the model's text
    nll: the mean of -ln p over the tokens of the right answer (`answer_likelihood.answer_nll`); None = not measured
    cells: measurements of `Look`, by name
    """

    reply: str
    nll: float | None = None
    cells: Mapping[str, float] = field(default_factory=dict)


Look = Callable[[Question], Mapping[str, float]]
"""Look at the cells that a question finds, or change them; return figures by name.

Called when the question is to be asked or, if it belongs to the turn of the text, when the reply begins.
"""


def ask_all(
    runtime: edgekv.Runtime,
    setting: Setting,
    text: Path,
    questions: Sequence[Question],
    progress: ProgressCallback | None = None,
    *,
    nll: bool = False,
    look: Look | None = None,
) -> list[Answered]:
    """Ask questions about a text in a file.

    With the focus "question" a question is known while the text is read. With "turn" it is read right after the text,
    in the same turn. Both read the text once for each question, and once more if something is measured beside the
    reply.
    With any other focus the text is read once and compacted to the budget before any question is asked, and each
    question is asked of that same cache.

    progress: called after every block of the first reading
    nll: measure how likely the right answers are
    look: called once for each question; it may choose among the cells of a text that is held whole
    """
    if setting.focus in (QUESTION, TURN) and not setting.holds_text:
        return _in_one_turn(runtime, text, questions, progress, nll, look)
    return _afterwards(runtime, setting, text, questions, progress, nll, look)


def _afterwards(
    runtime: edgekv.Runtime,
    setting: Setting,
    text: Path,
    questions: Sequence[Question],
    progress: ProgressCallback | None,
    with_nll: bool,
    look: Look | None,
) -> list[Answered]:
    with runtime.session() as session:
        session.read(files=[text], focus=setting.question, progress=progress)
        read = session.snapshot()
        found = []
        for question in questions:
            session.restore(read)
            cells = {} if look is None else look(question)
            before = read if look is None or not with_nll else session.snapshot()
            answered = ask_from(runtime, session, question, before, nll=with_nll)
            found.append(replace(answered, cells=cells))
        return found


def ask_from(
    runtime: edgekv.Runtime, session: edgekv.Session, question: Question, before: edgekv.Snapshot, *, nll: bool
) -> Answered:
    """Ask a session a question. `before` is a snapshot of its present state; afterwards it holds question and reply."""
    found = None
    if nll:
        read_question(session, question)
        found = answer_nll(runtime, session, question)
        session.restore(before)
    return Answered(_reply(session, question), found)


def _in_one_turn(
    runtime: edgekv.Runtime,
    text: Path,
    questions: Sequence[Question],
    progress: ProgressCallback | None,
    with_nll: bool,
    look: Look | None,
) -> list[Answered]:
    found = []
    for question in questions:
        with runtime.session() as session:
            reply = _reply(session, question, files=[text], progress=progress)
        progress = nll = None
        cells: Mapping[str, float] = {}
        if with_nll or look is not None:
            with runtime.session() as session:
                read_question(session, question, files=[text])
                cells = {} if look is None else look(question)
                nll = answer_nll(runtime, session, question) if with_nll else None
        found.append(Answered(reply, nll, cells))
    return found


def _reply(session: edgekv.Session, question: Question, **further: Any) -> str:
    """Return the whole reply to a question, looping or not. Decoding is greedy."""
    further |= {"max_tokens": question.max_tokens, "allow_loops": True, "sampling": GREEDY}
    pieces = session.ask(question.text, instruction="", **further)
    return "".join(pieces)
