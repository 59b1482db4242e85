"""The ceiling of a runtime that is given none: 256 MiB for the model that comes with edgekv, more for a user's own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgekv.memory.process import available_bytes, group_limit
from edgekv.memory.sizes import MIB, format_size, parse_ceiling
from edgekv.models.catalog import known_models
from edgekv.options import DEFAULT_MEMORY, Options

from .plan import Plan

STEP_BYTES = 64 * MIB  # a ceiling that is lowered to its plan is a multiple of this
ENOUGH_CELLS = 512  # the default model finds as many planted numbers as with all cells (docs/results/default-model.md)


def is_bundled(model: Path) -> bool:
    """Return True for the file of a model that comes with edgekv, whose default ceiling is DEFAULT_MEMORY."""
    return any(known.path == model for known in known_models())


def most_default_bytes() -> int:
    """Return the largest default ceiling: half of the free memory, at most half of the control group's limit.

    DEFAULT_MEMORY is a default in any case, unless the control group may have less.
    """
    limit = group_limit()
    allowed = available_bytes() if limit is None else min(available_bytes(), limit.n_bytes)
    least = parse_ceiling(DEFAULT_MEMORY)
    return max(allowed // 2, least if limit is None else min(least, limit.n_bytes))


def lowered(plan: Plan, options: Options) -> tuple[Plan, Options]:
    """Return a plan and options with the plan's need as their ceiling, if that is less than the ceiling now."""
    needed = -(-plan.peak_bytes // STEP_BYTES) * STEP_BYTES
    if needed >= plan.ceiling_bytes:
        return plan, options
    return replace(plan, ceiling_bytes=needed), replace(options, memory=needed)


def default_memory_line(plan: Plan) -> str:
    """Return the origin of a ceiling that the user did not name; "" for a model that comes with edgekv."""
    if is_bundled(plan.model):
        return ""
    ceiling, trained = format_size(plan.ceiling_bytes), f"{plan.n_ctx_train:,} tokens"
    if plan.n_cells >= plan.n_ctx_train:
        why = f"enough for its trained context of {trained}"
    elif plan.ceiling_bytes % STEP_BYTES == 0 and plan.ceiling_bytes - plan.peak_bytes < STEP_BYTES:
        why = f"enough for {plan.budget_cells:,} cells"
    else:
        why = f"half of what is free, with cells for {plan.budget_cells:,} of its trained context of {trained}"
    return f"memory {ceiling}: {why}; --memory names another ceiling"
