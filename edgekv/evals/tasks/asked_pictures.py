"""Pictures of the scores of tasks that ask questions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from edgekv.evals import pictures
from edgekv.evals.case import Measured
from edgekv.evals.measured import labels
from edgekv.evals.setting import AS_GIVEN
from edgekv.evals.statistics import Interval

from .asked import Line, lines


def draw(measured: Measured, folder: Path) -> list[Path]:
    """Scores by budget for every length, and for a needle at given depths its map for every setting."""
    found = lines(measured)
    return [*_curves(found, folder), *_maps(found, folder)]


def _curves(found: list[Line], folder: Path) -> Iterator[Path]:
    """A line for each policy and focus over its budgets, if there are several."""
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
            title=f"{task}, texts as given" if length == AS_GIVEN else f"{task}, {length:,} tokens",
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
    """Return the score of one configuration, or the means of several with different parameters."""
    n = len(scores)
    return sum(s.mean for s in scores) / n, sum(s.low for s in scores) / n, sum(s.high for s in scores) / n
