"""Many cases, measured one after the other or spread over processes and machines; none is measured twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgekv.errors import (
    BudgetError,
    CeilingError,
    CeilingExceededError,
    ConfigError,
    InputError,
    UnsupportedModelError,
)
from edgekv.memory.limits import parse_ceiling
from edgekv.options import KV_TYPES, REPOSITION
from edgekv.policies import parse_policy

from .case import Case
from .results import Results, key_of
from .setting import FULL, OFF, OpenRuntime, Setting
from .tasks import TASKS

REFUSALS = (BudgetError, ConfigError, InputError, UnsupportedModelError)  # a setting that cannot be, and is reported


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Settings by lengths by samples of one task. Every tuple multiplies the cases; their order is that of tables.

    params: by name, the values that a parameter of the task takes; the others take the task's own
    samples: texts for every combination, with the seeds seed, seed + 1, ...
    Raises ConfigError (PolicyError) for what no model could have; what one model cannot have is a result.
    """

    task: str
    model: str | None = None
    policies: tuple[str, ...] = (FULL, "keydiff")
    budgets: tuple[int, ...] = (512,)
    lengths: tuple[int, ...] = (1000,)
    blocks: tuple[int, ...] = (128,)
    kv_types: tuple[str, ...] = ("f16",)
    focus: tuple[str, ...] = (OFF,)
    focus_policy: str | None = None
    recent: int | None = None
    n_sink: int = 4
    reposition: str = "auto"
    memory: int | str | None = None
    samples: int = 10
    seed: int = 0
    book: Path | None = None
    params: Mapping[str, Sequence[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ConfigError(f"task {self.task!r} is unknown; possible: {', '.join(TASKS)}")
        if self.memory is not None:
            if not TASKS[self.task].alone:
                possible = ", ".join(name for name, task in TASKS.items() if task.alone)
                raise ConfigError(
                    f"memory={self.memory} with the task {self.task}; a ceiling is possible with {possible}"
                )
            parse_ceiling(self.memory)
        known = TASKS[self.task].params
        if unknown := [name for name in self.params if name not in known]:
            possible = ", ".join(known) or "none"
            raise ConfigError(f"{unknown[0]!r} is no parameter of {self.task}; possible: {possible}")
        for spec in (*self.policies, self.focus_policy):
            if spec is not None and spec != FULL:
                parse_policy(spec)
        for kv_type in self.kv_types:
            _one_of("kv_type", kv_type, KV_TYPES)
        _one_of("reposition", self.reposition, REPOSITION)
        for name, values in (("samples", [self.samples]), ("length", self.lengths), ("budget", self.budgets)):
            if bad := [value for value in values if value < 1]:
                raise ConfigError(f"{name}={bad[0]} is not possible; give at least 1")

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
                memory=self.memory,
            )
            found.setdefault(key_of(setting.as_dict()), setting)
        return list(found.values())

    def cases(self) -> list[Case]:
        """All cases: those of a setting follow each other, so that its runtime is opened once."""
        params = {**TASKS[self.task].params, **self.params}
        variants = [dict(zip(params, values, strict=True)) for values in itertools.product(*params.values())]
        return [
            Case(self.task, setting, length, seed, self.book, variant)
            for setting in self.settings()
            for length in self.lengths
            for variant in variants
            for seed in range(self.seed, self.seed + self.samples)
        ]


def _one_of(name: str, value: str, possible: Collection[str]) -> None:
    if value not in possible:
        raise ConfigError(f"{name}={value!r} is unknown; possible: {', '.join(possible)}")


Done = Iterator[tuple[Case, dict[str, Any]]]
Measure = Callable[[list[Case]], Done]


def measure(case: Case, runtimes: OpenRuntime) -> dict[str, Any]:
    """The result of a case; of a setting that this model or text cannot have, {"refused": why}."""
    try:
        return TASKS[case.task].measure(case, runtimes)
    except REFUSALS as error:
        return {"refused": str(error)}
    except (CeilingError, CeilingExceededError) as error:
        if case.setting.memory is None:  # then it is this machine's, which is not part of the key
            raise
        return {"refused": str(error)}


def in_process(cases: Iterable[Case], *, threads: int | None = None) -> Done:
    """Measure one case after the other, here."""
    with OpenRuntime(threads=threads) as runtimes:
        for case in cases:
            yield case, measure(case, runtimes)


def run(cases: Iterable[Case], results: Results, how: Measure) -> Iterator[Case]:
    """Measure the cases that have no result yet, and store each; yields every case that has one, those first."""
    todo = []
    for case in cases:
        if results.get(case.config()) is None:
            todo.append(case)
        else:
            yield case
    if todo:
        for case, result in how(_texts_together(todo)):
            results.add(case.config(), result)
            yield case


def _texts_together(cases: Iterable[Case]) -> list[Case]:
    """The same cases; those that share a text follow the first of them, all others keep their order."""
    groups: dict[Hashable, list[Case]] = {}
    for number, case in enumerate(cases):
        text = TASKS[case.task].text
        groups.setdefault(number if text is None else (case.task, text(case)), []).append(case)
    return list(itertools.chain(*groups.values()))
