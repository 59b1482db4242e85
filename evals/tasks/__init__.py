"""What can be measured, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..case import Case
from ..setting import OpenRuntime
from ..table import Measured, Table
from . import asking, longgen, perplexity, perturbation


@dataclass(frozen=True)
class Task:
    """measure: the result of a case, as plain values; raises what runtimes and sessions do
    table: what results say, with a baseline where policies are compared
    draw: pictures of results, into a folder; returns the files
    """

    measure: Callable[[Case, OpenRuntime], dict[str, Any]]
    table: Callable[[Measured, str | None], Table]
    draw: Callable[[Measured, Path], list[Path]]


TASKS: Mapping[str, Task] = {
    "needle": Task(asking.needle, asking.table, asking.draw),
    "ruler": Task(asking.ruler, asking.table, asking.draw),
    "perplexity": Task(perplexity.measure, perplexity.table, perplexity.draw),
    "perturbation": Task(perturbation.measure, perturbation.table, perturbation.draw),
    "longgen": Task(longgen.measure, longgen.table, longgen.draw),
}
