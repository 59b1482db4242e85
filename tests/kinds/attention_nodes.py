"""Attention of llama.cpp's own graph, computed anew in float64 with cells of single heads masked.

Everything else of the graph is left to llama.cpp. So this says what any model makes of a cache from which any
(layer, head, token) triples are gone, whatever its other layers are: recurrent, windowed, shared, expert.

llama.cpp calls back after each node of a graph. Where it is an attention node, its result is overwritten with

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
from gguf.quants import dequantize
from reference_quant import round_q8_0

from edgekv.binding import library

SIZE = c.c_size_t


class Tensor(c.Structure):
    """`struct ggml_tensor` of the pinned ggml.h."""


Tensor._fields_ = [
    ("type", c.c_int),
    ("buffer", c.c_void_p),
    ("ne", c.c_int64 * 4),
    ("nb", c.c_size_t * 4),
    ("op", c.c_int),
    ("op_params", c.c_int32 * 16),
    ("flags", c.c_int32),
    ("src", c.POINTER(Tensor) * 10),
    ("view_src", c.POINTER(Tensor)),
    ("view_offs", c.c_size_t),
    ("data", c.c_void_p),
    ("name", c.c_char * 64),
    ("extra", c.c_void_p),
    ("padding", c.c_char * 8),
]


class AttentionNodes:
    """A callback for `cb_eval` of a context's parameters.

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
        self.failure = None
        library.load().ggml_op_desc.restype = c.c_char_p
        library.load().ggml_backend_buffer_is_host.restype = c.c_bool
        self._is_attention = {}
        self._known = {}
        self.callback = library.bindings().ggml_backend_sched_eval_callback(self._call)

    def _call(self, pointer, ask, _data):
        if ask:
            return self._attends(pointer)
        try:
            self._overwrite(Tensor.from_address(pointer))
        except Exception as error:  # an exception would be printed and forgotten
            self.failure = error
            return False
        return True

    def _attends(self, pointer):
        op = c.c_int.from_address(pointer + Tensor.op.offset).value  # nothing else is read of other nodes
        if op not in self._is_attention:
            self._is_attention[op] = library.load().ggml_op_desc(c.c_void_p(pointer)) == b"FLASH_ATTN_EXT"
        return self._is_attention[op]

    def _overwrite(self, node):
        q, k, v, mask = (node.src[i].contents for i in range(4))
        layer = int(re.fullmatch(r"cache_k_l(\d+)", _root(k).name.decode())[1])
        scale, _, cap = np.array(node.op_params[:3], dtype=np.int32).view(np.float32).astype(np.float64)
        queries = _floats(q)  # (n_head, n_tokens, d)
        self.queries.setdefault(layer, []).append(queries)
        keys, values = self._cells(k), self._cells(v)  # (n_head_kv, n_cells, d)
        by_edgekv = library.load().ggml_backend_buffer_is_host(c.c_void_p(_root(k).buffer))
        if gguf.GGMLQuantizationType(k.type) != gguf.GGMLQuantizationType.F16 and not by_edgekv:
            queries = round_q8_0(queries)
        n_tokens, n_cells = queries.shape[1], keys.shape[1]
        allowed = np.isfinite(_floats(mask)[0, :n_tokens])  # (n_tokens, n_cells)
        sinks = _floats(node.src[4].contents).reshape(-1) if node.src[4] else None
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
        result = out.ctypes.data_as(c.c_void_p)
        library.load().ggml_backend_tensor_set(c.byref(node), result, SIZE(0), SIZE(out.nbytes))

    def _cells(self, tensor):
        """As `_floats`, of rows of a cache: those that are what they were at the last call are not converted again."""
        rows, place = _rows(tensor), (_root(tensor).name, tensor.view_offs)
        known, floats = self._known.get(place, (None, None))
        if known is None or known.shape != rows.shape:
            floats = _converted(rows, tensor.type)
        elif (changed := (rows != known).any(axis=-1)).any():
            floats[changed] = _converted(rows[changed], tensor.type)
        self._known[place] = rows, floats
        return floats


def _softmax(scores, sink):
    top = scores.max(axis=1, keepdims=True)
    if sink is not None:
        top = np.maximum(top, sink)
    weights = np.exp(scores - top)
    return weights / (weights.sum(axis=1, keepdims=True) + (0 if sink is None else np.exp(sink - top)))


def _root(tensor):
    """Return the tensor at the end of a chain of views."""
    while tensor.view_src:
        tensor = tensor.view_src.contents
    return tensor


def _floats(tensor):
    """A tensor of three dimensions, row by row as it lies, as float64 (ne2, ne1, ne0)."""
    return _converted(_rows(tensor), tensor.type)


def _rows(tensor):
    """The bytes of a tensor of three dimensions, row by row as it lies, (ne2, ne1, row_bytes)."""
    kind = gguf.GGMLQuantizationType(tensor.type)
    n_values, n_rows, n_matrices, _ = tensor.ne
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    row_bytes = n_values // block_values * block_bytes
    n_bytes = (n_rows - 1) * tensor.nb[1] + (n_matrices - 1) * tensor.nb[2] + row_bytes
    data = np.empty(n_bytes, dtype=np.uint8)
    library.load().ggml_backend_tensor_get(c.byref(tensor), data.ctypes.data_as(c.c_void_p), SIZE(0), SIZE(n_bytes))
    rows = np.lib.stride_tricks.as_strided(
        data, (n_matrices, n_rows, row_bytes), (tensor.nb[2], tensor.nb[1], 1), writeable=False
    )
    return np.ascontiguousarray(rows)


def _converted(rows, kind):
    """rows (..., row_bytes) uint8 of a type of ggml's -> their values (..., n) float64."""
    flat = rows.reshape(-1, rows.shape[-1]).view({0: np.float32, 1: np.float16}.get(kind, np.uint8))
    values = dequantize(flat, gguf.GGMLQuantizationType(kind)).astype(np.float64)
    return values.reshape(*rows.shape[:-1], -1)
