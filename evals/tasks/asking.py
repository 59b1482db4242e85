"""Tasks that ask about a text: the share of right answers, with its interval, compared on the same samples."""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgekv.evals import needle as needles
from edgekv.evals import pictures, prose
from edgekv.evals import ruler as rulers
from edgekv.evals.alone import HEADERS as TOOK_HEADERS
from edgekv.evals.alone import Took, read_alone
from edgekv.evals.case import Case, book_text
from edgekv.evals.document import Document
from edgekv.evals.reading import replies
from edgekv.evals.setting import OpenRuntime, Setting
from edgekv.evals.statistics import Interval, interval, paired_p_value
from edgekv.evals.table import SETTING_HEADERS, Measured, Table, labels, setting_cells

Params = tuple[tuple[str, Any], ...]


def needle(case: Case, runtimes: OpenRuntime) -> dict[str, Any]:
    """Planted sentences: `needle.document` with the parameters depth and needles."""
    return _ask(case, runtimes, functools.partial(needles.document, **case.params))


def ruler(case: Case, runtimes: OpenRuntime) -> dict[str, Any]:
    """A task of RULER, which the parameter kind names."""
    (kind,) = case.params.values()
    return _ask(case, runtimes, functools.partial(rulers.document, kind))


def _ask(case: Case, runtimes: OpenRuntime, make: Callable[..., Document]) -> dict[str, Any]:
    """What is answered about a document, and the mean score of the answers, in [0, 1].

    Under a ceiling of its own the text is read in a process of its own, and the result tells what that took.
    """
    document, found = (_here if case.setting.memory is None else _alone)(case, runtimes, make)
    scores = [question.score(reply) for question, reply in zip(document.questions, found["replies"], strict=True)]
    return {"score": sum(scores) / len(scores), "scores": scores, **found}


def _here(case: Case, runtimes: OpenRuntime, make: Callable[..., Document]) -> tuple[Document, dict[str, Any]]:
    runtime = runtimes.get(case.setting, case.length)
    document = make(runtime.model, book_text(case.book), case.length, case.seed)
    with _file(document) as text:
        return document, {"replies": replies(runtime, case.setting, text, document.questions)}


def _alone(case: Case, runtimes: OpenRuntime, make: Callable[..., Document]) -> tuple[Document, dict[str, Any]]:
    with prose.vocabulary(case.setting.model) as model:
        document = make(model, book_text(case.book), case.length, case.seed)
    with _file(document) as text:
        threads = runtimes.threads
        return document, read_alone(case.setting, case.length, text, document.questions, threads=threads)


@contextlib.contextmanager
def _file(document: Document) -> Iterator[Path]:
    """The text of a document, for the time being on the disk."""
    with tempfile.TemporaryDirectory(prefix="edgekv-eval-") as folder:
        path = Path(folder, "text.txt")
        path.write_text(document.text, encoding="utf-8")
        yield path


@dataclass(frozen=True)
class Line:
    """The samples of one configuration.

    p_value: of a paired comparison with the baseline on the same samples; None = it is the baseline, or there is none
    took: what reading the texts took, where each was read in a process of its own
    """

    task: str
    setting: Setting
    length: int
    params: Mapping[str, Any]
    score: Interval
    p_value: float | None
    took: Took | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        score = {"mean": self.score.mean, "low": self.score.low, "high": self.score.high, "n": self.score.n}
        where = {"task": self.task, **self.setting.as_dict(), "length": self.length, **self.params}
        took = {} if self.took is None else asdict(self.took)
        return where | score | {"p_value": self.p_value} | took


def lines(measured: Measured, baseline: str | None = None) -> list[Line]:
    """A line for each configuration, in the order in which they come; refused ones are left out.

    baseline: the `name` of the setting that others are compared with, all else alike; None = the first that evicts.
    Raises ConfigError without the extra "eval".
    """
    found: dict[tuple[str, Setting, int, Params], dict[int, float]] = defaultdict(dict)
    alone: dict[tuple[str, Setting, int, Params], list[dict[str, Any]]] = defaultdict(list)
    for case, result in measured:
        if "score" in result:
            key = case.task, case.setting, case.length, tuple(case.params.items())
            found[key][case.seed] = result["score"]
            if "alone" in result:
                alone[key].append(result["alone"])
    if baseline is None:
        baseline = next((setting.name for _, setting, _, _ in found if not setting.is_full), "")
    bases = {
        (task, setting.common, length, params): scores
        for (task, setting, length, params), scores in found.items()
        if setting.name == baseline
    }
    made = []
    for (task, setting, length, params), scores in found.items():
        base = None if setting.is_full else bases.get((task, setting.common, length, params))
        p_value = None if base is None or base is scores else _compare(scores, base)
        figures = alone.get((task, setting, length, params))
        took = None if figures is None else Took.of(figures)
        made.append(Line(task, setting, length, dict(params), interval(list(scores.values())), p_value, took))
    return made


def _compare(scores: Mapping[int, float], base: Mapping[int, float]) -> float | None:
    seeds = sorted(scores.keys() & base.keys())
    return paired_p_value([scores[seed] for seed in seeds], [base[seed] for seed in seeds]) if seeds else None


def table(measured: Measured, baseline: str | None = None) -> Table:
    """A row for each configuration: the mean score, where the true one lies with 95 %, texts, and the p-value.

    Where texts were read in processes of their own, also how fast, and in how much memory.
    """
    found = lines(measured, baseline)
    nothing = ("",) * len(TOOK_HEADERS) if any(line.took for line in found) else ()
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
            *(nothing if line.took is None else line.took.cells()),
        )
        for line in found
    ]
    headers = ("task", *SETTING_HEADERS, *names, "score", "95 %", "texts", "p", *(TOOK_HEADERS if nothing else ()))
    n_keys = 1 + len(SETTING_HEADERS) + len(names)
    return Table(headers, rows, [line.as_dict() for line in found], n_keys)


def draw(measured: Measured, folder: Path) -> list[Path]:
    """Scores by budget for every length, and for a needle at given depths its map for every setting."""
    found = lines(measured)
    return [*_curves(found, folder), *_maps(found, folder)]


def _curves(found: list[Line], folder: Path) -> Iterator[Path]:
    """A line for each policy and focus over its budgets, where there are several."""
    for task, length in dict.fromkeys((line.task, line.length) for line in found):
        part = [line for line in found if (line.task, line.length) == (task, length)]
        names = labels(line.setting for line in part)
        curves: dict[str, dict[int, list[Interval]]] = defaultdict(lambda: defaultdict(list))
        for line in part:
            if not line.setting.is_full:
                curves[names[line.setting]][line.setting.budget].append(line.score)
        if max(map(len, curves.values()), default=0) < 2:
            continue
        full = [line.score for line in part if line.setting.is_full]
        path = folder / f"{task}-{length}-by-budget.png"
        pictures.budget_curves(
            path,
            {name: {budget: _mean(scores) for budget, scores in curve.items()} for name, curve in curves.items()},
            full=_mean(full) if full else None,
            title=f"{task}, {length:,} tokens",
            label="score",
        )
        yield path


def _maps(found: list[Line], folder: Path) -> Iterator[Path]:
    """Length by depth, for every setting that read needles at given depths."""
    deep = [line for line in found if line.params.get("depth") is not None]
    for number, setting in enumerate(dict.fromkeys(line.setting for line in deep)):
        scores = {(line.params["depth"], line.length): line.score.mean for line in deep if line.setting == setting}
        depths, lengths = (sorted(set(values)) for values in zip(*scores, strict=True))
        path = folder / f"needle-map-{number + 1}.png"
        cells = "" if setting.is_full else f", {setting.budget} cells"
        pictures.needle_map(
            path,
            [[scores.get((depth, length)) for length in lengths] for depth in depths],
            lengths=lengths,
            depths=depths,
            title=f"{setting.name}{cells}",
        )
        yield path


def _mean(scores: list[Interval]) -> tuple[float, float, float]:
    """Of one configuration its score; of several, of different parameters, the means of all three."""
    n = len(scores)
    return sum(s.mean for s in scores) / n, sum(s.low for s in scores) / n, sum(s.high for s in scores) / n
