"""The attention output of a layer for some queries, and how far evicting cells moves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgekv.policies import Head
from edgekv.policies.attention import attention

Floats = npt.NDArray[np.floating[Any]]
Cells = npt.NDArray[np.intp]


class Norms(NamedTuple):
    """norm1 of outputs after W_O, mean over queries.

    heads: (n_head_kv,) of what the query heads of each KV head add up to
    layer: of the sum over all heads
    """

    heads: npt.NDArray[np.float64]
    layer: float


class Layer:
    """The outputs of a layer, y = sum over heads of A V W_O, with all cells, and with some of the first n evicted.

    heads: the KV heads with all cells and the queries that look at them; w_o: (n_head_kv, G, d_v, n_embd)
    """

    def __init__(self, heads: Sequence[Head], w_o: Floats, n: int) -> None:
        self._new = np.arange(n, len(heads[0].positions))
        self._weights = [attention(head) for head in heads]  # (G, W, n) each
        self._values = [np.asarray(head.values, dtype=np.float64) for head in heads]
        self._outputs = [weights @ values for weights, values in zip(self._weights, self._values, strict=True)]
        self._w_o = w_o.reshape(len(heads), -1, w_o.shape[-1])  # (n_head_kv, G * d_v, n_embd)
        self.norms = self._norms(self._outputs)

    def change(self, kept: Sequence[Cells]) -> Norms:
        """Return the norms of y - y_hat if every KV head keeps these cells and the new ones after the first n."""
        changes = []
        for cells, weights, values, output in zip(kept, self._weights, self._values, self._outputs, strict=True):
            left = np.concatenate([cells, self._new])
            share = weights[..., left]
            changes.append(output - share @ values[left] / share.sum(axis=2, keepdims=True))
        return self._norms(changes)

    def _norms(self, outputs: Sequence[Floats]) -> Norms:
        """Return the norms of outputs (G, W, d_v) of every KV head."""
        rows = [output.transpose(1, 0, 2).reshape(output.shape[1], -1) for output in outputs]
        projected = np.stack([own @ w_o for own, w_o in zip(rows, self._w_o, strict=True)])  # (n_head_kv, W, n_embd)
        heads = np.abs(projected).sum(axis=2).mean(axis=1)
        return Norms(heads, float(np.abs(projected.sum(axis=0)).sum(axis=1).mean()))
