"""Tasks that can be measured, by name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgekv.evals import ruler
from edgekv.evals.case import Case
from edgekv.evals.setting import OpenRuntime
from edgekv.evals.table import Measured, Table

from . import asked, asked_pictures, asking, long_chat, longgen, perplexity, perturbation


@dataclass(frozen=True)
class Task:
    """measure: the result of a case, as plain values; raises what runtimes and sessions do
    table: what results say, with a baseline if policies are compared
    draw: pictures of results, into a folder; returns the files
    params: what the task takes beside a setting, a text and a seed, and the values that it takes by default
    text: the key of what a case reads, if the task reads a text once for all policies and budgets; such cases are
        measured in a row. None = each case reads for itself
    asks: whether it asks questions whose answers are known. Only then can a text be read in a process of its own, under
        a ceiling (`Setting.memory`), and only then are there an oracle and metrics (`Case.metrics`)
    takes_data: whether texts and questions are those of a file (`Case.data`)
    """

    measure: Callable[[Case, OpenRuntime], dict[str, Any]]
    table: Callable[[Measured, str | None], Table]
    draw: Callable[[Measured, Path], list[Path]]
    params: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    text: Callable[[Case], Hashable] | None = None
    asks: bool = False
    takes_data: bool = False


TASKS: Mapping[str, Task] = {
    "needle": Task(asking.needle, asked.table, asked_pictures.draw, {"depth": (None,), "needles": (1,)}, asks=True),
    "ruler": Task(asking.ruler, asked.table, asked_pictures.draw, {"kind": ruler.TASKS}, asks=True),
    "qa": Task(asking.qa, asked.table, asked_pictures.draw, asks=True, takes_data=True),
    "chat": Task(long_chat.measure, asked.table, asked_pictures.draw, long_chat.PARAMS),
    "perplexity": Task(perplexity.measure, perplexity.table, perplexity.draw),
    "perturbation": Task(perturbation.measure, perturbation.table, perturbation.draw, text=perturbation.text),
    "longgen": Task(longgen.measure, longgen.table, longgen.draw, {"temperature": (0.0,)}),
}
