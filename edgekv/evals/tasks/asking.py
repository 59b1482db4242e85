"""Tasks that ask about a text: the reply to each question, and its score."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgekv.evals import needle as needles
from edgekv.evals import prose
from edgekv.evals import ruler as rulers
from edgekv.evals.attention_mass import attention_masses
from edgekv.evals.case import ANSWER_NLL, ATTENTION_MASS, Case, book_text
from edgekv.evals.document import Document
from edgekv.evals.isolated_run import run_isolated
from edgekv.evals.qa import read_items
from edgekv.evals.question_protocol import Answered, ask_all
from edgekv.evals.results import key_of
from edgekv.evals.setting import AS_GIVEN, FULL, OpenRuntime

KEPT_MASSES = 16  # texts whose masses are at hand for the next policy; about 4 bytes a token and head each


def needle(case: Case, runtimes: OpenRuntime) -> dict[str, Any]:
    """Planted sentences: `needle.document` with the parameters depth and needles."""
    return _ask(case, runtimes, functools.partial(needles.document, **case.params))


def ruler(case: Case, runtimes: OpenRuntime) -> dict[str, Any]:
    """A task of RULER, which the parameter kind names."""
    (kind,) = case.params.values()
    return _ask(case, runtimes, functools.partial(rulers.document, kind))


def qa(case: Case, runtimes: OpenRuntime) -> dict[str, Any]:
    """The question of this number in the case's data; beside its score its F1."""
    assert case.data is not None
    item = read_items(case.data)[case.seed]
    if case.setting.holds_text:
        with prose.vocabulary(case.setting.model) as model:
            case = replace(case, length=len(model.tokenize(item.text + item.question.text)))
    found = _ask(case, runtimes, lambda *_: item.document)
    return {**found, "f1": item.question.f1(found["replies"][0])}


def _ask(case: Case, runtimes: OpenRuntime, make: Callable[..., Document]) -> dict[str, Any]:
    """Ask about a document; return the replies, and the mean score of the answers, in [0, 1].

    nll, nlls: -ln p of the right answers, the mean and by question, if the metric is measured
    mass, masses: the share of their attention that still has its cells, the mean and by question, if it is measured
    alone: speed and memory of reading, if the setting has a ceiling; the text is then read in a process of its own
    """
    ask = _in_this_process if case.setting.memory is None else _isolated
    document, answered, stats = ask(case, runtimes, make)
    scores = [question.score(each.reply) for question, each in zip(document.questions, answered, strict=True)]
    found: dict[str, Any] = {"score": sum(scores) / len(scores), "scores": scores}
    found["replies"] = [each.reply for each in answered]
    measured = {"nll": [each.nll for each in answered], "mass": [each.mass for each in answered]}
    for name, several in (("nll", "nlls"), ("mass", "masses")):
        values = [value for value in measured[name] if value is not None]
        if values:
            found |= {name: sum(values) / len(values), several: values}
    return found | stats


Found = tuple[Document, list[Answered], dict[str, Any]]


def _in_this_process(case: Case, runtimes: OpenRuntime, make: Callable[..., Document]) -> Found:
    runtime = runtimes.get(case.setting, case.length)
    document = make(runtime.model, book_text(case.book), case.length, case.seed)
    setting, questions, nll = case.setting, document.questions, ANSWER_NLL in case.metrics
    with _file(document) as text:
        if ATTENTION_MASS not in case.metrics:
            return document, ask_all(runtime, setting, text, questions, nll=nll), {}
        whole = replace(setting, policy=FULL)
        length = case.length if case.data is None else AS_GIVEN
        key = key_of(replace(case, setting=whole, length=length).config())
        masses = runtimes.text(key, lambda: attention_masses(runtime, setting, text, questions), keep=KEPT_MASSES)
        return document, ask_all(runtime, setting, text, questions, nll=nll, masses=masses), {}


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
