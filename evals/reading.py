"""Asking a model about a text that went through a small cache: in the same turn, or only once it is compacted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import edgekv
from edgekv.engine.reply import ProgressCallback
from edgekv.engine.sampler import GREEDY

from .document import Question
from .setting import QUESTION, TURN, Setting


def replies(
    runtime: edgekv.Runtime,
    setting: Setting,
    text: Path,
    questions: Sequence[Question],
    progress: ProgressCallback | None = None,
) -> list[str]:
    """The answers to questions about a text in a file.

    With the focus "question" a question is known while the text is read. With "turn" it is read right after the text,
    in the same turn. Both read the text once for each question. With any other focus the text is read once and
    compacted to the budget before any question is asked, and each question is asked of that same cache.

    progress: called after every block of the first reading
    """
    if setting.focus in (QUESTION, TURN) and not setting.is_full:
        return _in_one_turn(runtime, text, questions, progress)
    return _afterwards(runtime, setting.question, text, questions, progress)


def _afterwards(
    runtime: edgekv.Runtime,
    focus: str | bool,
    text: Path,
    questions: Sequence[Question],
    progress: ProgressCallback | None,
) -> list[str]:
    with runtime.session() as session:
        session.read(files=[text], focus=focus, progress=progress)
        read = session.snapshot()
        found = []
        for question in questions:
            session.restore(read)
            found.append(_answer(session, question))
        return found


def _in_one_turn(
    runtime: edgekv.Runtime, text: Path, questions: Sequence[Question], progress: ProgressCallback | None
) -> list[str]:
    found = []
    for question in questions:
        with runtime.session() as session:
            found.append(_answer(session, question, files=[text], progress=progress))
        progress = None
    return found


def _answer(session: edgekv.Session, question: Question, **further: Any) -> str:
    """The whole reply to a question, looping or not: always the most likely token."""
    pieces = session.chat(question.text, max_tokens=question.max_tokens, allow_loops=True, sampling=GREEDY, **further)
    return "".join(pieces)
