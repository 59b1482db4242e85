"""Nodes of llama.cpp's graphs, looked at or changed once each is computed."""

from __future__ import annotations

import ctypes as c

import gguf
import numpy as np
from gguf.quants import dequantize

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


class NodeCallback:
    """A callback for `cb_eval` of a context's parameters.

    watchers: by ggml's name of an operation, called with each such node, a Tensor, once it is computed
    failure: the error of a watcher, or None
    """

    def __init__(self, watchers):
        self.failure = None
        library.load().ggml_op_desc.restype = c.c_char_p
        self._watchers = watchers
        self._by_number = {}
        self.callback = library.bindings().ggml_backend_sched_eval_callback(self._call)

    def _call(self, pointer, ask, _data):
        watcher = self._watcher(pointer)
        if ask:
            return watcher is not None
        try:
            watcher(Tensor.from_address(pointer))
        except Exception as error:  # an exception would be printed and forgotten
            self.failure = error
            return False
        return True

    def _watcher(self, pointer):
        op = c.c_int.from_address(pointer + Tensor.op.offset).value  # nothing else is read of other nodes
        if op not in self._by_number:
            self._by_number[op] = self._watchers.get(library.load().ggml_op_desc(c.c_void_p(pointer)).decode())
        return self._by_number[op]


def root(tensor):
    """Return the tensor at the end of a chain of views."""
    while tensor.view_src:
        tensor = tensor.view_src.contents
    return tensor


def floats(tensor):
    """A tensor of three dimensions, row by row as it lies, as float64 (ne2, ne1, ne0)."""
    return converted(rows(tensor), tensor.type)


def integers(tensor):
    """A matrix of integers, int32 (ne1, ne0)."""
    return rows(tensor)[0].view(np.int32)


def rows(tensor):
    """The bytes of a tensor of three dimensions, row by row as it lies, (ne2, ne1, row_bytes)."""
    kind = gguf.GGMLQuantizationType(tensor.type)
    n_values, n_rows, n_matrices, _ = tensor.ne
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    row_bytes = n_values // block_values * block_bytes
    n_bytes = (n_rows - 1) * tensor.nb[1] + (n_matrices - 1) * tensor.nb[2] + row_bytes
    data = np.empty(n_bytes, dtype=np.uint8)
    library.load().ggml_backend_tensor_get(c.byref(tensor), data.ctypes.data_as(c.c_void_p), SIZE(0), SIZE(n_bytes))
    found = np.lib.stride_tricks.as_strided(
        data, (n_matrices, n_rows, row_bytes), (tensor.nb[2], tensor.nb[1], 1), writeable=False
    )
    return np.ascontiguousarray(found)


def converted(stored, kind):
    """stored (..., row_bytes) uint8 of a type of ggml's -> their values (..., n) float64."""
    flat = stored.reshape(-1, stored.shape[-1]).view({0: np.float32, 1: np.float16}.get(kind, np.uint8))
    values = dequantize(flat, gguf.GGMLQuantizationType(kind)).astype(np.float64)
    return values.reshape(*stored.shape[:-1], -1)


def overwrite(tensor, values):
    """Give a dense tensor other values, of its own type."""
    data = values.ctypes.data_as(c.c_void_p)
    library.load().ggml_backend_tensor_set(c.byref(tensor), data, SIZE(0), SIZE(values.nbytes))
