"""Group results by setting, for tasks without questions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from edgekv.evals.case import Measured
from edgekv.evals.measured import valid_results
from edgekv.evals.setting import Setting

Where = tuple[Setting, int]  # a setting, and the length of the text


def by_setting(measured: Measured) -> dict[Where, list[tuple[int, Mapping[str, Any]]]]:
    """Seeds and results of each setting and length; refused cases are left out."""
    found: dict[Where, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    for case, result in valid_results(measured):
        found[case.setting, case.length].append((case.seed, result))
    return found
