"""Scores and selections on plain arrays, natively or by the reference: no model needed."""

from __future__ import annotations

import ctypes as c
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from edgekv import _native
from edgekv.errors import ConfigError

from .base import Policy
from .critical import wo_norms
from .custom import Custom
from .head import Head
from .select import Protection
from .spec import parse_policy

Backend = Literal["native", "reference"]

_TYPES = {np.dtype(np.float32): 0, np.dtype(np.float16): 1}  # enum ggml_type
F32 = 0


def score(spec: str | Policy, *, backend: Backend = "native", **arrays: Any) -> npt.NDArray[np.float32]:
    """Raw scores of every cell before any protection, (n_head_kv, n) float32; higher is kept.

    keys: (n_head_kv, n, d) post-RoPE; positions: (n_head_kv, n) true positions, in any order
    values: (n_head_kv, n, d_v), where the policy reads values
    queries: (n_head, W, d) post-RoPE, of the W rows fed last; n_head is a multiple of n_head_kv
    query_positions: (W,) ascending; None = the newest W positions of all cells
    accumulated: (n_head_kv, n) what earlier scorings left with the cells; None = nothing
    w_o: (n_head, d_v, n_embd) output projection, for `critical`
    budget: cells per head; tokens_seen: when the last row was fed, None = its position + 1
    scale: of Q K^T, None = 1/sqrt(d); softcap: of the model's attention, 0 = none
    layer: matters to seeded policies only

    Keys and values may be float16 or float32; others are converted to float32.
    Raises PolicyError for the spec, ConfigError for shapes that do not match and for arrays that the policy reads and
    that are not given.
    """
    policy = parse_policy(spec)
    use_native = _is_native(policy, backend)
    heads = _Arrays.checked(policy, **arrays)
    scores = np.empty(heads.positions.shape, dtype=np.float32)
    for head, row in zip(heads.split(_wo_norms_native if use_native else wo_norms), scores, strict=True):
        if use_native:
            _score_native(policy, head, row)
        else:
            row[:] = policy.score(head)
    return scores


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
    """The cells of each head that stay: one array of indices a head, ascending by position.

    Arguments as for `score`, and the protected cells: positions below `n_sink`, the newest `recent` cells, and `pinned`
    ranges [p0, p1). A policy's own protection (snapkv's window) is added.
    Raises BudgetError when the protected cells alone exceed the budget.
    """
    policy = parse_policy(spec)
    use_native = _is_native(policy, backend)
    heads = _Arrays.checked(policy, budget=budget, **arrays)
    _check_protection(n_sink, recent, pinned)
    protection = Protection(policy.sinks(n_sink), max(recent, policy.recent(budget)), tuple(pinned))
    if use_native:
        return [_keep_native(policy, head, protection) for head in heads.split(_wo_norms_native)]
    return [policy.keep(head, protection) for head in heads.split(wo_norms)]


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The arrays of all heads, checked against one another."""

    keys: npt.NDArray[np.floating]
    positions: npt.NDArray[np.int32]
    values: npt.NDArray[np.floating] | None
    queries: npt.NDArray[np.floating] | None
    query_positions: npt.NDArray[np.int32] | None
    accumulated: npt.NDArray[np.float32] | None
    w_o: npt.NDArray[np.float32] | None
    single: dict[str, Any]

    @classmethod
    def checked(
        cls,
        policy: Policy,
        *,
        keys: npt.ArrayLike,
        positions: npt.ArrayLike,
        values: npt.ArrayLike | None = None,
        queries: npt.ArrayLike | None = None,
        query_positions: npt.ArrayLike | None = None,
        accumulated: npt.ArrayLike | None = None,
        w_o: npt.ArrayLike | None = None,
        budget: int | None = None,
        tokens_seen: int | None = None,
        scale: float | None = None,
        softcap: float = 0.0,
        layer: int = 0,
    ) -> _Arrays:
        keys = _floats(keys)
        positions = _whole("positions", positions)
        if keys.ndim != 3 or positions.shape != keys.shape[:2]:
            raise ConfigError(
                f"keys {keys.shape} and positions {positions.shape} do not match; "
                "give keys (n_head_kv, n, d) and positions (n_head_kv, n)"
            )
        n_head_kv, n, d = keys.shape
        if n_head_kv == 0 or d == 0:
            raise ConfigError(f"keys {keys.shape} hold no head, or no element; give keys (n_head_kv, n, d)")
        values = None if values is None else _floats(values)
        _check_shape("values", values, (n_head_kv, n, None))
        queries = None if queries is None else np.ascontiguousarray(queries, dtype=np.float32)
        _check_shape("queries", queries, (None, None, d))
        accumulated = None if accumulated is None else np.ascontiguousarray(accumulated, dtype=np.float32)
        _check_shape("accumulated", accumulated, (n_head_kv, n))
        w_o = None if w_o is None else np.ascontiguousarray(w_o, dtype=np.float32)
        _check_shape("w_o", w_o, (None, None if values is None else values.shape[2], None))
        rows = None
        if queries is not None:
            rows = _row_positions(query_positions, queries.shape[1], positions)
        for name, array in (("queries", queries), ("w_o", w_o)):
            if array is not None and (array.shape[0] == 0 or array.shape[0] % n_head_kv):
                raise ConfigError(
                    f"{name} has {array.shape[0]} heads, which is no multiple of the {n_head_kv} KV heads"
                )
        if queries is not None and w_o is not None and len(queries) != len(w_o):
            raise ConfigError(f"queries have {len(queries)} heads and w_o {len(w_o)}; give both for n_head heads")
        given = {
            "queries": queries,
            "values": values,
            "budget": budget,
            "wo_norm": None if values is None else w_o,
        }
        spelt = {"wo_norm": "values= and w_o"}
        for name in sorted(policy.reads):
            if given[name] is None:
                raise ConfigError(f"{policy.spec} reads {name}; give {spelt.get(name, name)}=")
        _check_single(budget, tokens_seen, scale, softcap, layer)
        single = {"budget": budget, "tokens_seen": tokens_seen, "scale": scale, "softcap": softcap, "layer": layer}
        return cls(keys, positions, values, queries, rows, accumulated, w_o, single)

    def split(self, norms: Callable[[Any, Any], Any]) -> Iterator[Head]:
        """Head by head; `norms` makes norm1(V W_O) of values (n, d_v) and w_o (G, d_v, n_embd)."""
        n_head_kv = len(self.keys)
        for g in range(n_head_kv):
            values = None if self.values is None else self.values[g]
            w_o = None if self.w_o is None else self.w_o.reshape(n_head_kv, -1, *self.w_o.shape[1:])[g]
            queries = None if self.queries is None else self.queries.reshape(n_head_kv, -1, *self.queries.shape[1:])[g]
            yield Head(
                keys=self.keys[g],
                positions=self.positions[g],
                values=values,
                queries=queries,
                query_positions=self.query_positions,
                accumulated=None if self.accumulated is None else self.accumulated[g],
                wo_norm=None if w_o is None or values is None else norms(values, w_o),
                head=g,
                **self.single,
            )


def _floats(array: npt.ArrayLike) -> npt.NDArray[np.floating]:
    array = np.asarray(array)
    return np.ascontiguousarray(array if array.dtype in _TYPES else array.astype(np.float32))


def _whole(name: str, array: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """Whole numbers of 32 bits; others would be cut silently."""
    array = np.asarray(array)
    if array.size and (array.dtype.kind not in "iu" or array.min() < -(1 << 31) or array.max() >= 1 << 31):
        raise ConfigError(f"{name} must be whole numbers in [-2**31, 2**31); they are {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.int32)


def _check_shape(name: str, array: npt.NDArray[Any] | None, shape: tuple[int | None, ...]) -> None:
    if array is None:
        return
    fits = array.ndim == len(shape) and all(b is None or a == b for a, b in zip(array.shape, shape, strict=True))
    if not fits:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise ConfigError(f"{name} {array.shape} does not match the keys; give ({wanted})")


def _row_positions(
    query_positions: npt.ArrayLike | None, n_rows: int, positions: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    if n_rows == 0:
        raise ConfigError("queries hold no row; give queries (n_head, W, d) of at least one row")
    if query_positions is None:
        last = int(positions.max(initial=-1))
        return np.arange(last - n_rows + 1, last + 1, dtype=np.int32)
    rows = _whole("query_positions", query_positions)
    if rows.shape != (n_rows,) or (np.diff(rows) <= 0).any():
        raise ConfigError(f"query_positions {rows.shape} must hold {n_rows} ascending positions, one a row of queries")
    return rows


def _is_native(policy: Policy, backend: str) -> bool:
    possible = get_args(Backend)
    if backend not in possible:
        raise ConfigError(f"backend={backend!r} is unknown; possible: {', '.join(possible)}")
    return backend == "native" and not isinstance(policy.base, Custom)


def _check_single(budget: int | None, tokens_seen: int | None, scale: float | None, softcap: float, layer: int) -> None:
    """Refuse numbers that the native structs would wrap, and those that make every score senseless."""
    for name, count, low in (("budget", budget, 1), ("tokens_seen", tokens_seen, 1), ("layer", layer, 0)):
        if count is not None and not (isinstance(count, Integral) and low <= count < 1 << 31):
            raise ConfigError(f"{name}={count} is not possible; give a whole number in [{low}, 2**31)")
    if scale is not None and not 0 < scale < np.inf:
        raise ConfigError(f"scale={scale} is not possible; give a number above 0, or None for 1/sqrt(d)")
    if not 0 <= softcap < np.inf:
        raise ConfigError(f"softcap={softcap} is not possible; give a number above 0, or 0 for none")


def _check_protection(n_sink: int, recent: int, pinned: Sequence[tuple[int, int]]) -> None:
    """Refuse numbers that the native struct would wrap, and ranges that end before they begin."""
    for name, value in (("n_sink", n_sink), ("recent", recent)):
        if not 0 <= value < 1 << 32:
            raise ConfigError(f"{name}={value} is not possible; give a whole number in [0, 2**32)")
    for p0, p1 in pinned:
        if not -(1 << 31) <= p0 <= p1 < 1 << 31:
            raise ConfigError(f"pinned range [{p0}, {p1}) is not possible; give p0 <= p1, both 32-bit positions")


# ---- native ----


def native_rows(data: npt.NDArray[np.generic], kind: int, dim: int, rotation: int = 0) -> _native.Rows:
    """`struct edgekv_rows` over a contiguous array of n rows of ggml type `kind`."""
    stride = data.strides[0] if len(data) else 0
    return _native.Rows(data.ctypes.data, kind, dim, len(data), stride, rotation, 0)


def native_head(head: Head) -> tuple[_native.Cells, _native.Queries | None]:
    """`struct edgekv_cells` and `struct edgekv_queries` over the arrays of a head, which they keep alive."""
    keys = native_rows(head.keys, _TYPES[head.keys.dtype], head.keys.shape[1])
    values = None
    if head.values is not None:
        values = native_rows(head.values, _TYPES[head.values.dtype], head.values.shape[1])
    cells = _native.Cells.of(keys, values, head.positions, head.accumulated, head.wo_norm, head.layer, head.head)
    if head.queries is None:
        return cells, None
    queries, positions = head.rows()
    last = int(positions[-1]) + 1 if head.tokens_seen is None and len(positions) else head.tokens_seen or 0
    return cells, _native.Queries.of(queries, positions, float(head.attention_scale), head.softcap, last)


def _wo_norms_native(values: npt.NDArray[np.floating], w_o: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """norm1(V W_O) of values (n, d_v) and w_o (G, d_v, n_embd), natively -> (n,)."""
    columns = np.ascontiguousarray(w_o.reshape(-1, w_o.shape[2]).T)  # a model's W_O has a row for every output
    norms = np.empty(len(values), dtype=np.float32)
    rows = native_rows(values, _TYPES[values.dtype], values.shape[1])
    outputs = native_rows(columns, F32, columns.shape[1])
    _native.call("edgekv_wo_norm", c.byref(rows), c.byref(outputs), 0, len(w_o), norms.ctypes.data)
    return norms


def _score_native(policy: Policy, head: Head, scores: npt.NDArray[np.float32]) -> None:
    cells, queries = native_head(head)
    fields = _native.Policy(**policy.native_fields())
    pointer = None if queries is None else c.byref(queries)
    _native.call("edgekv_score", c.byref(fields), c.byref(cells), pointer, head.budget or 0, scores.ctypes.data)


def _keep_native(policy: Policy, head: Head, protection: Protection) -> npt.NDArray[np.intp]:
    cells, queries = native_head(head)
    fields = _native.Policy(**policy.native_fields())
    budget = head.budget or 0
    kept = np.empty(min(budget, len(head.positions)), dtype=np.uint32)
    n_kept = c.c_size_t()
    _native.call(
        "edgekv_choose",
        c.byref(fields),
        c.byref(cells),
        None if queries is None else c.byref(queries),
        c.byref(_native.Protection.of(protection.n_sink, protection.recent, protection.pinned)),
        budget,
        kept.ctypes.data,
        c.byref(n_kept),
    )
    return kept[: n_kept.value].astype(np.intp)
