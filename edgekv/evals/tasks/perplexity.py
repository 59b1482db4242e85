"""The task "perplexity": how well a text is predicted while it is evicted, against the full cache."""

from __future__ import annotations

from typing import Any

from edgekv.evals import perplexity_gap
from edgekv.evals.case import Case, Measured
from edgekv.evals.measured import setting_cells
from edgekv.evals.setting import OpenRuntime
from edgekv.evals.table import SETTING_HEADERS, Table
from edgekv.evals.tokens import prompt_tokens

from .grouped import Where, by_setting

HEADERS = (*SETTING_HEADERS, "perplexity", "gap", "gap once evicted", "texts")


def measure(case: Case, runtimes: OpenRuntime) -> dict[str, Any]:
    """Return the result of `perplexity_gap.perplexity` for the case's text."""
    runtime = runtimes.get(case.setting, case.length)
    return perplexity_gap.perplexity(runtime, prompt_tokens(runtime.model, case.passage(runtime.model)))


def table(measured: Measured, baseline: str | None = None) -> Table:
    """A row for each setting: texts count as one; gaps to the full cache, if that read the same texts."""
    rows, data = [], []
    for (setting, length), gap, n in _gaps(measured):
        cells = (_number(gap["ppl"]), _signed(gap["gap"]), _signed(gap["gap_evicted"]), str(n))
        rows.append((*setting_cells(setting, length), *cells))
        data.append({**setting.as_dict(), "length": length, **gap, "n": n})
    return Table(HEADERS, rows, data)


Gap = tuple[Where, dict[str, Any], int]


def _gaps(measured: Measured) -> list[Gap]:
    found = {where: dict(results) for where, results in by_setting(measured).items()}
    full = {(setting.canonical, length): results for (setting, length), results in found.items() if setting.is_full}
    gaps = []
    for (setting, length), results in found.items():
        base = full.get((setting.full_cache, length), {})
        seeds = sorted(results.keys() & base.keys())
        if seeds:
            gap: dict[str, Any] = perplexity_gap.gap([results[seed] for seed in seeds], [base[seed] for seed in seeds])
        else:
            seeds = sorted(results)
            gap = {"ppl": perplexity_gap.pooled([results[seed] for seed in seeds]), "gap": None, "gap_evicted": None}
        gaps.append(((setting, length), gap, len(seeds)))
    return gaps


def _number(value: float) -> str:
    return f"{value:.2f}"


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"
