"""Tasks that ask about a text: the reply to each question, and its score."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgekv.evals import needle as needles
from edgekv.evals import prose
from edgekv.evals import ruler as rulers
from edgekv.evals.case import ANSWER_NLL, Case, book_text
from edgekv.evals.document import Document, Question
from edgekv.evals.isolated_run import run_isolated
from edgekv.evals.qa import read_items
from edgekv.evals.question_protocol import Answered, Look, ask_all
from edgekv.evals.setting import OpenRuntime

MakeLook = Callable[[Case, OpenRuntime, Path, Sequence[Question]], "Look | None"]
"""What looks at the cells when questions about a text are asked (`ask_all`); None = nothing."""


def needle(case: Case, runtimes: OpenRuntime, make_look: MakeLook | None = None) -> dict[str, Any]:
    """Planted sentences: `needle.document` with the parameters depth and needles."""
    return _ask(case, runtimes, functools.partial(needles.document, **case.params), make_look)


def ruler(case: Case, runtimes: OpenRuntime, make_look: MakeLook | None = None) -> dict[str, Any]:
    """A task of RULER, which the parameter kind names."""
    (kind,) = case.params.values()
    return _ask(case, runtimes, functools.partial(rulers.document, kind), make_look)


def qa(case: Case, runtimes: OpenRuntime, make_look: MakeLook | None = None) -> dict[str, Any]:
    """The question of this number in the case's data; beside its score its F1."""
    assert case.data is not None
    item = read_items(case.data)[case.seed]
    if case.setting.holds_text:
        with prose.vocabulary(case.setting.model) as model:
            case = replace(case, length=len(model.tokenize(item.text + item.question.text)))
    found = _ask(case, runtimes, lambda *_: item.document, make_look)
    return {**found, "f1": item.question.f1(found["replies"][0])}


def _ask(
    case: Case, runtimes: OpenRuntime, make: Callable[..., Document], make_look: MakeLook | None
) -> dict[str, Any]:
    """Ask about a document; return the replies, and the mean score of the answers, in [0, 1].

    nll, nlls: -ln p of the right answers, the mean and by question, if the metric is measured
    NAME, NAME_by_question: each figure of the cells that `make_look` measures
    alone: speed and memory of reading, if the setting has a ceiling; the text is then read in a process of its own
    """
    if case.setting.memory is None:
        document, answered, stats = _in_this_process(case, runtimes, make, make_look)
    else:
        document, answered, stats = _isolated(case, runtimes, make)
    scores = [question.score(each.reply) for question, each in zip(document.questions, answered, strict=True)]
    found: dict[str, Any] = {"score": sum(scores) / len(scores), "scores": scores}
    found["replies"] = [each.reply for each in answered]
    nlls = [each.nll for each in answered if each.nll is not None]
    if nlls:
        found |= {"nll": sum(nlls) / len(nlls), "nlls": nlls}
    for name in answered[0].cells:
        values = [each.cells[name] for each in answered]
        found |= {name: sum(values) / len(values), f"{name}_by_question": values}
    return found | stats


Found = tuple[Document, list[Answered], dict[str, Any]]


def _in_this_process(
    case: Case, runtimes: OpenRuntime, make: Callable[..., Document], make_look: MakeLook | None
) -> Found:
    runtime = runtimes.get(case.setting, case.length)
    document = make(runtime.model, book_text(case.book), case.length, case.seed)
    questions, nll = document.questions, ANSWER_NLL in case.metrics
    with _file(document) as text:
        look = None if make_look is None else make_look(case, runtimes, text, questions)
        return document, ask_all(runtime, case.setting, text, questions, nll=nll, look=look), {}


def _isolated(case: Case, runtimes: OpenRuntime, make: Callable[..., Document]) -> Found:
    with prose.vocabulary(case.setting.model) as model:
        document = make(model, book_text(case.book), case.length, case.seed)
    with _file(document) as text:
        answered, stats = run_isolated(
            case.setting,
            case.length,
            text,
            document.questions,
            nll=ANSWER_NLL in case.metrics,
            threads=runtimes.threads,
            gpu_layers=runtimes.gpu_layers,
        )
        return document, answered, {"alone": stats}


@contextlib.contextmanager
def _file(document: Document) -> Iterator[Path]:
    """The text of a document, for the time being on the disk."""
    with tempfile.TemporaryDirectory(prefix="edgekv-eval-") as folder:
        path = Path(folder, "text.txt")
        path.write_text(document.text, encoding="utf-8")
        yield path
