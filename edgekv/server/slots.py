"""The slots of a server: how many requests it answers at a time. The default costs no conversation its cells."""

from __future__ import annotations

import os
from typing import Any

import edgekv
from edgekv.errors import CeilingError, ConfigError, UnsupportedModelError
from edgekv.planning.choice import Request

CHOICES = (8, 4, 2)


def open_runtime(model: str | os.PathLike[str] | None, most: int, **options: Any) -> edgekv.Runtime:
    """Open a runtime with the slots that `parallel` names; None = as many as `n_slots` returns. Raises as `Runtime`."""
    if options.get("parallel") is None:
        options["parallel"] = n_slots(model, most, **options)
    return edgekv.Runtime(model, **options)


def n_slots(model: str | os.PathLike[str] | None, most: int, **options: Any) -> int:
    """Return how many slots a ceiling has room for, at most `most`, each with the cells that one alone would have.

    1, where sessions cannot share steps. Further arguments and errors are those of `edgekv.plan`.
    """
    choices = [n for n in CHOICES if n <= most]
    if not choices:
        return 1
    try:
        Request.of(**options | {"parallel": 2})
    except ConfigError:  # also for what makes sense nowhere, which the runtime says
        return 1
    alone = edgekv.plan(model, **options | {"parallel": 1})
    enough = alone.budget_cells
    # at most what a plan could still give to cells: it takes half a second, and most are refused by this alone
    spare = alone.ceiling_bytes - alone.peak_bytes + alone.parts.compute + alone.parts.workspace
    for n in choices:
        if (n - 1) * enough * alone.cell_bytes > spare:
            continue
        try:
            plan = edgekv.plan(model, **options | {"parallel": n})
        except (CeilingError, ConfigError, UnsupportedModelError):  # no room, or nothing that so many can share
            continue
        if plan.budget_cells >= enough and _reading(plan) == _reading(alone):
            return n
    return 1


def _reading(plan: edgekv.Plan) -> tuple[int, str, bool, int, str]:
    """Return what the speed of reading, the precision of cells and their division over heads depend on."""
    return plan.block, plan.kv_type, plan.repack, plan.n_streamed, plan.policy
