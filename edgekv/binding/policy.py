"""A policy in the form that the native library takes. The library calls custom scorers in Python."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from edgekv.policies import Policy
from edgekv.policies.custom.scorer import Custom, Scorer

from . import library, structs
from .callback import Callback

READS = {"keys": 1, "values": 2, "queries": 4, "positions": 8}  # enum edgekv_reads


class NativePolicy:
    """`struct edgekv_policy` of a policy, in `fields`. It must live while the library uses them."""

    def __init__(self, policy: Policy) -> None:
        self.fields = structs.Policy(**policy.native_fields())
        self._scores: Callback | None = None
        base = policy.base
        if isinstance(base, Custom):
            self._scorer: Scorer = base.scorer
            reads = sum(READS[name] for name in self._scorer.reads)
            self._scores = Callback(structs.ScoreLayer, self._score, failed=1)
            self._struct = structs.Scorer(self._scores.native, None, reads, self._scorer.n_rows)
            self.fields.scorer = c.addressof(self._struct)

    def call(self, name: str, *arguments: Any) -> None:
        """`library.call`; if a custom scorer made it fail, raises what the scorer raised."""
        with self._scores or nullcontext():
            library.call(name, *arguments)

    def _score(self, _user_data: int | None, view: Any, scores: int) -> int:
        """Score heads of a layer for the library."""
        arrays = _arrays(view.contents, self._scorer.reads)
        result = self._scorer(**arrays, first_head=view.contents.first_head_kv)
        c.memmove(scores, result.ctypes.data, result.nbytes)
        return 0


def _arrays(view: Any, reads: frozenset[str]) -> dict[str, np.ndarray]:
    """Return the arrays of a `struct edgekv_layer_view` that a scorer reads, and its sinks, without copying them."""
    shapes = {
        "keys": (view.n_head_kv, view.n, view.head_dim_k),
        "values": (view.n_head_kv, view.n, view.head_dim_v),
        "queries": (view.n_head, view.n_rows, view.head_dim_k),
        "positions": (view.n_head_kv, view.n),
        "query_positions": (view.n_rows,),
        "sinks": (view.n_head,),
    }
    kinds = {"positions": c.c_int32, "query_positions": c.c_int32}
    arrays = {}
    for name in {*reads, "positions"} | ({"query_positions", "sinks"} if "queries" in reads else set()):
        if getattr(view, name) is None:  # a model without sinks
            continue
        pointer = c.cast(getattr(view, name), c.POINTER(kinds.get(name, c.c_float)))
        arrays[name] = np.ctypeslib.as_array(pointer, shapes[name])
    return arrays


def cache_params(
    policies: Sequence[Policy], block: int, *, probed: Sequence[Policy] = (), n_probe: int = 0
) -> structs.CacheParams:
    """Return the parameters of a cache that these policies can compact.

    probed: policies that take their queries from probes, each of at most `n_probe` tokens
    """
    params = structs.CacheParams(n_probe_rows=n_probe)
    for group, by_probe in ((policies, False), (probed, True)):
        for policy in group:
            native = NativePolicy(policy)
            library.call("edgekv_cache_params_for", c.byref(native.fields), block, by_probe, c.byref(params))
    return params
