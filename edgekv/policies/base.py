"""A policy: a frozen set of options, and a formula that scores the cells of one head."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgekv.errors import ConfigError, PolicyError

from .apportion import check_largest
from .head import Head
from .pooling import pool_scores
from .selection import Protection, cells_to_keep, check_room
from .types import Indices, Positions, Scores

POOLS = ("avg", "max")
AGGREGATES = ("mean", "max")  # enum edgekv_aggregate


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    odd: bool = False,
    alias: str | None = None,
    of_paper: bool = False,
) -> Any:
    """Make a field of a policy: its default, one line of help, its possible values, and another name.

    of_paper: only a paper's tables set it, so users are not told of it
    """
    limits = {"help": help, "choices": tuple(choices), "minimum": minimum, "maximum": maximum, "odd": odd}
    return dataclasses.field(default=default, metadata=limits | {"alias": alias, "of_paper": of_paper})


@dataclass(frozen=True)
class Policy:
    """Base of all policies. A subclass has a name, a paper, options and a score.

    reads: names of the `Head` arrays that the policy needs beside keys and positions
    weights: its scores are never negative, as attention weights are; wrappers take a softmax of other scores
    accumulates: cells carry their scores on to the next scoring by the same policy
    carries: scores accumulate with the cell; every block is then scored, even while the cache has room
    before_rope: it reads keys as they were before RoPE; plain arrays must hold them so
    shares: the heads of a layer share its cells

    Raises PolicyError when an option has an impossible value.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    summary: ClassVar[str]
    native_base: ClassVar[int]  # enum edgekv_base
    reads: ClassVar[frozenset[str]] = frozenset()
    weights: ClassVar[bool] = True
    accumulates: ClassVar[bool] = False
    carries: ClassVar[bool] = False
    before_rope: ClassVar[bool] = False
    shares: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_options(self.name, self, self.options())

    @classmethod
    def options(cls) -> Iterator[dataclasses.Field[Any]]:
        """Return the fields that a spec may set."""
        return (field for field in dataclasses.fields(cls) if "help" in field.metadata)

    def score(self, head: Head) -> Scores:
        """Score the cells of one head in float64, the reference: -> (n,); higher is kept."""
        raise NotImplementedError

    def accumulate(self, head: Head) -> Scores:
        """Return the score that each cell of one head carries to the next scoring, (n,)."""
        return np.zeros(len(head.positions))

    def keep(self, head: Head, protection: Protection, budget: int | None = None) -> Indices:
        """Return the `budget` cells to keep, ascending by position; None = `head.budget`, which scores use in any case.

        Raises BudgetError, NativeError.
        """
        budget = required_budget(head) if budget is None else budget
        return cells_to_keep(self.score(head), head.positions, budget, protection)

    def layer_budgets(self, n_layer: int, budget: int, n_protected: int, largest: int | None = None) -> list[int]:
        """Return cells per head by layer, `budget` on average, at least n_protected, at most `largest` (None = any).

        Raises BudgetError if the protected cells exceed the budget, ConfigError if the budget exceeds `largest`.
        """
        check_room(n_protected, budget)
        check_largest(largest, budget)
        return [budget] * n_layer

    def head_budgets(self, heads: Sequence[Head], protection: Protection, largest: int | None = None) -> list[int]:
        """Return budgets of heads that share their cells; no head gets more than `largest`, None = no limit.

        Raises ConfigError as layer_budgets, BudgetError, NativeError.
        """
        for head in heads:
            check_largest(largest, required_budget(head))
        return [required_budget(head) for head in heads]

    def sinks(self, default: int) -> int:
        """Return the number of protected first positions: the base's own if it has one, else `default`."""
        own: int | None = getattr(self.base, "n_sink", None)
        return default if own is None else own

    def recent(self, budget: int) -> int:
        """Return the number of newest cells that the policy itself protects, given the budget in cells."""
        return 0

    def n_rows(self, block: int) -> int:
        """Return the rows of queries that the policy reads, given the block; 0 = none."""
        return 0

    def scratch_bytes(self, n_cells: int, n_head_kv: int, n_head: int, head_dim_k: int, head_dim_v: int) -> int:
        """Return the most bytes that scoring a layer needs beyond edgekv's own, with n_cells a head, for the plan."""
        base = self.base
        return 0 if base is self else base.scratch_bytes(n_cells, n_head_kv, n_head, head_dim_k, head_dim_v)

    def native_fields(self) -> dict[str, Any]:
        """Return the fields of the native `struct edgekv_policy`."""
        return {"base": self.native_base, "kernel": 1}

    @property
    def base(self) -> Policy:
        """The policy under all wrappers."""
        return self

    @property
    def spec(self) -> str:
        """Shortest spelling of this policy: options at their defaults are left out."""
        given = [
            f"{field.name}={_spelled(getattr(self, field.name))}"
            for field in self.options()
            if getattr(self, field.name) != field.default
        ]
        return f"{self.name}({', '.join(given)})" if given else self.name


@dataclass(frozen=True)
class Pooled(Policy):
    """A policy whose scores may be pooled over neighbouring cells."""

    kernel: int = option(1, "cells under the pooling kernel; 1 = no pooling", minimum=1, maximum=1023, odd=True)
    pool: str = option("avg", "how scores are pooled", choices=POOLS)

    def pooled(self, scores: Scores, positions: Positions) -> Scores:
        return pool_scores(scores, positions, self.kernel, self.pool)

    def native_fields(self) -> dict[str, Any]:
        return super().native_fields() | {"kernel": self.kernel, "pool": POOLS.index(self.pool)}


def check_options(name: str, given: Any, fields: Iterable[dataclasses.Field[Any]]) -> None:
    """Raise PolicyError for an option with an impossible value. name: the policy, as a spec spells it"""
    for field in fields:
        value = getattr(given, field.name)
        if problem := _problem(value, field):
            raise PolicyError(f"{name}({field.name}={value}): {problem}")


def required_budget(head: Head) -> int:
    """Return the head's budget. Raises ConfigError if it has none."""
    if head.budget is None:
        raise ConfigError("this policy needs the budget; give budget= in cells per head")
    return head.budget


def common_budget(heads: Sequence[Head]) -> int:
    """Return the budget of heads that share their cells. Raises ConfigError if they have none, or different ones."""
    budgets = {required_budget(head) for head in heads}
    if len(budgets) != 1:
        raise ConfigError(f"heads that share cells have the budgets {sorted(budgets)}; give one, the same for all")
    return budgets.pop()


def _spelled(value: Any) -> Any:
    """Return an option's value as a spec spells it."""
    return ("off", "on")[value] if isinstance(value, bool) else value


def _problem(value: Any, field: dataclasses.Field[Any]) -> str | None:
    """Return what is wrong with an option's value, or None."""
    limits = field.metadata
    if value is None and field.default is None:
        return None
    if limits["choices"]:
        return None if value in limits["choices"] else f"one of {', '.join(limits['choices'])} is possible"
    if str(field.type) == "bool":
        return None if isinstance(value, bool) else "on or off is possible"
    whole = "int" in str(field.type)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return "a whole number is needed" if whole else "a number is needed"
    low, high = limits["minimum"], limits["maximum"]
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        return f"at least {low} is needed" if high is None else f"a value in [{low}, {high}] is needed"
    return "an odd number is needed" if limits["odd"] and value % 2 == 0 else None
