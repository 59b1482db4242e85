"""The task "perturbation": how far eviction moves the attention output of every head."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np

from edgekv.errors import ConfigError
from edgekv.evals.case import Case, Measured
from edgekv.evals.measured import setting_cells
from edgekv.evals.setting import OpenRuntime, Setting
from edgekv.evals.table import SETTING_HEADERS, Table
from edgekv.evals.tasks.grouped import Where, by_setting
from edgekv.evals.tokens import prompt_tokens

from . import output_perturbation
from .full_read import FullRead
from .texts import of_text

HEADERS = (
    *SETTING_HEADERS,
    "loss of a layer",
    "against the baseline",
    "layers that lose less",
    "heads that lose less",
    "texts",
)


def text(case: Case) -> Hashable:
    """Return the key of what a case reads, whatever its policy and budget."""
    return _reading(case), case.length, case.seed, case.book


def measure(case: Case, runtimes: OpenRuntime) -> dict[str, Any]:
    """Return the result of `output_perturbation.perturbation` for the case. Raises ConfigError for a full cache.

    The text is read once for all cases of it that are measured in a row.
    """
    if case.setting.is_full:
        raise ConfigError("perturbation compares with the full cache by itself; name policies that evict")
    whole = of_text(runtimes, text(case), lambda: _read(case, runtimes))
    found = output_perturbation.losses(whole, case.setting.policy, [case.setting.budget])
    return {"n_cells": found["n_cells"], "heads": found["heads"][0], "layers": found["layers"][0]}


def _reading(case: Case) -> Setting:
    setting = case.setting
    reading = output_perturbation.capture_setting(case.length, model=setting.model, block=setting.block)
    return replace(reading, kv_type=setting.kv_type, n_sink=setting.n_sink, recent=setting.recent)


def _read(case: Case, runtimes: OpenRuntime) -> FullRead:
    runtime = runtimes.get(_reading(case), case.length)
    tokens = prompt_tokens(runtime.model, case.passage(runtime.model))[: case.length]
    return output_perturbation.read_full(runtime, tokens)


def table(measured: Measured, baseline: str | None = None) -> Table:
    """A row for each setting: the mean loss of a layer's output as a share of it, and the ratio to the baseline's."""
    found, by_head = _means(measured, "layers"), _means(measured, "heads")
    baseline = baseline or next((setting.policy for setting, _ in found), "")
    rows, data = [], []
    for (setting, length), (losses, n) in found.items():
        base_of = replace(setting, policy=baseline), length
        base, _ = found.get(base_of, (None, 0))
        ratio = None if base is None else float(losses.mean() / base.mean())
        less = None if base is None else _share_less(losses, base)
        heads = None if base is None else _share_less(by_head[setting, length][0], by_head[base_of][0])
        rows.append(
            (
                *setting_cells(setting, length),
                f"{losses.mean():.1%}",
                "" if ratio is None else f"{ratio:.3f}",
                "" if less is None else f"{less:.0%}",
                "" if heads is None else f"{heads:.0%}",
                str(n),
            )
        )
        where = {**setting.as_dict(), "length": length}
        shares = {"ratio": ratio, "layers_with_less": less, "heads_with_less": heads}
        data.append(where | {"layers": losses.tolist()} | shares | {"n": n})
    return Table(HEADERS, rows, data)


def _means(measured: Measured, what: str) -> dict[Where, tuple[np.ndarray, int]]:
    """Return losses by setting and length, mean over texts, and the number of texts.

    what: "layers", (n_layer,); or "heads", (n_layer, most KV heads of a layer), NaN beyond the heads of a layer
    """
    return {
        where: (np.mean([_array(result[what]) for _, result in results], axis=0), len(results))
        for where, results in by_setting(measured).items()
    }


def _array(losses: list[Any]) -> np.ndarray:
    if not isinstance(losses[0], list):
        return np.array(losses)
    most = max(map(len, losses))
    return np.array([heads + [np.nan] * (most - len(heads)) for heads in losses])


def _share_less(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float((ours < theirs)[~np.isnan(theirs)].mean())
