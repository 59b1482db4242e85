"""llama.cpp's own cache on the library that edgekv runs, to compare with."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy as np
from attention_nodes import ATTENDING, AttentionNodes
from expert_routes import SORTING
from graph_nodes import NodeCallback

from edgekv.binding.model import Context, Model
from edgekv.evals.stock import StockLoop
from edgekv.options import Options


@contextmanager
def own_cache(path, *, n_cells, block=128, kv_type="f16", visible=None, routes=None):
    """An OwnCache of `n_cells` on the model at `path`, which need not be one that edgekv runs.

    visible: as of AttentionNodes; None = attention is llama.cpp's own too
    routes: TakenRoutes; None = the routers are llama.cpp's own
    """
    options = Options(threads=1, block=block, kv_type=kv_type)
    header = SimpleNamespace(architecture="", metadata={})
    nodes = None if visible is None else AttentionNodes(visible)
    watchers = {} if nodes is None else {ATTENDING: nodes.attend}
    if routes is not None:
        watchers[SORTING] = routes.take
    watch = NodeCallback(watchers)
    with Model(path, options, header=header) as model, watched_by(watch):
        loop = _Loop(Context(model, n_cells, options, None), options.n_ubatch)
        try:
            yield OwnCache(loop, nodes, watch)
        finally:
            loop.close()


class _Loop(StockLoop):
    """Tells AttentionNodes which tokens come."""

    nodes = None

    def feed(self, tokens, position, *, want_logits):
        if self.nodes is not None:
            self.nodes.positions = np.arange(position, position + len(tokens))
            self.nodes.queries.clear()
        super().feed(tokens, position, want_logits=want_logits)


class OwnCache:
    """llama.cpp's own cache, which evicts nothing."""

    def __init__(self, loop, nodes, watch):
        self._loop, self._nodes, self._watch = loop, nodes, watch
        loop.nodes = nodes

    def read(self, tokens):
        """The logits (n_vocab,) after tokens that are read into the empty cache, in blocks."""
        self._loop.read(tokens)
        return self._logits()

    def step(self, token):
        """The logits (n_vocab,) after one token more."""
        self._loop.step(token)
        return self._logits()

    @property
    def favourites(self):
        """As of AttentionNodes."""
        return self._nodes.favourites

    @property
    def queries(self):
        """As of AttentionNodes."""
        return self._nodes.queries

    def _logits(self):
        if self._watch.failure is not None:
            raise self._watch.failure
        return self._loop.context.logits_array().copy()


@contextmanager
def watched_by(nodes):
    """Contexts made meanwhile call `nodes` back, a NodeCallback."""
    params_of = Context.llama_params

    def watched(*arguments):
        params = params_of(*arguments)
        params.cb_eval = nodes.callback
        return params

    with mock.patch.object(Context, "llama_params", watched):
        yield
