"""Chooses the options that a user left open: the best setting that fits.

Weights are repacked where some can be: they are faster, and take the bytes of mapped ones.

More cells matter most until there are enough of them; from then on, exact and fast cells matter more. So the first
setting with enough cells is taken, in this order: f16 before q8_0, and both at block 128 before both at 64 and at 32.
If no setting has enough cells, the one with the most is taken. The rounding of q4_0 shows in the output, so it is taken
only if nothing else fits.

With focus a probe is fed after each block, or every 160 to 256 tokens where blocks have 128 or fewer. Longer blocks
need fewer probes, so they are taken where cells abound.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edgekv.errors import ConfigError
from edgekv.options import Options

from .estimate import Estimator, Plan, most_cells
from .resting import resting_obstacle

OPEN = ("block", "kv_type", "repack")  # with None, or unnamed, the planner's to choose, as a budget of None is
ENOUGH_CELLS = 512  # docs/memory.md says why
BLOCKS = (128, 64, 32)
LONGER_BLOCKS = (512, 256)
CELLS_PER_SPARE = 4  # cells kept for each one of a longer block
TYPES = (("f16", "q8_0"), ("q4_0",))  # the second ones where none of the first fits


@dataclass(frozen=True, slots=True)
class Request:
    """What a user asks of a planner: options, and the names of those that it may choose."""

    options: Options
    open: frozenset[str]

    @classmethod
    def of(cls, **given: object) -> Request:
        """Options as arguments of `Runtime`. Raises ConfigError for values that cannot work."""
        left_open = frozenset(name for name in OPEN if given.get(name) is None)
        named = {name: value for name, value in given.items() if name not in left_open}
        return cls(Options(**named), left_open)  # type: ignore[arg-type]

    @property
    def preferred(self) -> Options:
        """The options, with repacked weights where that is left open."""
        if "repack" not in self.open or self.options.mmap:
            return self.options
        return replace(self.options, repack=True)


def settings(request: Request) -> list[list[Options]]:
    """The settings that may be chosen, best first. The second list is for requests that nothing of the first fits."""
    options = request.options
    blocks = [block for block in BLOCKS if block >= (options.evict_every or 1)]
    if "block" not in request.open:
        blocks = [options.block]
    types = TYPES if "kv_type" in request.open else ((options.kv_type,),)
    return [[replace(options, block=block, kv_type=name) for block in blocks for name in names] for names in types]


def choose(estimates: Estimator, request: Request) -> Plan | None:
    """The plan that serves best, or None where nothing fits."""
    for options in dict.fromkeys((request.preferred, request.options)):
        plan = _choose(estimates, replace(request, options=options))
        if plan is not None and plan.repack and not plan.parts.repacking and not request.options.repack:
            return replace(plan, repack=False, mmap=request.options.maps_weights)  # nothing to repack; the same bytes
        if plan is not None:
            return plan
    return None


def _choose(estimates: Estimator, request: Request) -> Plan | None:
    """The best plan with weights as the options have them."""
    for rank in settings(request):
        best: Plan | None = None
        for setting in rank:
            plan = fitting(estimates, setting, request)
            if plan is not None and (best is None or plan.budget_cells > best.budget_cells):
                best = plan
            enough = request.options.budget or min(ENOUGH_CELLS, most_cells(setting, estimates.n_ctx_train))
            if best is not None and best.budget_cells >= enough:
                break
        if best is not None:
            return _with_longer_block(estimates, request, best)
    return None


def _with_longer_block(estimates: Estimator, request: Request, plan: Plan) -> Plan:
    """With focus, the plan with the longest block that takes few of the cells (docs/memory.md)."""
    if "block" in request.open and request.options.focus and plan.block == BLOCKS[0]:
        for block in LONGER_BLOCKS:
            setting, least = replace(request.options, kv_type=plan.kv_type, block=block), CELLS_PER_SPARE * block
            if (setting.budget or most_cells(setting, estimates.n_ctx_train)) >= least:
                longer = fitting(estimates, setting, request, least)
                if longer is not None:
                    return longer
    return plan


def fitting(estimates: Estimator, setting: Options, request: Request, least: int | None = None) -> Plan | None:
    """The plan of a setting with the budget asked for, or the largest one that fits; None where it does not.

    least: what the largest one must be at least; None = `smallest_budget`

    Raises ConfigError where the model cannot have what the user named; what else it cannot have does not fit.
    """
    try:
        return _asked(estimates, setting) if setting.budget is not None else largest(estimates, setting, least)
    except ConfigError:
        if setting.kv_type == request.options.kv_type:
            raise
        return None


def _asked(estimates: Estimator, options: Options) -> Plan | None:
    plan = estimates.plan(options)
    return plan if plan.fits and not resting_obstacle(plan, options) else None


def smallest_budget(options: Options) -> int:
    """The least budget that holds the protected cells and one more."""
    budget = 1
    while (least := options.sinks + options.recent_cells(budget) + 1) > budget:
        budget = least
    return budget


def largest(estimates: Estimator, options: Options, least: int | None = None) -> Plan | None:
    """The plan with the largest budget that fits, up to `most_cells`; None where the least (or smallest) does not."""
    best = _asked(estimates, replace(options, budget=least or smallest_budget(options)))
    if best is None:
        return None
    fails = max(best.budget_cells, most_cells(options, estimates.n_ctx_train)) + 1
    while fails - best.budget_cells > 1:
        budget = (best.budget_cells + fails) // 2
        plan = _asked(estimates, replace(options, budget=budget))
        if plan is None:
            fails = budget
        else:
            best = plan
    return best
