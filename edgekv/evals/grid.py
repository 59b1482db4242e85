"""Many cases, measured one after the other or spread over processes and machines; none is measured twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from edgekv.arguments import check_one_of
from edgekv.counting import counted
from edgekv.errors import (
    BudgetError,
    CeilingError,
    CeilingExceededError,
    ConfigError,
    InputError,
    UnsupportedModelError,
)
from edgekv.memory.sizes import parse_ceiling, parse_size_or_none
from edgekv.options import KV_TYPES, REPOSITION
from edgekv.policies import parse_policy

from .case import Case, Task
from .qa import read_items
from .results import Results, key_of
from .setting import AS_GIVEN, DEFAULT, FULL, GONE, OFF, QUESTION, TURN, OpenRuntime, Setting
from .tasks import TASKS

LENGTHS, SAMPLES = (1000,), 10
REFUSALS = (BudgetError, ConfigError, InputError, UnsupportedModelError)  # a setting that cannot be, and is reported


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Settings by lengths by samples of one task. Every tuple multiplies the cases; their order is that of tables.

    params: by name, the values that a parameter of the task takes; the others take the task's own
    lengths: None = LENGTHS
    samples: texts for every combination, with the seeds seed, seed + 1, ...; None = SAMPLES, or all those of `data`
    metrics: further measurements of the task beside the replies
    data: the file of a task that takes its texts from one, as long as they are
    Raises ConfigError (PolicyError) for a setting that no model can have. One that only this
    model cannot have is a result.
    """

    tasks: ClassVar[Mapping[str, Task]] = TASKS

    task: str
    model: str | None = None
    policies: tuple[str, ...] = (FULL, DEFAULT)
    budgets: tuple[int, ...] = (512,)
    lengths: tuple[int, ...] | None = None
    blocks: tuple[int, ...] = (128,)
    kv_types: tuple[str, ...] = ("f16",)
    focus: tuple[str, ...] = (OFF,)
    focus_policy: str | None = None
    recent: int | None = None
    n_sink: int = 4
    reposition: str = "auto"
    evict_every: int | None = None
    memory: int | str | None = None
    archive: int | str | None = None
    samples: int | None = None
    seed: int = 0
    book: Path | None = None
    metrics: tuple[str, ...] = ()
    data: Path | None = None
    params: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.task not in self.tasks:
            raise ConfigError(f"task {self.task!r} is unknown; possible: {', '.join(self.tasks)}")
        self._check_asking()
        self._check_data()
        parse_size_or_none(self.archive)
        known = self.tasks[self.task].params
        if unknown := [name for name in self.params if name not in known]:
            possible = ", ".join(known) or "none"
            raise ConfigError(f"{unknown[0]!r} is no parameter of {self.task}; possible: {possible}")
        for name, values in self.params.items():
            for value in values:
                if isinstance(known[name][0], str):
                    check_one_of(name, value, known[name])
                elif not isinstance(value, (int, float)) and value not in known[name]:
                    raise ConfigError(f"{name}={value!r} is not possible; give a number")
        for spec in {*self.policies} - {FULL, DEFAULT}:
            parse_policy(spec)
        if gone := [focus for focus in self.focus if focus in GONE]:
            raise ConfigError(f"focus={gone[0]!r} is gone; give {OFF}, {QUESTION}, {TURN}, or a text to keep in mind")
        if self.focus_policy is not None:
            parse_policy(self.focus_policy)
        for kv_type in self.kv_types:
            check_one_of("kv_type", kv_type, KV_TYPES)
        check_one_of("reposition", self.reposition, REPOSITION)
        samples = SAMPLES if self.samples is None else self.samples
        for name, values in (("samples", [samples]), ("length", self.lengths or ()), ("budget", self.budgets)):
            if bad := [value for value in values if not isinstance(value, int) or value < 1]:
                raise ConfigError(f"{name}={bad[0]!r} is not possible; give at least 1")

    def _check_asking(self) -> None:
        """Raise ConfigError for options that need a task with known answers."""
        if self.memory is not None:
            self.check_asks("memory", self.memory, "a ceiling")
            parse_ceiling(self.memory)
        if self.metrics:
            self.check_asks("metric", ", ".join(self.metrics), "a metric")
        for metric in self.metrics:
            check_one_of("metric", metric, self.tasks[self.task].metrics)

    def check_asks(self, name: str, value: object, what: str) -> None:
        """Raise ConfigError for an option, which gives `what`, unless the task asks questions with known answers."""
        if not self.tasks[self.task].asks:
            possible = ", ".join(name for name, task in self.tasks.items() if task.asks)
            raise ConfigError(f"{name}={value} with the task {self.task}; {what} is possible with {possible}")

    def _check_data(self) -> None:
        """Refuse a file for a task that makes its texts, and the other way round."""
        if not self.tasks[self.task].takes_data:
            if self.data is not None:
                raise ConfigError(f"data={self.data} with the task {self.task}, which makes its texts; leave it out")
            return
        if self.data is None:
            raise ConfigError(f"data=None with the task {self.task}; name a file of questions (docs/evaluation.md)")
        for name, value in (("lengths", self.lengths), ("book", self.book)):
            if value is not None:
                raise ConfigError(f"{name}={value} with the task {self.task}, whose texts are in data; leave it out")

    def _seeds(self) -> range:
        """The seeds that texts are made from or, for texts in a file, their numbers."""
        samples = SAMPLES if self.samples is None else self.samples
        if self.data is None:
            return range(self.seed, self.seed + samples)
        n_items = len(read_items(self.data))
        if not 0 <= self.seed < n_items:
            found = counted(n_items, "question")
            raise ConfigError(f"seed={self.seed}, but {self.data} has {found}; give one in [0, {n_items})")
        return range(self.seed, n_items if self.samples is None else min(n_items, self.seed + samples))

    def settings(self) -> list[Setting]:
        """Every way to read, each once."""
        found: dict[str, Setting] = {}
        product = itertools.product(self.policies, self.budgets, self.blocks, self.kv_types, self.focus)
        for policy, budget, block, kv_type, focus in product:
            setting = Setting(
                model=self.model,
                policy=policy,
                budget=budget,
                block=block,
                kv_type=kv_type,
                focus=focus,
                focus_policy=self.focus_policy,
                n_sink=self.n_sink,
                recent=self.recent,
                reposition=self.reposition,
                evict_every=self.evict_every,
                memory=self.memory,
                archive=self.archive,
            )
            found.setdefault(key_of(setting.as_dict()), setting)
        return list(found.values())

    def cases(self) -> list[Case]:
        """Return all cases, sorted by setting, so that each runtime is opened once."""
        lengths = (AS_GIVEN,) if self.data is not None else self.lengths or LENGTHS
        task = self.tasks[self.task]
        params = {**task.params, **self.params}
        variants = [dict(zip(params, values, strict=True)) for values in itertools.product(*params.values())]
        seeds, metrics = self._seeds(), tuple(sorted(set(self.metrics)))
        return [
            Case(task, setting, length, seed, self.book, variant, metrics, self.data)
            for setting in self.settings()
            for length in lengths
            for variant in variants
            for seed in seeds
        ]


def distinct_cases(grids: Iterable[Grid]) -> list[Case]:
    """Return the cases of all grids in their order. A case that several grids have comes once."""
    found: dict[str, Case] = {}
    for grid in grids:
        for case in grid.cases():
            found.setdefault(key_of(case.config()), case)
    return list(found.values())


Done = Iterator[tuple[Case, dict[str, Any]]]
Measure = Callable[[list[Case]], Done]


def measure(case: Case, runtimes: OpenRuntime) -> dict[str, Any]:
    """Return the result of a case, or {"refused": why} for a setting that this model or text cannot have."""
    try:
        return case.task.measure(case, runtimes)
    except REFUSALS as error:
        return {"refused": str(error)}
    except (CeilingError, CeilingExceededError) as error:
        if case.setting.memory is None:  # the ceiling is this machine's, which is not part of the key
            raise
        return {"refused": str(error)}


def in_process(cases: Iterable[Case], *, threads: int | None = None, gpu_layers: int = 0) -> Done:
    """Measure one case after the other, here."""
    with OpenRuntime(threads=threads, gpu_layers=gpu_layers) as runtimes:
        for case in cases:
            yield case, measure(case, runtimes)


def run(cases: Iterable[Case], results: Results, how: Measure) -> Iterator[Case]:
    """Measure the cases that have no result yet, and store each. Yield all cases with results, stored ones first."""
    todo = []
    for case in cases:
        if results.get(case.config()) is None:
            todo.append(case)
        else:
            yield case
    if todo:
        for case, result in how(todo):
            results.add(case.config(), result)
            yield case
