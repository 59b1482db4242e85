"""Group results by setting and draw a figure of them as bars, for tasks without questions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edgekv.evals import pictures
from edgekv.evals.case import Measured
from edgekv.evals.measured import labels, valid_results
from edgekv.evals.setting import Setting

Where = tuple[Setting, int]  # a setting, and the length of the text


def by_setting(measured: Measured) -> dict[Where, list[tuple[int, Mapping[str, Any]]]]:
    """Seeds and results of each setting and length; refused cases are left out."""
    found: dict[Where, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    for case, result in valid_results(measured):
        found[case.setting, case.length].append((case.seed, result))
    return found


def draw_bars(values: Mapping[Where, float], folder: Path, name: str, label: str) -> list[Path]:
    """A picture NAME-LENGTH.png for each length: policies, and a bar for each of their budgets."""
    drawn = []
    names = labels(setting for setting, _ in values)
    for length in dict.fromkeys(length for _, length in values):
        bars: dict[str, dict[str, float]] = defaultdict(dict)
        for (setting, its), value in values.items():
            if its == length:
                cells = "full cache" if setting.is_full else f"{setting.budget} cells"
                bars[names[setting]][cells] = value
        drawn.append(folder / f"{name}-{length}.png")
        pictures.bars(drawn[-1], bars, title=f"{length:,} tokens", label=label, of="policy")
    return drawn
