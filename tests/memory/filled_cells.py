"""Cells that are filled to the last, saved and loaded, in a fresh process. Imports nothing that counts as memory."""

from __future__ import annotations


def fill(model, **options):
    """Feed a runtime's cells full, evict, and go on by a block, some tokens and one.

    Returns the planned peak, that of it which cells and threads take, and the cells.
    """
    import edgekv

    with edgekv.Runtime(model, **options) as runtime:
        plan, cache = runtime.plan, runtime.block_loop.cache
        protected = {"n_sink": 4, "recent": 32}
        _feed(cache, plan.n_cells)
        cache.compact(runtime.options.parsed_policy, plan.budget_cells, **protected)
        _feed(cache, plan.block)
        cache.compact(runtime.options.parsed_policy, plan.budget_cells, **protected)
        _feed(cache, 60)
        cache.feed([5], want_logits=True)
        parts = plan.parts
        counted = parts.kv + parts.compute + parts.workspace + parts.bookkeeping
        return {"planned": plan.peak_bytes, "counted": counted, "cells": plan.n_cells}


def _feed(cache, n):
    """Feed n tokens, at most 128 at a time."""
    for first in range(0, n, 128):
        cache.feed([5 + i % 200 for i in range(first, min(n, first + 128))])


def save(model, path, n_words, **options):
    """Read so many words and save the session."""
    import edgekv

    with edgekv.Runtime(model, **options) as runtime, runtime.session() as session:
        session.read("word " * n_words)
        session.save(path)


def load(model, path, **options):
    """Load a session; the planned peak and the cells that it has then."""
    import edgekv

    with edgekv.Runtime(model, **options) as runtime, runtime.load_session(path) as session:
        return {"planned": runtime.plan.peak_bytes, "cells": session.n_cells}
