"""Distance by which eviction moves the attention output of each head (CriticalKV, section 4.6; Ada-KV, figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import edgekv
from edgekv.binding.structs import HEAD_LIMIT
from edgekv.errors import ConfigError
from edgekv.evals.setting import Setting
from edgekv.evals.tokens import begin
from edgekv.policies import Head, Policy, parse_policy
from edgekv.policies.selection import Protection

from .captures import check_base
from .full_read import N_QUERIES, FullRead
from .outputs import Cells


def capture_setting(n_tokens: int, *, model: str | None = None, block: int = 128) -> Setting:
    """Return the setting that reads n_tokens for `perturbation`: no eviction, and the queries of a whole block."""
    return Setting(model=model, policy="h2o", budget=n_tokens, block=block, reposition="never")


def perturbation(runtime: edgekv.Runtime, tokens: Sequence[int], policy: str, budgets: Sequence[int]) -> dict[str, Any]:
    """The loss of a policy when it evicts to each of the budgets, in one eviction from the same cache.

    The runtime, of `capture_setting`, reads all whole blocks of the tokens. Before the last block the policy chooses.
    The first N_QUERIES of the last block then attend to the chosen cells and to the cells of their own block. A loss is
    norm1(y - y_hat) / norm1(y), both means over queries: y is the output after W_O with all cells, y_hat the output
    with the chosen ones. Losses of earlier layers do not reach a layer.

    n_cells: cells that each head holds before it evicts
    budgets: as given
    heads: (budgets, n_layer, n_head_kv), y of the query heads of one KV head together
    layers: (budgets, n_layer), y of all heads together
    Raises ConfigError for too few tokens and for a runtime or a policy that this cannot be measured with, InputError as
    `begin`, BudgetError for a budget that does not hold the policy's protected cells.
    """
    return losses(read_full(runtime, tokens), policy, budgets)


def read_full(runtime: edgekv.Runtime, tokens: Sequence[int]) -> FullRead:
    """Read all whole blocks of the tokens with a runtime of `capture_setting`. Raises as `perturbation` does."""
    n_tokens = len(tokens) - len(tokens) % runtime.options.block
    _check_reading(runtime, n_tokens)
    begin(runtime, n_tokens)
    return FullRead(runtime, tokens[:n_tokens])


def losses(text: FullRead, policy: str, budgets: Sequence[int]) -> dict[str, Any]:
    """Return the result of `perturbation` for a text that was read before."""
    chooser, options = parse_policy(policy), text.options
    _check_policy(chooser, options.block)
    heads, layers = text.choices(chooser), text.layers
    lost = []
    for budget in budgets:
        protection = Protection(
            chooser.sinks(options.n_sink), max(options.recent_cells(budget), chooser.recent(budget))
        )
        kept = kept_cells(chooser, heads, budget, protection)
        lost.append([layer.change(cells) for layer, cells in zip(layers, kept, strict=True)])
    whole = [layer.norms for layer in layers]
    return {
        "n_cells": text.n_cells,
        "budgets": list(budgets),
        "heads": [[(a.heads / b.heads).tolist() for a, b in zip(of, whole, strict=True)] for of in lost],
        "layers": [[a.layer / b.layer for a, b in zip(of, whole, strict=True)] for of in lost],
    }


def kept_cells(
    policy: Policy, layers: Sequence[Sequence[Head]], budget: int, protection: Protection
) -> list[list[Cells]]:
    """Return the kept cells of every head, indices ascending by position; `budget` on average, divided as in a runtime.

    layers: the KV heads of every layer, with what the policy reads
    Raises BudgetError if the protected cells exceed the budget, NativeError for a score that is not finite.
    """
    largest = HEAD_LIMIT * budget
    n_protected = int(protection.mask(layers[0][0].positions).sum())
    budgets = policy.layer_budgets(len(layers), budget, n_protected, largest)
    given = [[replace(head, budget=n) for head in heads] for heads, n in zip(layers, budgets, strict=True)]
    n_cells = iter([n for heads in given for n in policy.head_budgets(heads, protection, largest)])
    return [[policy.keep(head, protection, next(n_cells)) for head in heads] for heads in given]


def _check_reading(runtime: edgekv.Runtime, n_tokens: int) -> None:
    """Refuse too few tokens, and a runtime that does not hold their cells or a block's queries."""
    block, budget = runtime.options.block, runtime.block_loop.budget
    if block < N_QUERIES or n_tokens < 2 * block:
        raise ConfigError(
            f"{n_tokens} tokens in blocks of {block} are too few; give two blocks of at least {N_QUERIES} tokens"
        )
    if runtime.options.parsed_policy.n_rows(block) < block or budget < n_tokens:
        raise ConfigError(
            f"{n_tokens} tokens are to be read with nothing evicted and a block's queries kept, but the runtime has "
            f"policy={runtime.options.parsed_policy.spec} and budget={budget}; open it with capture_setting"
        )


def _check_policy(policy: Policy, block: int) -> None:
    """Refuse a policy whose choices depend on more than the cells, as they are stored, and the queries of a block."""
    check_base(policy)
    if policy.carries and "budget" in policy.reads:
        raise ConfigError(
            f"what {policy.spec} carries depends on the budget, so that it cannot evict to several from one cache; "
            "choose a policy whose scores do not"
        )
    if policy.n_rows(block) > block:
        raise ConfigError(
            f"{policy.spec} looks at {policy.n_rows(block)} queries, but a block has {block}; read larger blocks"
        )
