"""One thing to measure: a task, how its text is read, and what the task itself needs."""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from edgekv.binding.model import Model
from edgekv.models import find_model
from edgekv.store.fingerprint import fingerprint

from . import prose
from .setting import Setting

GENERATED = "generated"


@functools.lru_cache(maxsize=1)
def book_text(path: Path | None) -> str | None:
    """The running text of a book; None = prose is to be generated. Raises InputError for a file that is not text."""
    return None if path is None else prose.read_book(path)


@dataclass(frozen=True)
class Case:
    """A task on one text. Equal configurations give equal results.

    task: a name of `tasks.TASKS`
    length: tokens of the text
    seed: what is drawn at random follows from it
    book: the text that samples are cut from; None = generated prose
    params: what the task needs beyond that, plain values
    """

    task: str
    setting: Setting
    length: int
    seed: int
    book: Path | None
    params: Mapping[str, Any]

    def config(self) -> dict[str, Any]:
        """All that the result depends on, as plain values; files by name and digest."""
        return {
            "edgekv": version("edgekv"),
            "task": self.task,
            **self.setting.as_dict(),
            "model": fingerprint(find_model(self.setting.model)),
            "book": GENERATED if self.book is None else fingerprint(self.book),
            "length": self.length,
            "seed": self.seed,
            **self.params,
        }

    def passage(self, model: Model) -> str:
        """The text of this seed: so many tokens from a random place. Raises InputError where the book is too short."""
        return prose.passage(model, book_text(self.book), self.length, random.Random(self.seed))
