"""The task "longgen": repetition in a long text that a model writes under a budget, and its perplexity."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgekv.evals.case import Case, Measured
from edgekv.evals.measured import setting_cells
from edgekv.evals.setting import OpenRuntime
from edgekv.evals.table import SETTING_HEADERS, Table
from edgekv.evals.tasks.grouped import by_setting, draw_bars
from edgekv.generation.sampler import Sampling

from .long_generation import PROMPTS, long_generation

HEADERS = (
    *SETTING_HEADERS,
    "temperature",
    "different 4-grams",
    "longest repeat",
    "perplexity, full cache",
    "ends early",
    "texts",
)


def measure(case: Case, runtimes: OpenRuntime) -> dict[str, Any]:
    """Return the result of `long_generation`. The seed chooses one of the prompts, and seeds the sampler."""
    prompt = list(PROMPTS.values())[case.seed % len(PROMPTS)]
    sampling = Sampling(temperature=case.params["temperature"], repeat_penalty=1.0, seed=case.seed)
    return long_generation(runtimes, case.setting, prompt, case.length, sampling)


def table(measured: Measured, baseline: str | None = None) -> Table:
    """A row for each setting and temperature, means over texts; a figure only if all texts have it."""
    rows, data = [], []
    for temperature, same in _by_temperature(measured).items():
        for (setting, length), seeded in by_setting(same).items():
            results = [result for _, result in seeded]
            different = _mean([result["distinct"]["4"] for result in results])
            longest = float(np.mean([result["longest_repeat"] for result in results]))
            nll = _mean([result["ppl_full"] and math.log(result["ppl_full"]) for result in results])
            ppl = None if nll is None else math.exp(nll)
            ended = sum(result["end"] is not None for result in results)
            cells = (
                f"{temperature:g}",
                "" if different is None else f"{different:.0%}",
                f"{longest:.0f}",
                "" if ppl is None else f"{ppl:.2f}",
                f"{ended}",
                f"{len(results)}",
            )
            rows.append((*setting_cells(setting, length), *cells))
            where = {**setting.as_dict(), "length": length, "temperature": temperature}
            figures = {"distinct_4": different, "longest_repeat": longest, "ppl_full": ppl, "ended": ended}
            data.append({**where, **figures, "n": len(results)})
    return Table(HEADERS, rows, data, n_keys=len(SETTING_HEADERS) + 1)


def draw(measured: Measured, folder: Path) -> list[Path]:
    """Repeated 4-grams as bars: policies and their budgets, a picture for each temperature and length."""
    drawn = []
    for temperature, same in _by_temperature(measured).items():
        means = {
            where: _mean([result["repeated_4"] for _, result in results]) for where, results in by_setting(same).items()
        }
        repeated = {where: mean for where, mean in means.items() if mean is not None}
        name = f"longgen-t{temperature:g}"
        drawn += draw_bars(repeated, folder, name, f"4-grams that were there before, temperature {temperature:g}")
    return drawn


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of a figure that every text has; None = one text has none."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _by_temperature(measured: Measured) -> dict[float, list[tuple[Case, Mapping[str, Any]]]]:
    found: dict[float, list[tuple[Case, Mapping[str, Any]]]] = defaultdict(list)
    for case, result in measured:
        found[case.params["temperature"]].append((case, result))
    return found
