"""What a policy is: a frozen set of options and a formula that scores the cells of one head."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from edgekv.errors import PolicyError

from ._arrays import Cells, Keys, Scores
from .pooling import pool_scores

POOLS = ("avg", "max")


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    odd: bool = False,
) -> Any:
    """A field of a policy: its default, one line of help, and the values it may have."""
    limits = {"help": help, "choices": tuple(choices), "minimum": minimum, "maximum": maximum, "odd": odd}
    return dataclasses.field(default=default, metadata=limits)


@dataclass(frozen=True)
class Policy:
    """Base of all policies. A subclass names itself and its paper, declares options, and scores.

    Raises PolicyError when an option has a value it may not have.
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    native_base: ClassVar[int]  # enum edgekv_base

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            problem = _problem(getattr(self, field.name), field)
            if problem:
                raise PolicyError(f"{self.name}({field.name}={getattr(self, field.name)}): {problem}")

    def score(self, keys: Keys, positions: Cells, *, layer: int = 0, head: int = 0) -> Scores:
        """The float64 reference: keys (n, d) post-RoPE, positions (n,) -> scores (n,); higher is kept."""
        raise NotImplementedError

    def recent(self, budget: int) -> int:
        """Newest cells that the policy itself protects, given the budget in cells."""
        return 0

    def native_fields(self) -> dict[str, int]:
        """The fields of the native `struct edgekv_policy`."""
        return {"base": self.native_base, "kernel": 1}

    @property
    def spec(self) -> str:
        """The shortest spelling that means this policy: options at their defaults are left out."""
        given = [
            f"{field.name}={getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != field.default
        ]
        return f"{self.name}({', '.join(given)})" if given else self.name


@dataclass(frozen=True)
class Pooled(Policy):
    """A policy whose scores may be pooled over neighbouring cells."""

    kernel: int = option(1, "cells under the pooling kernel; 1 = no pooling", minimum=1, maximum=1023, odd=True)
    pool: str = option("avg", "how scores are pooled", choices=POOLS)

    def pooled(self, scores: Scores, positions: Cells) -> Scores:
        return pool_scores(scores, positions, self.kernel, self.pool)

    def native_fields(self) -> dict[str, int]:
        fields = {"kernel": self.kernel, "pool": POOLS.index(self.pool), "seed": getattr(self, "seed", 0)}
        return super().native_fields() | fields


def _problem(value: Any, field: dataclasses.Field[Any]) -> str | None:
    """What is wrong with an option's value, or None."""
    limits = field.metadata
    if value is None and field.default is None:
        return None
    if limits["choices"]:
        return None if value in limits["choices"] else f"one of {', '.join(limits['choices'])} is possible"
    whole = "int" in str(field.type)
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
        return "a whole number is needed" if whole else "a number is needed"
    low, high = limits["minimum"], limits["maximum"]
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        return f"at least {low} is needed" if high is None else f"a value in [{low}, {high}] is needed"
    return "an odd number is needed" if limits["odd"] and value % 2 == 0 else None
