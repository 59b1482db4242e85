"""Asking a model about a text that went through a small cache: with the question known before, or only afterwards."""

from __future__ import annotations

import tempfile
from pathlib import Path

import edgekv
from edgekv.sampler import GREEDY

from .document import Document
from .setting import QUESTION, Setting


def replies(runtime: edgekv.Runtime, setting: Setting, document: Document) -> list[str]:
    """What is answered to each question, always the most likely token.

    With the focus "question" each is known while the text is read, which is read once for each; else the text is read
    once and compacted to the budget before any question is asked, and each is asked of that same cache.
    """
    if setting.focus == QUESTION and not setting.is_full:
        return _aware(runtime, document)
    return _agnostic(runtime, document, setting.question)


def _agnostic(runtime: edgekv.Runtime, document: Document, focus: str | bool) -> list[str]:
    with runtime.session() as session:
        session.read(document.text, focus=focus)
        read = session.snapshot()
        found = []
        for question in document.questions:
            session.restore(read)
            reply = session.chat(question.text, max_tokens=question.max_tokens, allow_loops=True, sampling=GREEDY)
            found.append("".join(reply))
        return found


def _aware(runtime: edgekv.Runtime, document: Document) -> list[str]:
    found = []
    with tempfile.TemporaryDirectory(prefix="edgekv-eval-") as folder:
        path = Path(folder, "text.txt")
        path.write_text(document.text, encoding="utf-8")
        for question in document.questions:
            with runtime.session() as session:
                reply = session.chat(
                    question.text,
                    files=[path],
                    max_tokens=question.max_tokens,
                    allow_loops=True,
                    sampling=GREEDY,
                )
                found.append("".join(reply))
    return found
