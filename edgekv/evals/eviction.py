"""Cells that a policy keeps in a whole model, on captured heads and by the reference formulas."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from edgekv.binding.structs import HEAD_LIMIT
from edgekv.policies import Head, Policy
from edgekv.policies.selection import Protection


def kept_cells(
    policy: Policy, layers: Sequence[Sequence[Head]], budget: int, protection: Protection
) -> list[list[npt.NDArray[np.intp]]]:
    """Return the kept cells of every head, indices ascending by position; `budget` on average, divided as in a runtime.

    layers: the KV heads of every layer, with what the policy reads
    Raises BudgetError if the protected cells exceed the budget, NativeError for a score that is not finite.
    """
    largest = HEAD_LIMIT * budget
    n_protected = int(protection.mask(layers[0][0].positions).sum())
    budgets = policy.layer_budgets(len(layers), budget, n_protected, largest)
    given = [[replace(head, budget=n) for head in heads] for heads, n in zip(layers, budgets, strict=True)]
    sharing = [list(itertools.chain(*given))] if policy.spread == "model" else given
    n_cells = iter([n for heads in sharing for n in policy.head_budgets(heads, protection, largest)])
    return [[policy.keep(head, protection, next(n_cells)) for head in heads] for heads in given]
