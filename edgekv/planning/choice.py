"""A request: options of a user, and the names of options that are left to the planner."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from edgekv.arguments import check_names
from edgekv.models.catalog import known_as
from edgekv.models.head_shares import has_shares
from edgekv.options import (
    DEFAULT_POLICY,
    DIVIDED_POLICY,
    MEANT,
    MERGED_POLICY,
    UNTURNED_POLICY,
    Options,
)

from .default_memory import is_bundled, most_default_bytes
from .plan import Plan

# The planner chooses these if they are None or not named, as it does a budget of None.
OPEN = ("memory", "policy", "block", "kv_type", "repack", "resident", "gpu_layers", "tensor_split")

MOST_DIVIDED = 1024  # the most cells of a head with which a division by a table was measured (docs/results)


def default_policy(model: Path, budget: int | None, *, merges: bool = True) -> str:
    """Return the policy that keeps most of a text in so many cells, as measured (docs/results).

    budget: None = all that fit; merges: cells may be means of evicted ones
    """
    if budget is not None and budget <= MOST_DIVIDED and has_shares(model):
        return MERGED_POLICY if merges else DIVIDED_POLICY
    return UNTURNED_POLICY if known_as(model) is None else DEFAULT_POLICY


def may_lack_table(model: Path, policy: object, budget: int | None) -> bool:
    """Return True if `lacks_table` may be true of the plan for an open policy and named cells. Makes no plan."""
    few = policy is None and budget is not None and budget <= MOST_DIVIDED
    return few and model.is_file() and not has_shares(model)


def lacks_table(plan: Plan) -> bool:
    """Return True if an open policy would divide so many cells, were they named and had the model a table of heads."""
    few = plan.policy == UNTURNED_POLICY and plan.budget_cells <= MOST_DIVIDED
    return few and plan.model.is_file() and not has_shares(plan.model)


@dataclass(frozen=True, slots=True)
class Request:
    """Options of a user, and the names of options that the planner may choose."""

    options: Options
    open: frozenset[str]

    @classmethod
    def of(cls, **given: object) -> Request:
        """Make a request of arguments of `Runtime`. None = the argument's default.

        Raises ConfigError for unknown ones, and for values that cannot work.
        """
        check_names(given, (it.name for it in fields(Options) if it.init), "Runtime", MEANT)
        left_open = frozenset(name for name in OPEN if given.get(name) is None)
        named = {name: value for name, value in given.items() if value is not None}
        return cls(Options(**named), left_open)  # type: ignore[arg-type]

    def of_model(self, path: Path) -> Request:
        """Return the request with the policy that suits the model, and its largest default ceiling, if these are open.

        A ceiling of a user's own model stays open: it is lowered to what the chosen plan needs.
        """
        chosen: dict[str, Any] = {}
        left_open = self.open
        if "policy" in left_open:
            chosen["policy"] = default_policy(path, self.options.budget, merges=self.options.may_merge)
        if "memory" in left_open:
            if is_bundled(path):
                left_open -= {"memory"}
            else:
                chosen["memory"] = most_default_bytes()
        return Request(replace(self.options, **chosen), left_open)

    def plainer(self, path: Path) -> Request | None:
        """Return the request with less of an open policy that divides cells by a table: without means, then even cells.

        None for any other policy.
        """
        if "policy" not in self.open or not self.options.divides_by_table:
            return None
        policy = DIVIDED_POLICY if self.options.parsed_policy.merges else default_policy(path, None)
        return replace(self, options=replace(self.options, policy=policy))

    @property
    def repacks(self) -> bool:
        """Return True if the planner tries repacked weights first, because `repack` is open."""
        return "repack" in self.open and not self.options.mmap

    @property
    def preferred(self) -> Options:
        """Return the options, with repacked weights if that is open."""
        return replace(self.options, repack=True) if self.repacks else self.options
