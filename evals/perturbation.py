"""How far evicting cells moves the attention output, head by head (CriticalKV, section 4.6; Ada-KV, figure 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import edgekv
from edgekv.errors import ConfigError
from edgekv.policies import Policy, parse_policy
from edgekv.policies.select import Protection

from .captures import Reader, by_layer, output_projections
from .eviction import kept_cells
from .outputs import Layer
from .setting import Setting
from .tokens import begin

N_QUERIES = 32


def capture_setting(n_tokens: int, *, model: str | None = None, block: int = 128) -> Setting:
    """The setting that reads n_tokens for `perturbation`: it evicts nothing, and keeps the queries of a whole block."""
    return Setting(model=model, policy="h2o", budget=n_tokens, block=block, reposition="never")


def perturbation(runtime: edgekv.Runtime, tokens: Sequence[int], policy: str, budgets: Sequence[int]) -> dict[str, Any]:
    """The loss of a policy when it evicts to each of the budgets, in one eviction from the same cache.

    The runtime, of `capture_setting`, reads all whole blocks of the tokens. Before the last block the policy chooses.
    The first N_QUERIES of the last block then attend to the chosen cells and to the cells of their own block. A loss is
    norm1(y - y_hat) / norm1(y), both means over queries: y is the output after W_O with all cells, y_hat the output
    with the chosen ones. The loss of a layer is its own: what layers before it lose is not passed on.

    n_cells: cells that each head holds before it evicts
    budgets: as given
    heads: (budgets, n_layer, n_head_kv), y of the query heads of one KV head together
    layers: (budgets, n_layer), y of all heads together
    Raises ConfigError for too few tokens and for a runtime or a policy that this cannot be measured with, InputError as
    `begin`, BudgetError for a budget that does not hold the policy's protected cells.
    """
    chooser, options = parse_policy(policy), runtime.options
    n_tokens = len(tokens) - len(tokens) % options.block
    _check(runtime, chooser, n_tokens)
    begin(runtime, n_tokens)
    reader = Reader(runtime, chooser.base, output_projections(runtime))
    (captures,) = reader.read(tokens[:n_tokens], 1, N_QUERIES)
    n_cells = n_tokens - options.block
    full = [[capture.full for capture in layer] for layer in by_layer(captures)]
    if "wo_norm" in chooser.reads:
        full = [[reader.with_norms(head) for head in heads] for heads in full]
    then = [[capture.then for capture in layer] for layer in by_layer(captures)]
    layers = [Layer(heads, w_o, n_cells) for heads, w_o in zip(then, reader.w_o, strict=True)]
    lost = []
    for budget in budgets:
        protection = Protection(
            chooser.sinks(options.n_sink), max(options.recent_cells(budget), chooser.recent(budget))
        )
        kept = kept_cells(chooser, full, budget, protection)
        lost.append([layer.change(cells) for layer, cells in zip(layers, kept, strict=True)])
    whole = [layer.norms for layer in layers]
    return {
        "n_cells": n_cells,
        "budgets": list(budgets),
        "heads": [[(a.heads / b.heads).tolist() for a, b in zip(of, whole, strict=True)] for of in lost],
        "layers": [[a.layer / b.layer for a, b in zip(of, whole, strict=True)] for of in lost],
    }


def _check(runtime: edgekv.Runtime, policy: Policy, n_tokens: int) -> None:
    """Refuse what cannot be measured: too few tokens, cells or queries."""
    block, budget = runtime.options.block, runtime.controller.budget
    if block < N_QUERIES or n_tokens < 2 * block:
        raise ConfigError(
            f"{n_tokens} tokens in blocks of {block} are too few; give two blocks of at least {N_QUERIES} tokens"
        )
    if runtime.options.parsed_policy.n_rows(block) < block or budget < n_tokens:
        raise ConfigError(
            f"{n_tokens} tokens are to be read with nothing evicted and a block's queries kept, but the runtime has "
            f"policy={runtime.options.parsed_policy.spec} and budget={budget}; open it with capture_setting"
        )
    if policy.carries and "budget" in policy.reads:
        raise ConfigError(
            f"what {policy.spec} carries depends on the budget, so that it cannot evict to several from one cache; "
            "choose a policy whose scores do not"
        )
    if policy.n_rows(block) > block:
        raise ConfigError(
            f"{policy.spec} looks at {policy.n_rows(block)} queries, but a block has {block}; read larger blocks"
        )
