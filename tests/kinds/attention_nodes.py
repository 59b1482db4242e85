"""Attention of llama.cpp's own graph, computed anew in float64 with cells of single heads masked.

Everything else of the graph is left to llama.cpp. So this says what any model makes of a cache from which any
(layer, head, token) triples are gone, whatever its other layers are: recurrent, windowed, shared, expert.

The result of each attention node is overwritten with

    out[t, h] = sum_j p_j v[j, g],  p_j = exp(s_j) / (exp(sink_h) + sum_j exp(s_j)),  s_j = c tanh(scale <q, k_j> / c)

over the cells j that llama.cpp's own mask and the visible triples allow; without a sink its term is 0, and without a
cap c s_j is the scaled product. Rows are read as they are stored, wherever they lie. Queries that meet quantised keys
are rounded to q8_0, as ggml's kernels do, unless they lie in the host's memory: there edgekv reads rows as floats.
"""

from __future__ import annotations

import ctypes as c
import re

import gguf
import numpy as np
from graph_nodes import converted, floats, overwrite, root, rows
from reference_quant import round_q8_0

from edgekv.binding import library

ATTENDING = "FLASH_ATTN_EXT"  # an attention node


class AttentionNodes:
    """Computes attention nodes anew.

    visible     (n_head_kv, n_tokens, n_tokens) bool by the model's layer: whether a head holds token j when t is fed
    positions   of the tokens that the graph is computed for; whoever feeds them sets it
    favourites  by layer, the cell that the last head of the last token attends to most
    queries     by layer, those of the tokens fed last, (n_head, n_tokens, d) of each layer that reads its rows
    """

    def __init__(self, visible):
        self.visible = visible
        self.positions = None
        self.favourites = {}
        self.queries = {}
        self._known = {}

    def attend(self, node):
        """Overwrite the result of an attention node."""
        q, k, v, mask = (node.src[i].contents for i in range(4))
        layer = int(re.fullmatch(r"cache_k_l(\d+)", root(k).name.decode())[1])
        scale, _, cap = np.array(node.op_params[:3], dtype=np.int32).view(np.float32).astype(np.float64)
        queries = floats(q)  # (n_head, n_tokens, d)
        self.queries.setdefault(layer, []).append(queries)
        keys, values = self._cells(k), self._cells(v)  # (n_head_kv, n_cells, d)
        by_edgekv = library.load().ggml_backend_buffer_is_host(c.c_void_p(root(k).buffer))
        if gguf.GGMLQuantizationType(k.type) != gguf.GGMLQuantizationType.F16 and not by_edgekv:
            queries = round_q8_0(queries)
        n_tokens, n_cells = queries.shape[1], keys.shape[1]
        allowed = np.isfinite(floats(mask)[0, :n_tokens])  # (n_tokens, n_cells)
        sinks = floats(node.src[4].contents).reshape(-1) if node.src[4] else None
        held = self.visible.get(layer)
        out = np.empty((n_tokens, len(queries), values.shape[2]), dtype=np.float32)
        for h in range(len(queries)):
            g = h // (len(queries) // len(keys))
            seen = allowed
            if held is not None:
                n = min(n_cells, held.shape[2])
                seen = allowed.copy()
                seen[:, :n] &= held[g, self.positions, :n]  # a token's cell is its position
            scores = scale * (queries[h] @ keys[g].T)
            if cap:
                scores = cap * np.tanh(scores / cap)
            weights = _softmax(np.where(seen, scores, -np.inf), None if sinks is None else sinks[h])
            out[:, h] = weights @ values[g]
        self.favourites[layer] = int(weights[-1].argmax())
        overwrite(node, out)

    def _cells(self, tensor):
        """As `floats`, of rows of a cache: those that are what they were at the last call are not converted again."""
        stored, place = rows(tensor), (root(tensor).name, tensor.view_offs)
        known, values = self._known.get(place, (None, None))
        if known is None or known.shape != stored.shape:
            values = converted(stored, tensor.type)
        elif (changed := (stored != known).any(axis=-1)).any():
            values[changed] = converted(stored[changed], tensor.type)
        self._known[place] = stored, values
        return values


def _softmax(scores, sink):
    top = scores.max(axis=1, keepdims=True)
    if sink is not None:
        top = np.maximum(top, sink)
    weights = np.exp(scores - top)
    return weights / (weights.sum(axis=1, keepdims=True) + (0 if sink is None else np.exp(sink - top)))
