"""Tiny models of every family, and llama.cpp's own cache to compare with."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np

from edgekv.binding.model import Model
from edgekv.evals.stock import StockLoop
from edgekv.options import Options


@contextmanager
def own_cache(path, *, n_cells, block=128, kv_type="f16", threads=2):
    """An OwnCache of `n_cells` on the model at `path`, which need not be one that edgekv runs."""
    options = Options(threads=threads, block=block, kv_type=kv_type)
    header = SimpleNamespace(architecture="", metadata={}, head_dim=64)
    with Model(path, options, header=header) as model:
        loop = StockLoop(model, n_cells, options)
        try:
            yield OwnCache(model, loop)
        finally:
            loop.close()


class OwnCache:
    """llama.cpp's own cache, which evicts nothing."""

    def __init__(self, model, loop):
        self._model, self._loop = model, loop

    def read(self, tokens):
        """The logits (n_vocab,) after tokens that are read into the empty cache."""
        self._loop.read(tokens)
        return self._logits()

    def step(self, token):
        """The logits (n_vocab,) after one token more."""
        self._loop.step(token)
        return self._logits()

    def _logits(self):
        pointer = ctypes.cast(self._loop.context.logits(), ctypes.POINTER(ctypes.c_float))
        return np.ctypeslib.as_array(pointer, (self._model.n_vocab,)).copy()
