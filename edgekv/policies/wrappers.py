"""Wrappers: policies over another policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgekv.errors import PolicyError

from .base import Policy
from .head import Head
from .selection import Protection
from .types import Indices, Scores


@dataclass(frozen=True)
class Wrapper(Policy):
    """A policy that computes its scores from another policy's.

    after: names of the wrappers that it may wrap
    """

    inner: Policy
    after: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.inner, Wrapper) and self.inner.name not in self.after:
            allowed = f"a base or {', '.join(sorted(self.after))}" if self.after else "a base"
            raise PolicyError(f"{self.name} goes over {allowed}, not over {self.inner.name}")
        if self.name in (wrapper.name for wrapper in _wrappers(self.inner)):
            raise PolicyError(f"{self.name} stands twice in {self.spec}; give it once")

    @property
    def base(self) -> Policy:
        return self.inner.base

    @property
    def reads(self) -> frozenset[str]:  # type: ignore[override]
        return self.inner.reads | self.wrapper_reads

    @property
    def carries(self) -> bool:  # type: ignore[override]
        return self.inner.carries

    wrapper_reads: ClassVar[frozenset[str]] = frozenset()

    @property
    def shares(self) -> bool:  # type: ignore[override]
        return self.inner.shares

    def weighed(self, head: Head) -> Scores:
        """The inner scores, made non-negative."""
        return weights_of(self.inner, head)

    def accumulate(self, head: Head) -> Scores:
        return self.inner.accumulate(head)

    def recent(self, budget: int) -> int:
        return self.inner.recent(budget)

    def n_rows(self, block: int) -> int:
        return self.inner.n_rows(block)

    def layer_budgets(self, n_layer: int, budget: int, n_protected: int, largest: int | None = None) -> list[int]:
        return self.inner.layer_budgets(n_layer, budget, n_protected, largest)

    def head_budgets(self, heads: Sequence[Head], protection: Protection, largest: int | None = None) -> list[int]:
        return self.inner.head_budgets(heads, protection, largest)

    def native_fields(self) -> dict[str, Any]:
        fields = self.inner.native_fields()
        return fields if self.inner.weights else fields | {"softmax": 1}

    @property
    def spec(self) -> str:
        return f"{self.inner.spec}+{super().spec}"


class Division(Wrapper):
    """A wrapper that divides cells over layers or heads; the wrapped policy scores and chooses."""

    @property
    def weights(self) -> bool:  # type: ignore[override]
        return self.inner.weights

    def score(self, head: Head) -> Scores:
        return self.inner.score(head)

    def keep(self, head: Head, protection: Protection, budget: int | None = None) -> Indices:
        return self.inner.keep(head, protection, budget)


def weights_of(policy: Policy, head: Head) -> Scores:
    """Return a policy's scores (n,); if they may be negative, their softmax over the head's cells."""
    scores = policy.score(head)
    if policy.weights:
        return scores
    if not np.isfinite(scores).all():  # the softmax of -inf would be a silent 0
        return np.full_like(scores, np.nan)
    weights = np.exp(scores - scores.max(initial=-np.inf))
    return np.asarray(weights / weights.sum())


def _wrappers(policy: Policy) -> Iterator[Wrapper]:
    """Yield the wrappers from the outermost inwards."""
    while isinstance(policy, Wrapper):
        yield policy
        policy = policy.inner
