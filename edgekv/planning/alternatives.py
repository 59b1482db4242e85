"""A plan's limit, the gain of more memory, and the largest budgets of other settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

from edgekv.errors import ConfigError
from edgekv.memory.sizes import MIB
from edgekv.options import KV_TYPES, Options

from .choice import Request
from .estimate import Estimator
from .native_request import most_cells
from .plan import Plan
from .planner import planned

MORE_BYTES = 64 * MIB
BLOCKS = (128, 64, 32)  # tokens; alternatives are shown for each


@dataclass(frozen=True, slots=True)
class Alternative:
    """The largest budget with a cache type and a block; None if they do not fit, or the model cannot have them."""

    kv_type: str
    block: int
    budget_cells: int | None


@dataclass(frozen=True, slots=True)
class Survey:
    """A plan, the limit that binds it, and other settings that would fit.

    bound_by: the limit of the budget: "budget" (it was given), "trained context", "speed" (it is enough; more memory
        goes to a faster setting first), "memory" or "device_memory"
    largest_part: the part of the plan that takes the most bytes, beside the weights
    with_more: the plan under a ceiling `more_bytes` higher; if a budget was given, the most cells in the plan's setting
    alternatives: the largest budget with every cache type that suits the model, and every block
    """

    plan: Plan
    bound_by: str
    largest_part: str
    more_bytes: int
    with_more: Plan
    alternatives: tuple[Alternative, ...]

    def as_dict(self) -> dict[str, object]:
        """Return the plan and the survey as plain values, for JSON."""
        more = {"bytes": self.more_bytes} | {
            name: getattr(self.with_more, name) for name in ("budget_cells", "block", "kv_type")
        }
        return self.plan.as_dict() | {
            "bound_by": self.bound_by,
            "largest_part": self.largest_part,
            "with_more": more,
            "alternatives": [asdict(alternative) for alternative in self.alternatives],
        }


def make_survey(path: Path, request: Request) -> Survey:
    """Make the survey of a model file."""
    with planned(path, request) as (plan, estimates, request):
        free = replace(request, options=replace(request.options, budget=None))
        alike = replace(free, options=replace(free.options, resident=plan.resident), open=free.open - {"resident"})
        larger = request if request.options.budget is None else _same_setting(request, plan)
        more = replace(larger, options=replace(larger.options, memory=plan.ceiling_bytes + MORE_BYTES))
        parts = {name: n for name, n in asdict(plan.parts).items() if name not in ("weights", "repacking")}
        return Survey(
            plan=plan,
            bound_by=_bound_by(estimates, request.options, plan),
            largest_part=max(parts, key=parts.__getitem__),
            more_bytes=MORE_BYTES,
            with_more=estimates.best(more) or plan,
            alternatives=tuple(
                _alternative(estimates, alike, kv_type, block)
                for kv_type in KV_TYPES
                if kv_type == plan.kv_type or estimates.header.suits_cache(kv_type)
                for block in BLOCKS
                if block >= (free.options.evict_every or 1)
            ),
        )


def _bound_by(estimates: Estimator, options: Options, plan: Plan) -> str:
    if options.budget is not None:
        return "budget"
    if plan.budget_cells >= most_cells(plan.resolve(options), plan.n_ctx_train):
        return "trained context"
    larger = replace(plan.resolve(options), budget=plan.budget_cells + 1)
    if estimates.best(Request(larger, frozenset())) is not None:
        return "speed"
    one_more = estimates.plan(larger)
    return "device_memory" if one_more.device_excess_bytes and not one_more.excess_bytes else "memory"


def _same_setting(request: Request, plan: Plan) -> Request:
    """Return the request with the plan's setting, and the budget open."""
    return Request(replace(plan.resolve(request.options), budget=None), frozenset())


def _alternative(estimates: Estimator, request: Request, kv_type: str, block: int) -> Alternative:
    try:
        options = replace(request.options, kv_type=kv_type, block=block)
        plan = estimates.best(Request(options, request.open - {"kv_type", "block"}))
    except ConfigError:
        plan = None
    return Alternative(kv_type, block, None if plan is None else plan.budget_cells)
