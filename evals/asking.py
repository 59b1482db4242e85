"""Tasks that ask about a text: the share of right answers, with its interval, compared on the same samples."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import needle as needles
from . import prose
from . import ruler as rulers
from .case import Case
from .document import Document
from .reading import replies
from .setting import OFF, OpenRuntime, Setting
from .statistics import Interval, interval, paired_p_value
from .table import SETTING_HEADERS, Measured, Table, setting_cells

Params = tuple[tuple[str, Any], ...]


def needle(case: Case, runtimes: OpenRuntime) -> dict[str, Any]:
    """Planted sentences: `needle.document` with the parameters depth and needles."""
    return _ask(case, runtimes, functools.partial(needles.document, **case.params))


def ruler(case: Case, runtimes: OpenRuntime) -> dict[str, Any]:
    """A task of RULER, which the parameter kind names."""
    (kind,) = case.params.values()
    return _ask(case, runtimes, functools.partial(rulers.document, kind))


def _ask(case: Case, runtimes: OpenRuntime, make: Callable[..., Document]) -> dict[str, Any]:
    """What is answered about a document, and the mean score of the answers, in [0, 1]."""
    runtime = runtimes.get(case.setting, case.length)
    document = make(runtime.model, _book(case.book), case.length, case.seed)
    said = replies(runtime, case.setting, document)
    scores = [question.score(reply) for question, reply in zip(document.questions, said, strict=True)]
    return {"score": sum(scores) / len(scores), "scores": scores, "replies": said}


@functools.lru_cache(maxsize=1)
def _book(path: Path | None) -> str | None:
    return None if path is None else prose.read_book(path)


@dataclass(frozen=True)
class Line:
    """The samples of one configuration.

    p_value: of a paired comparison with the baseline on the same samples; None = it is the baseline, or there is none
    """

    task: str
    setting: Setting
    length: int
    params: Mapping[str, Any]
    score: Interval
    p_value: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        score = {"mean": self.score.mean, "low": self.score.low, "high": self.score.high, "n": self.score.n}
        where = {"task": self.task, **self.setting.as_dict(), "length": self.length, **self.params}
        return where | score | {"p_value": self.p_value}


def lines(measured: Measured, baseline: str | None = None) -> list[Line]:
    """A line for each configuration, in the order in which they come; refused ones are left out.

    baseline: the policy that others are compared with, question unknown and all else alike; None = the first that
    evicts. Raises ConfigError without the extra "eval".
    """
    found: dict[tuple[str, Setting, int, Params], dict[int, float]] = defaultdict(dict)
    for case, result in measured:
        if "score" in result:
            found[case.task, case.setting, case.length, tuple(case.params.items())][case.seed] = result["score"]
    if baseline is None:
        baseline = next((setting.policy for _, setting, _, _ in found if not setting.is_full), "")
    made = []
    for (task, setting, length, params), scores in found.items():
        base = found.get((task, replace(setting, policy=baseline, focus=OFF), length, params))
        p_value = None if base is None or base is scores else _compare(scores, base)
        made.append(Line(task, setting, length, dict(params), interval(list(scores.values())), p_value))
    return made


def _compare(scores: Mapping[int, float], base: Mapping[int, float]) -> float | None:
    seeds = sorted(scores.keys() & base.keys())
    return paired_p_value([scores[seed] for seed in seeds], [base[seed] for seed in seeds]) if seeds else None


def table(measured: Measured, baseline: str | None = None) -> Table:
    """A row for each configuration: the mean score, where the true one lies with 95 %, texts, and the p-value."""
    found = lines(measured, baseline)
    names = list(dict.fromkeys(name for line in found for name in line.params))
    rows = [
        (
            line.task,
            *setting_cells(line.setting, line.length),
            *("" if line.params.get(name) is None else str(line.params[name]) for name in names),
            f"{line.score.mean:.0%}",
            f"{line.score.low:.0%} to {line.score.high:.0%}",
            str(line.score.n),
            "" if line.p_value is None else f"{line.p_value:.3f}",
        )
        for line in found
    ]
    headers = ("task", *SETTING_HEADERS, *names, "score", "95 %", "texts", "p")
    return Table(headers, rows, [line.as_dict() for line in found])


def draw(measured: Measured, folder: Path) -> list[Path]:
    """Pictures."""
    return []
