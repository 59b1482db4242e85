"""What can be measured, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import ruler
from ..case import Case
from ..setting import OpenRuntime
from ..table import Measured, Table
from . import asking, longgen, perplexity, perturbation


@dataclass(frozen=True)
class Task:
    """measure: the result of a case, as plain values; raises what runtimes and sessions do
    table: what results say, with a baseline where policies are compared
    draw: pictures of results, into a folder; returns the files
    params: what the task takes beside a setting, a text and a seed, and the values that it takes by default
    """

    measure: Callable[[Case, OpenRuntime], dict[str, Any]]
    table: Callable[[Measured, str | None], Table]
    draw: Callable[[Measured, Path], list[Path]]
    params: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


TASKS: Mapping[str, Task] = {
    "needle": Task(asking.needle, asking.table, asking.draw, {"depth": (None,), "needles": (1,)}),
    "ruler": Task(asking.ruler, asking.table, asking.draw, {"kind": ruler.TASKS}),
    "perplexity": Task(perplexity.measure, perplexity.table, perplexity.draw),
    "perturbation": Task(perturbation.measure, perturbation.table, perturbation.draw),
    "longgen": Task(longgen.measure, longgen.table, longgen.draw, {"temperature": (0.0,)}),
}
