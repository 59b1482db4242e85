"""Scores, budgets and selections on plain arrays, without a model, by the native kernels or by the reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from edgekv.arguments import check_one_of
from edgekv.errors import ConfigError
from edgekv.policies.base import Policy
from edgekv.policies.critical import wo_norms
from edgekv.policies.custom.scorer import Custom
from edgekv.policies.head import Head
from edgekv.policies.registry import parse_policy
from edgekv.policies.selection import Protection

from . import kernels
from .layer import LayerArrays

Backend = Literal["native", "reference"]


def score(spec: str | Policy, *, backend: Backend = "native", **arrays: Any) -> npt.NDArray[np.float32]:
    """Return raw scores of every cell before any protection, (n_head_kv, n) float32; higher is kept.

    keys: (n_head_kv, n, d) post-RoPE; positions: (n_head_kv, n) true positions, in any order
    values: (n_head_kv, n, d_v), if the policy reads values
    queries: (n_head, W, d) post-RoPE, of the W rows fed last; n_head is a multiple of n_head_kv
    query_positions: (W,) ascending; None = the newest W positions of all cells
    accumulated: (n_head_kv, n) scores that earlier scorings left with the cells; None = 0
    w_o: (n_head, d_v, n_embd) output projection, for `critical`
    budget: cells per head
    tokens_seen: tokens seen when the last row was fed; None = its position + 1
    scale: of Q K^T; None = 1/sqrt(d)
    softcap: of the model's attention; 0 = none
    sinks: (n_head,) logits of learnt sinks, which take attention and have no value; None = none
    layer: number of the layer; only seeded policies read it

    Keys and values may be float16 or float32; other types are converted to float32.
    Raises PolicyError for a spec that is not possible, and ConfigError for shapes that do not match or a missing array
    that the policy reads.
    """
    policy = parse_policy(spec)
    use_native = _is_native(policy, backend)
    layer = LayerArrays.checked(policy, **arrays)
    scores = np.empty(layer.positions.shape, dtype=np.float32)
    for head, row in zip(_split(layer, use_native), scores, strict=True):
        row[:] = kernels.score(policy, head) if use_native else policy.score(head)
    return scores


def budgets(spec: str | Policy, **arguments: Any) -> list[int]:
    """Return how many cells `select` keeps in each head: `budget` on average, or all that a head holds.

    Arguments and errors as for `select`. The arrays are of one layer, so `pyramid` has nothing to divide;
    `Policy.layer_budgets` returns how many cells it gives every layer.
    """
    return [len(kept) for kept in select(spec, **arguments)]


def select(
    spec: str | Policy,
    *,
    budget: int,
    n_sink: int = 0,
    recent: int = 0,
    pinned: Sequence[tuple[int, int]] = (),
    backend: Backend = "native",
    **arrays: Any,
) -> list[npt.NDArray[np.intp]]:
    """Return the cells that each head keeps: one array of indices for each head, ascending by position.

    Arguments as for `score`, and the protected cells: positions below `n_sink`, the newest `recent` cells, and `pinned`
    ranges [p0, p1). A policy may protect more (snapkv protects its window). `budgets` returns how many each head keeps.
    Raises BudgetError if the protected cells alone exceed the budget, and NativeError for a score that is not finite.
    """
    policy = parse_policy(spec)
    use_native = _is_native(policy, backend)
    layer = LayerArrays.checked(policy, budget=budget, **arrays)
    _check_protection(n_sink, recent, pinned)
    protection = Protection(policy.sinks(n_sink), max(recent, policy.recent(budget)), tuple(pinned))
    heads = list(_split(layer, use_native))
    divide = partial(kernels.head_budgets, policy) if use_native else policy.head_budgets
    keep = partial(kernels.keep, policy) if use_native else policy.keep
    return [keep(head, protection, cells) for head, cells in zip(heads, divide(heads, protection), strict=True)]


def _split(layer: LayerArrays, use_native: bool) -> Iterator[Head]:
    return layer.split(kernels.wo_norms if use_native else wo_norms)


def _is_native(policy: Policy, backend: str) -> bool:
    check_one_of("backend", backend, get_args(Backend))
    return backend == "native" and not isinstance(policy.base, Custom)


def _check_protection(n_sink: int, recent: int, pinned: Sequence[tuple[int, int]]) -> None:
    """Refuse numbers that the native struct would wrap, and ranges that end before they begin."""
    for name, value in (("n_sink", n_sink), ("recent", recent)):
        if not 0 <= value < 1 << 32:
            raise ConfigError(f"{name}={value} is not possible; give a whole number in [0, 2**32)")
    for p0, p1 in pinned:
        if not -(1 << 31) <= p0 <= p1 < 1 << 31:
            raise ConfigError(f"pinned range [{p0}, {p1}) is not possible; give p0 <= p1, both 32-bit positions")
