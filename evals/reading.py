"""Asking a model about a text that went through a small cache: in the same turn, or only once it is compacted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

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
    """What is answered to each question about the text in a file, always the most likely token.

    With the focus "question" each is known while the text is read, and with "turn" each is read right after it, in the
    same turn; both read the text once for each question. Else the text is read once and compacted to the budget before
    any question is asked, and each is asked of that same cache.

    progress: told of the first reading after every block
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
            reply = session.chat(question.text, max_tokens=question.max_tokens, allow_loops=True, sampling=GREEDY)
            found.append("".join(reply))
        return found


def _in_one_turn(
    runtime: edgekv.Runtime, text: Path, questions: Sequence[Question], progress: ProgressCallback | None
) -> list[str]:
    found = []
    for question in questions:
        with runtime.session() as session:
            reply = session.chat(
                question.text,
                files=[text],
                max_tokens=question.max_tokens,
                allow_loops=True,
                sampling=GREEDY,
                progress=progress,
            )
            found.append("".join(reply))
        progress = None
    return found
