"""Change of the attention output if a cell were evicted (CAOTE, arXiv:2504.14051)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from edgekv.errors import ConfigError

from .head import Head
from .types import Floats, Scores
from .wrappers import Wrapper

EPSILON = 1e-6  # floor of 1 - h


@dataclass(frozen=True)
class Caote(Wrapper):
    """Weigh a score by how far the attention output moves when the cell is evicted.

    c[j] = h[j] / (1 - h[j]) * norm2(X - V[j]),  h = score / sum(score),  X = sum_j h[j] V[j]        (eq. 20 to 22)

    For the attention weights of one query this is exactly how far the output moves when one cell is evicted (Theorem
    3.2). Cells are ranked once, however many must go, as in the paper. Scores that may be negative
    (`keydiff`, `l2norm`) become weights by a softmax over the head's cells.

    For a cell that holds nearly all the weight, X - V and 1 - h are mostly rounding error. Its score is then calculated
    as in the theorem, norm2(V[j] - X without j). If the other cells have no weight at all, they count equally.
    """

    name = "caote"
    paper = "CAOTE, arXiv:2504.14051"
    summary = "weigh a score by how far the attention output moves without the cell"
    wrapper_reads = frozenset({"values"})
    native_weigh: ClassVar[int] = 1

    def score(self, head: Head) -> Scores:
        return self._errors(self.weighed(head), head)

    @np.errstate(invalid="ignore", over="ignore")
    def _errors(self, weights: Scores, head: Head) -> Scores:
        if head.values is None:
            raise ConfigError(f"{self.name} reads values; give values= (n_head_kv, n, d_v)")
        total = weights.sum()
        share = weights / total if total != 0 else np.zeros_like(weights)
        return self._changes(share, head.values.astype(np.float64))

    def _changes(self, share: Scores, values: Floats) -> Scores:
        """h (n,), V (n, d_v) -> c (n,)."""
        changes = _changes_from(share @ values, share, values)
        for heavy in np.flatnonzero(share > 1.0 - EPSILON) if len(share) > 1 else ():
            others, rest = np.delete(values, heavy, axis=0), np.delete(share, heavy)
            without = np.average(others, axis=0, weights=rest if rest.any() else None)
            changes[heavy] = np.linalg.norm(values[heavy] - without)
        return changes

    def native_fields(self) -> dict[str, Any]:
        return super().native_fields() | {"weigh": self.native_weigh}


@dataclass(frozen=True)
class FastCaote(Caote):
    """CAOTE with the mean of the values in place of the attention output: X = mean_j V[j] (eq. 23)."""

    name = "fastcaote"
    summary = "caote with the mean of the values in place of the attention output"
    native_weigh = 2

    def _changes(self, share: Scores, values: Floats) -> Scores:
        return _changes_from(values.mean(axis=0), share, values) if len(values) else share


def _changes_from(output: Floats, share: Scores, values: Floats) -> Scores:
    """h / (1 - h) * norm2(X - V): X (d_v,), h (n,), V (n, d_v) -> (n,)."""
    return np.asarray(share / np.maximum(1.0 - share, EPSILON) * np.linalg.norm(output - values, axis=1))
