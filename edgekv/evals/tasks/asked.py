"""Results of tasks that ask: scores with intervals, compared on the same texts with others and with a full cache."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from edgekv.evals.case import Case, Measured
from edgekv.evals.isolated_run import HEADERS as STATS_HEADERS
from edgekv.evals.isolated_run import RunStats
from edgekv.evals.measured import setting_cells, valid_results
from edgekv.evals.setting import Setting
from edgekv.evals.statistics import Gap, Interval, gap, interval, paired_p_value
from edgekv.evals.table import SETTING_HEADERS, Table

Params = tuple[tuple[str, Any], ...]
Key = tuple[str, Setting, int, Params]
Texts = Mapping[int, Mapping[str, Any]]  # results by seed

FURTHER = ("F1", "nll", "above full", "its 95 %", "p of nll", *STATS_HEADERS)


@dataclass(frozen=True)
class Likelihood:
    """Surprise at the right answers: means over texts of -ln p a token.

    above_full: the mean above that of the full cache on the same texts; None = the full cache was not measured
    p_value: of a paired comparison with the baseline; None = it is the baseline, or there is none
    """

    mean: float
    above_full: Gap | None
    p_value: float | None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        above = {} if self.above_full is None else asdict(self.above_full)
        found = {"nll": self.mean, "nll_above_full": above.get("mean")}
        found |= {f"nll_above_full_{bound}": above.get(bound) for bound in ("low", "high")}
        return found | {"nll_p_value": self.p_value}


@dataclass(frozen=True)
class Line:
    """Figures of the samples of one configuration.

    p_value: of a paired comparison with the baseline on the same samples; None = it is the baseline, or there is none
    f1, likelihood: None = not measured
    stats: speed and memory of reading, if each text was read in a process of its own
    """

    task: str
    setting: Setting
    length: int
    params: Mapping[str, Any]
    score: Interval
    p_value: float | None
    f1: float | None = None
    likelihood: Likelihood | None = None
    stats: RunStats | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        score = {"mean": self.score.mean, "low": self.score.low, "high": self.score.high, "n": self.score.n}
        where = {"task": self.task, **self.setting.as_dict(), "length": self.length, **self.params}
        told = {} if self.f1 is None else {"f1": self.f1}
        nll = {} if self.likelihood is None else self.likelihood.as_dict()
        stats = {} if self.stats is None else asdict(self.stats)
        return where | score | {"p_value": self.p_value} | told | nll | stats


def lines(measured: Measured, baseline: str | None = None) -> list[Line]:
    """A line for each configuration, in the order in which they come; refused ones are left out.

    baseline: the `name` of the setting that others are compared with, all else alike; None = the first that evicts.
    Raises ConfigError without the extra "eval".
    """
    found = texts_by_line(measured)
    if baseline is None:
        baseline = next((setting.name for _, setting, _, _ in found if not setting.is_full), "")
    bases = {(key[0], key[1].common, *key[2:]): texts for key, texts in found.items() if key[1].name == baseline}
    fulls = {_under_full_cache(key): texts for key, texts in found.items() if key[1].is_full}
    return [
        _line(
            key,
            texts,
            base=None if key[1].is_full else bases.get((key[0], key[1].common, *key[2:])),
            full=None if key[1].is_full else fulls.get(_under_full_cache(key)),
        )
        for key, texts in found.items()
    ]


def texts_by_line(measured: Measured) -> dict[Key, Texts]:
    """Return the results of each configuration, in the order in which they come; refused ones are left out."""
    found: dict[Key, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for case, result in valid_results(measured):
        found[case.task.name, case.setting, case.length, _params(case)][case.seed] = result
    return dict(found)


def _params(case: Case) -> Params:
    data = {} if case.data is None else {"data": str(case.data)}
    return tuple({**case.params, **data}.items())


def _under_full_cache(key: Key) -> Key:
    """Return the key of the same texts, read under a full cache."""
    task, setting, length, params = key
    return task, setting.full_cache, length, params


def _line(key: Key, texts: Texts, base: Texts | None, full: Texts | None) -> Line:
    stats = [result["alone"] for result in texts.values() if "alone" in result]
    task, setting, length, params = key
    return Line(
        task,
        setting,
        length,
        dict(params),
        interval(list(_values(texts, "score").values())),
        _p_value(texts, base, "score"),
        f1=mean_of(texts, "f1"),
        likelihood=_likelihood(texts, base, full),
        stats=RunStats.of(stats) if stats else None,
    )


def _likelihood(texts: Texts, base: Texts | None, full: Texts | None) -> Likelihood | None:
    mean = mean_of(texts, "nll")
    if mean is None:
        return None
    return Likelihood(mean, paired_gap(texts, full, "nll"), _p_value(texts, base, "nll"))


def mean_of(texts: Texts, name: str) -> float | None:
    """Return the mean of a figure over the texts that have it; None = none has it."""
    values = _values(texts, name).values()
    return sum(values) / len(values) if values else None


def _values(texts: Texts, name: str) -> dict[int, float]:
    return {seed: result[name] for seed, result in texts.items() if name in result}


def _pairs(first: Texts | None, second: Texts | None, name: str) -> tuple[list[float], list[float]] | None:
    """Return a figure of the texts that both read; None = there are none."""
    one, other = (_values(texts or {}, name) for texts in (first, second))
    seeds = sorted(one.keys() & other.keys())
    return ([one[seed] for seed in seeds], [other[seed] for seed in seeds]) if seeds else None


def paired_gap(first: Texts | None, second: Texts | None, name: str) -> Gap | None:
    """Return how much larger a figure is in the first, over the texts that both read; None = there are none."""
    pairs = _pairs(first, second, name)
    return None if pairs is None else gap(*pairs)


def _p_value(texts: Texts, base: Texts | None, name: str) -> float | None:
    pairs = None if base is texts else _pairs(texts, base, name)
    return None if pairs is None else paired_p_value(*pairs)


def table(measured: Measured, baseline: str | None = None) -> Table:
    """Return a row for each configuration: the mean score, its 95 % interval, texts, and the p-value.

    Then F1, the likelihood of the right answers, and speed and memory for texts that were read in processes of their
    own; each only if it was measured.
    """
    found = lines(measured, baseline)
    names = list(dict.fromkeys(name for line in found for name in line.params))
    further = [_further(line) for line in found]
    shown = [header for header in FURTHER if any(header in cells for cells in further)]
    rows = [
        (
            line.task,
            *setting_cells(line.setting, line.length),
            *("" if line.params.get(name) is None else str(line.params[name]) for name in names),
            f"{line.score.mean:.0%}",
            f"{line.score.low:.0%} to {line.score.high:.0%}",
            str(line.score.n),
            "" if line.p_value is None else f"{line.p_value:.3f}",
            *(cells.get(header, "") for header in shown),
        )
        for line, cells in zip(found, further, strict=True)
    ]
    headers = ("task", *SETTING_HEADERS, *names, "score", "95 %", "texts", "p", *shown)
    return Table(headers, rows, [line.as_dict() for line in found], 1 + len(SETTING_HEADERS) + len(names))


def _further(line: Line) -> dict[str, str]:
    """Return the figures of a line that not all lines have, by their headers."""
    cells = {}
    if line.f1 is not None:
        cells["F1"] = f"{line.f1:.0%}"
    if line.likelihood is not None:
        cells |= _likelihood_cells(line.likelihood)
    return cells if line.stats is None else cells | dict(zip(STATS_HEADERS, line.stats.cells(), strict=True))


def _likelihood_cells(found: Likelihood) -> dict[str, str]:
    cells = {"nll": f"{found.mean:.2f}"}
    if found.above_full is not None:
        cells["above full"] = f"{found.above_full.mean:+.2f}"
        if found.above_full.low is not None:
            cells["its 95 %"] = f"{found.above_full.low:+.2f} to {found.above_full.high:+.2f}"
    if found.p_value is not None:
        cells["p of nll"] = f"{found.p_value:.3f}"
    return cells
