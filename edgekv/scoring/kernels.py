"""Native kernels on the arrays of a head, without a model."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekv.binding import library, structs
from edgekv.policies.base import Policy, required_budget
from edgekv.policies.head import Head
from edgekv.policies.selection import Protection
from edgekv.policies.types import Indices

TYPES = {np.dtype(np.float32): structs.F32, np.dtype(np.float16): structs.F16}
NO_LIMIT = 2**32 - 1


def native_rows(data: npt.NDArray[np.generic], kind: int, dim: int, rotation: int = 0) -> structs.Rows:
    """Return `struct edgekv_rows` over a contiguous array of n rows of ggml type `kind`."""
    stride = data.strides[0] if len(data) else 0
    return structs.Rows(kind, data.ctypes.data, len(data), stride, dim, rotation)


def numbers_of(stored: npt.NDArray[np.uint8], described: structs.Rows) -> npt.NDArray[np.floating]:
    """Return copies of a cache's rows, (n, row bytes), as numbers, (n, head_dim): float16, or float32 of other types.

    Quantised caches rotate every row by the same orthogonal matrix, which is left in: no distance, angle or volume
    changes with it.

    described: their format, as `HeldCells.row_format` tells it
    """
    if described.type == structs.F16:
        return stored.view(np.float16)
    numbers = np.empty((len(stored), described.dim), np.float32)
    rows = native_rows(stored, described.type, described.dim, described.rotation)
    library.call("edgekv_rows_convert", c.byref(rows), structs.F32, rows.rotation, numbers.ctypes.data, numbers.nbytes)
    return numbers


def native_head(head: Head) -> tuple[structs.Cells, structs.Queries | None]:
    """Return `struct edgekv_cells` and `struct edgekv_queries` over the arrays of a head, which they keep alive."""
    keys = native_rows(head.keys, TYPES[head.keys.dtype], head.keys.shape[1])
    values = None
    if head.values is not None:
        values = native_rows(head.values, TYPES[head.values.dtype], head.values.shape[1])
    cells = structs.Cells.of(keys, values, head.positions, head.accumulated, head.wo_norm, head.layer, head.head)
    if head.queries is None:
        return cells, None
    queries, positions = head.rows()
    last = int(positions[-1]) + 1 if head.tokens_seen is None and len(positions) else head.tokens_seen or 0
    return cells, structs.Queries.of(queries, positions, float(head.attention_scale), head.softcap, last, head.sinks)


def wo_norms(values: npt.NDArray[np.floating], w_o: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """norm1(V W_O) of values (n, d_v) and w_o (G, d_v, n_embd) -> (n,)."""
    columns = np.ascontiguousarray(w_o.reshape(-1, w_o.shape[2]).T)  # a model's W_O has a row for every output
    norms = np.empty(len(values), dtype=np.float32)
    rows = native_rows(values, TYPES[values.dtype], values.shape[1])
    outputs = native_rows(columns, structs.F32, columns.shape[1])
    library.call("edgekv_wo_norm", c.byref(rows), c.byref(outputs), 0, len(w_o), norms.ctypes.data)
    return norms


def score(policy: Policy, head: Head) -> npt.NDArray[np.float32]:
    """Return the scores (n,), as `Policy.score`."""
    return _score(policy.native_fields(), head)


def head_budgets(policy: Policy, heads: Sequence[Head], protection: Protection) -> list[int]:
    """Return the cells of each head, as `Policy.head_budgets` without a limit."""
    if not policy.shares:
        return policy.head_budgets(heads, protection)
    fields = policy.native_fields()
    weights = [_score(fields | {"weigh": 0, "critical": 0}, head) for head in heads]
    scored = [structs.Scored.of(scores, head.positions) for scores, head in zip(weights, heads, strict=True)]
    budgets = np.empty(len(heads), dtype=np.uint32)
    library.call(
        "edgekv_allot",
        c.byref(structs.Policy(**fields)),
        (structs.Scored * len(heads))(*scored),
        len(heads),
        c.byref(_native_protection(protection)),
        required_budget(heads[0]),
        NO_LIMIT,
        budgets.ctypes.data,
    )
    return [int(budget) for budget in budgets]


def keep(policy: Policy, head: Head, protection: Protection, budget: int) -> Indices:
    """Return the `budget` cells that stay, ascending by position, as `Policy.keep`."""
    cells, queries = native_head(head)
    kept = np.empty(min(budget, len(head.positions)), dtype=np.uint32)
    n_kept = c.c_size_t()
    library.call(
        "edgekv_choose",
        c.byref(structs.Policy(**policy.native_fields())),
        c.byref(cells),
        None if queries is None else c.byref(queries),
        c.byref(_native_protection(protection)),
        required_budget(head),
        budget,
        kept.ctypes.data,
        c.byref(n_kept),
    )
    return kept[: n_kept.value].astype(np.intp)


def _score(fields: dict[str, Any], head: Head) -> npt.NDArray[np.float32]:
    cells, queries = native_head(head)
    scores = np.empty(len(head.positions), dtype=np.float32)
    pointer = None if queries is None else c.byref(queries)
    policy = structs.Policy(**fields)
    library.call("edgekv_score", c.byref(policy), c.byref(cells), pointer, head.budget or 0, scores.ctypes.data)
    return scores


def _native_protection(protection: Protection) -> structs.Protection:
    return structs.Protection.of(protection.n_sink, protection.recent, protection.pinned)
