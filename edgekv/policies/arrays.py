"""Scores and selections on plain arrays, natively or by the reference: no model needed."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from edgekv import _native
from edgekv.errors import ConfigError

from .base import Policy
from .select import cells_to_keep
from .spec import parse_policy

Backend = Literal["native", "reference"]

_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}  # enum ggml_type


def score(
    spec: str | Policy,
    *,
    keys: npt.ArrayLike,
    positions: npt.ArrayLike,
    layer: int = 0,
    backend: Backend = "native",
) -> npt.NDArray[np.float32]:
    """Raw scores of every cell, before any protection; higher is kept.

    keys (n_head_kv, n, d) post-RoPE, float16 or float32 (others are converted to float32);
    positions (n_head_kv, n), true positions in any order -> (n_head_kv, n) float32.
    `layer` matters to seeded policies only. Raises PolicyError for the spec, ConfigError for the shapes.
    """
    policy = parse_policy(spec)
    _check_backend(backend)
    keys, positions = _checked(keys, positions)
    scores = np.empty(positions.shape, dtype=np.float32)
    for head in range(len(keys)):
        if backend == "reference":
            scores[head] = policy.score(keys[head].astype(np.float64), positions[head], layer=layer, head=head)
        else:
            _score_native(policy, keys[head], positions[head], layer, head, scores[head])
    return scores


def select(
    spec: str | Policy,
    *,
    keys: npt.ArrayLike,
    positions: npt.ArrayLike,
    budget: int,
    layer: int = 0,
    n_sink: int = 0,
    recent: int = 0,
    pinned: Sequence[tuple[int, int]] = (),
    backend: Backend = "native",
) -> list[npt.NDArray[np.intp]]:
    """The cells of each head that stay: one array of indices a head, ascending by position.

    Arguments as for `score`; `budget` in cells per head; protected cells as in `edgekv.policies.select.protected`.
    Raises BudgetError when the protected cells alone exceed the budget.
    """
    policy = parse_policy(spec)
    _check_backend(backend)
    if budget < 1:
        raise ConfigError(f"budget={budget} keeps nothing; give at least 1")
    keys, positions = _checked(keys, positions)
    n_sink = n_sink if getattr(policy, "n_sink", None) is None else policy.n_sink  # type: ignore[attr-defined]
    _check_protection(n_sink, recent, pinned)
    recent = max(recent, policy.recent(budget))
    if backend == "native":
        scores = score(policy, keys=keys, positions=positions, layer=layer)
        protection = _native.Protection.of(n_sink, recent, tuple(pinned))
        return [_select_native(scores[g], positions[g], budget, protection) for g in range(len(keys))]
    return [
        cells_to_keep(
            policy.score(keys[g].astype(np.float64), positions[g], layer=layer, head=g),
            positions[g],
            budget,
            n_sink=n_sink,
            recent=recent,
            pinned=pinned,
        )
        for g in range(len(keys))
    ]


def _check_backend(backend: str) -> None:
    possible = get_args(Backend)
    if backend not in possible:
        raise ConfigError(f"backend={backend!r} is unknown; possible: {', '.join(possible)}")


def _check_protection(n_sink: int, recent: int, pinned: Sequence[tuple[int, int]]) -> None:
    """Refuse numbers that the native struct would wrap, and ranges that end before they begin."""
    for name, value in (("n_sink", n_sink), ("recent", recent)):
        if not 0 <= value < 1 << 32:
            raise ConfigError(f"{name}={value} is not possible; give a whole number in [0, 2**32)")
    for p0, p1 in pinned:
        if not -(1 << 31) <= p0 <= p1 < 1 << 31:
            raise ConfigError(f"pinned range [{p0}, {p1}) is not possible; give p0 <= p1, both 32-bit positions")


def _checked(keys: npt.ArrayLike, positions: npt.ArrayLike) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.int32]]:
    keys = np.asarray(keys)
    if keys.dtype not in _TYPES:
        keys = keys.astype(np.float32)
    positions = np.ascontiguousarray(positions, dtype=np.int32)
    if keys.ndim != 3 or positions.shape != keys.shape[:2]:
        raise ConfigError(
            f"keys {keys.shape} and positions {positions.shape} do not match; "
            "give keys (n_head_kv, n, d) and positions (n_head_kv, n)"
        )
    return np.ascontiguousarray(keys), positions


def native_rows(data: npt.NDArray[np.generic], kind: int, dim: int, rotation: int = 0) -> _native.Rows:
    """`struct edgekv_rows` over a contiguous array of n rows of ggml type `kind`."""
    stride = data.strides[0] if len(data) else 0
    return _native.Rows(data.ctypes.data, kind, dim, len(data), stride, rotation, 0)


def _score_native(
    policy: Policy,
    keys: npt.NDArray[np.floating],
    positions: npt.NDArray[np.int32],
    layer: int,
    head: int,
    scores: npt.NDArray[np.float32],
) -> None:
    rows = native_rows(keys, _TYPES[keys.dtype], keys.shape[1])
    fields = _native.Policy(**policy.native_fields())
    _native.call("edgekv_score", c.byref(fields), c.byref(rows), positions.ctypes.data, layer, head, scores.ctypes.data)


def _select_native(
    scores: npt.NDArray[np.float32], positions: npt.NDArray[np.int32], budget: int, protection: _native.Protection
) -> npt.NDArray[np.intp]:
    kept = np.empty(min(budget, len(scores)), dtype=np.uint32)
    n_kept = c.c_size_t()
    _native.call(
        "edgekv_select",
        scores.ctypes.data,
        positions.ctypes.data,
        len(scores),
        budget,
        c.byref(protection),
        kept.ctypes.data,
        c.byref(n_kept),
    )
    return kept[: n_kept.value].astype(np.intp)
