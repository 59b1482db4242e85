"""Policies written only in Python, without a native kernel, as packages bring them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekv.errors import PolicyError
from edgekv.policies.base import Policy
from edgekv.policies.head import Head

from .scorer import MAX_ROWS, READS, Custom, Scorer


@dataclass(frozen=True)
class PythonPolicy(Custom):
    """A Policy that has no native kernel: its float64 reference scores each head. `PythonPolicy.of` makes one."""

    inner: Policy

    @classmethod
    def of(cls, policy: Policy) -> PythonPolicy:
        """Wrap a policy. Raises PolicyError if its scores need more than keys, values, queries and positions."""
        unknown = sorted(policy.reads - set(READS))
        needs = {
            "carried scores": policy.carries,
            "a choice of its own (keep)": type(policy).keep is not Policy.keep,
            "budgets of its own (head_budgets, layer_budgets)": type(policy).head_budgets is not Policy.head_budgets
            or type(policy).layer_budgets is not Policy.layer_budgets,
            "rows that depend on the block": policy.n_rows(1) != policy.n_rows(MAX_ROWS),
            "queries without rows (n_rows)": "queries" in policy.reads and policy.n_rows(1) < 1,
        } | dict.fromkeys(unknown, True)
        beyond = [what for what, needed in needs.items() if needed]
        if beyond:
            raise PolicyError(
                f"policy {policy.spec} needs {' and '.join(beyond)}, which policies outside edgekv cannot have; "
                f"possible: scores from {', '.join(READS)}"
            )

        def function(**arrays: Any) -> npt.NDArray[np.float32]:
            heads = [policy.score(head) for head in _heads(**arrays)]
            return np.asarray(heads, dtype=np.float32)

        scorer = Scorer(
            name=policy.spec,
            function=function,
            reads=frozenset({"keys", "positions"}) | policy.reads,
            places="queries" in policy.reads,
            heads=True,
            sinks="queries" in policy.reads,
            n_rows=policy.n_rows(1) if "queries" in policy.reads else 0,
            weights=policy.weights,
            summary=policy.summary,
        )
        return cls(scorer, policy)

    @property
    def n_sink(self) -> int | None:
        """Protected first positions, if the policy names its own number."""
        return getattr(self.inner, "n_sink", None)

    def recent(self, budget: int) -> int:
        return self.inner.recent(budget)

    def scratch_bytes(self, n_cells: int, n_head_kv: int, n_head: int, head_dim_k: int, head_dim_v: int) -> int:
        """The policy's own bound, or twice a scorer's for one head: references calculate in float64, head by head."""
        if type(self.inner).scratch_bytes is not Policy.scratch_bytes:
            return self.inner.scratch_bytes(n_cells, n_head_kv, n_head, head_dim_k, head_dim_v)
        one_head = super().scratch_bytes(n_cells, 1, n_head // n_head_kv, head_dim_k, head_dim_v)
        return 2 * one_head + 3 * 4 * n_head_kv * n_cells  # the heads' scores in float64 and float32


def _heads(
    keys: npt.NDArray[np.float32],
    positions: npt.NDArray[np.int32],
    values: npt.NDArray[np.float32] | None = None,
    queries: npt.NDArray[np.float32] | None = None,
    query_positions: npt.NDArray[np.int32] | None = None,
    sinks: npt.NDArray[np.float32] | None = None,
    first_head: int = 0,
) -> list[Head]:
    """Return a `Head` for each KV head, counted from `first_head`."""
    n_head_kv = len(keys)
    grouped = None if queries is None else queries.reshape(n_head_kv, -1, *queries.shape[1:])
    return [
        Head(
            keys=keys[g],
            positions=positions[g],
            values=None if values is None else values[g],
            queries=None if grouped is None else grouped[g],
            query_positions=query_positions,
            sinks=None if sinks is None else sinks.reshape(n_head_kv, -1)[g],
            head=first_head + g,
        )
        for g in range(n_head_kv)
    ]
