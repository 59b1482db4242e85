"""The arrays of a layer from a caller: checked against one another, then cut into heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import numpy.typing as npt

from edgekv.errors import ConfigError
from edgekv.policies.base import Policy
from edgekv.policies.head import Head

from .kernels import TYPES


@dataclass(frozen=True, slots=True)
class LayerArrays:
    """The arrays of all heads, checked against one another."""

    keys: npt.NDArray[np.floating]
    positions: npt.NDArray[np.int32]
    values: npt.NDArray[np.floating] | None
    queries: npt.NDArray[np.floating] | None
    query_positions: npt.NDArray[np.int32] | None
    accumulated: npt.NDArray[np.float32] | None
    w_o: npt.NDArray[np.float32] | None
    sinks: npt.NDArray[np.float32] | None
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
        sinks: npt.ArrayLike | None = None,
        layer: int = 0,
    ) -> LayerArrays:
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
        sinks = None if sinks is None else np.ascontiguousarray(sinks, dtype=np.float32)
        _check_shape("sinks", sinks, (0 if queries is None else len(queries),))
        if sinks is not None and not np.isfinite(sinks).all():
            raise ConfigError("sinks must be finite; give sinks=None for a model without them")
        return cls(keys, positions, values, queries, rows, accumulated, w_o, sinks, single)

    def split(self, norms: Callable[[Any, Any], Any]) -> Iterator[Head]:
        """Yield head by head; `norms` computes norm1(V W_O) of values (n, d_v) and w_o (G, d_v, n_embd)."""
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
                sinks=None if self.sinks is None else self.sinks.reshape(n_head_kv, -1)[g],
                wo_norm=None if w_o is None or values is None else norms(values, w_o),
                head=g,
                **self.single,
            )


def _floats(array: npt.ArrayLike) -> npt.NDArray[np.floating]:
    array = np.asarray(array)
    return np.ascontiguousarray(array if array.dtype in TYPES else array.astype(np.float32))


def _whole(name: str, array: npt.ArrayLike) -> npt.NDArray[np.int32]:
    """Return whole numbers of 32 bits, and refuse others, which would be cut silently."""
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


def _check_single(budget: int | None, tokens_seen: int | None, scale: float | None, softcap: float, layer: int) -> None:
    """Refuse numbers that the native structs would wrap, and numbers that make every score senseless."""
    for name, count, low in (("budget", budget, 1), ("tokens_seen", tokens_seen, 1), ("layer", layer, 0)):
        if count is not None and not (isinstance(count, Integral) and low <= count < 1 << 31):
            raise ConfigError(f"{name}={count} is not possible; give a whole number in [{low}, 2**31)")
    if scale is not None and not 0 < scale < np.inf:
        raise ConfigError(f"scale={scale} is not possible; give a number above 0, or None for 1/sqrt(d)")
    if not 0 <= softcap < np.inf:
        raise ConfigError(f"softcap={softcap} is not possible; give a number above 0, or 0 for none")
