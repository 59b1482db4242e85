"""Grids with the tasks of this package: one of its own, and those of `edgekv eval` with what looks at the cells."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from edgekv.errors import ConfigError
from edgekv.evals.case import Case, Task
from edgekv.evals.grid import Grid
from edgekv.evals.results import key_of
from edgekv.evals.setting import OFF, Setting
from edgekv.evals.tasks import NEEDLE, QA, RULER, TASKS, asking

from . import asked, perturbation
from .asking import ATTENTION_MASS, make_look
from .oracle import OracleSetting

SUITES = Path(__file__).parent / "suites"


def _looking(task: Task) -> Task:
    """Return a task that asks, with this package's metric and the distance to the oracle."""
    measure = functools.partial(getattr(asking, task.name), make_look=make_look)
    return dataclasses.replace(task, measure=measure, table=asked.table, metrics=(*task.metrics, ATTENTION_MASS))


PERTURBATION = Task("perturbation", perturbation.measure, perturbation.table)
OWN = (*map(_looking, (NEEDLE, RULER, QA)), PERTURBATION)


@dataclass(frozen=True, kw_only=True)
class PaperGrid(Grid):
    """A `Grid` that may have this package's tasks and its metric "attention-mass".

    oracle: whether an oracle reads the texts as well, at each budget
    """

    tasks: ClassVar[Mapping[str, Task]] = {**TASKS, **{task.name: task for task in OWN}}

    oracle: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.oracle:
            self.check_asks("oracle", self.oracle, "an oracle")
        full = {f"metric={ATTENTION_MASS}": ATTENTION_MASS in self.metrics, "oracle=True": self.oracle}
        for option, is_given in full.items():
            if is_given and self.memory is not None:
                raise ConfigError(
                    f"{option} with memory={self.memory}; it takes the memory of a full cache, so leave one of them out"
                )

    def settings(self) -> list[Setting]:
        """Every way to read, each once; the oracle's last."""
        if not self.oracle:
            return super().settings()
        others = dataclasses.replace(self, oracle=False)
        plain = dataclasses.replace(others, policies=("sink",), focus=(OFF,), archive=None).settings()
        oracles = {key_of(setting.as_dict()): setting for setting in map(OracleSetting.of, plain)}
        return [*others.settings(), *oracles.values()]

    def cases(self) -> list[Case]:
        """All cases. Those of a setting follow each other or, if each text is read once for all settings, of a text."""
        if self.task != PERTURBATION.name:
            return super().cases()
        by_text: dict[Hashable, list[Case]] = {}
        for case in super().cases():
            by_text.setdefault(perturbation.text(case), []).append(case)
        return list(itertools.chain(*by_text.values()))
