"""Define a case to measure: a task, a setting to read its text in, and the task's own parameters."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgekv.binding.model import Model
from edgekv.models import find_model
from edgekv.store.fingerprint import fingerprint

from . import prose
from .setting import OpenRuntime, Setting
from .table import Table

GENERATED = "generated"
ANSWER_NLL = "answer-nll"


@functools.lru_cache(maxsize=1)
def book_text(path: Path | None) -> str | None:
    """The running text of a book; None = prose is to be generated. Raises InputError for a file that is not text."""
    return None if path is None else prose.read_book(path)


@dataclass(frozen=True)
class Task:
    """A kind of measurement, and tables of its results.

    measure: measures a case
    table: a table of results; the string is the `name` of the setting that others are compared with
    params: the task's parameters beside a setting, a text and a seed, with their defaults
    asks: True = it asks questions with known answers. Only then can a text be read in a process of its own, under a
        ceiling (`Setting.memory`)
    metrics: names of further measurements beside the replies (`Case.metrics`)
    takes_data: True = texts and questions come from a file (`Case.data`)
    """

    name: str
    measure: Callable[[Case, OpenRuntime], dict[str, Any]]
    table: Callable[[Measured, str | None], Table]
    params: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    asks: bool = False
    metrics: tuple[str, ...] = ()
    takes_data: bool = False


@dataclass(frozen=True)
class Case:
    """A task on one text. Equal configurations give equal results.

    length: tokens of the text; AS_GIVEN = as many as it has
    seed: all random choices follow from it
    book: the text that samples are cut from; None = generated prose
    params: the task's own parameters, plain values
    metrics: further measurements of the task beside the replies
    data: the file that texts and questions are taken from, one by each seed; None = the task makes them
    """

    task: Task
    setting: Setting
    length: int
    seed: int
    book: Path | None
    params: Mapping[str, Any]
    metrics: tuple[str, ...] = ()
    data: Path | None = None

    def config(self) -> dict[str, Any]:
        """All that the result depends on, as plain values; files by name and digest."""
        further: dict[str, Any] = {"metrics": list(self.metrics)} if self.metrics else {}
        if self.data is not None:
            further["data"] = fingerprint(self.data)
        model = find_model(self.setting.model)
        return {
            "edgekv": version("edgekv"),
            "task": self.task.name,
            **self.setting.as_dict(),
            "model": fingerprint(model),
            "book": GENERATED if self.book is None else fingerprint(self.book),
            "length": self.length,
            "seed": self.seed,
            **self.params,
            **further,
        }

    def passage(self, model: Model) -> str:
        """The text of this seed: so many tokens from a random place. Raises InputError if the book is too short."""
        return prose.passage(model, book_text(self.book), self.length, random.Random(self.seed))


Measured = Iterable[tuple[Case, Mapping[str, Any]]]
