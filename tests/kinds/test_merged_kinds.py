"""`merge` with every kind of layer: cells beside windows and states, latents, rows that later layers share, sinks."""

from __future__ import annotations

import ctypes

import pytest
from cell_counts import counts_of
from evicting import HEADS, OF_EACH_STATE

import edgekv
from edgekv.binding import library
from edgekv.generation.sampler import GREEDY
from edgekv.planning.estimate import cache_params_of

OPTIONS = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 8, "n_sink": 4, "threads": 1, "focus": False}


@pytest.mark.parametrize("name", [name for name in OF_EACH_STATE if HEADS[name]])
def test_every_kind_merges_what_it_evicts(family_model, name):
    """Counts add up to all tokens in every head; bytes are those of the plan, and a snapshot goes on likewise."""
    with edgekv.Runtime(family_model(name), policy="keydiff+merge", **OPTIONS) as rt, rt.session() as session:
        session.read("the old house by the river " * 20)
        cache = rt.block_loop.cache
        params = cache_params_of(rt.options)
        params.repositions = cache.repositions
        estimate = library.load().edgekv_cache_estimate_bytes(ctypes.byref(cache.shape), ctypes.byref(params))
        assert cache.bookkeeping_bytes == estimate <= rt.plan.parts.bookkeeping
        by_head = counts_of(cache).values()
        assert {float(of_head.sum()) for of_head in by_head} == {float(session.n_past)}
        assert all((of_head > 1).sum() >= 4 for of_head in by_head)
        snapshot = session.snapshot()
        ask = {"max_tokens": 12, "sampling": GREEDY, "ignore_eos": True, "allow_loops": True}
        said = list(session.ask("What is there?", **ask))
        session.restore(snapshot)
        assert list(session.ask("What is there?", **ask)) == said


def test_recurrent_states_alone_have_nothing_to_merge(family_model):
    said = []
    for policy in ("keydiff", "keydiff+merge"):
        with edgekv.Runtime(family_model("mamba2"), policy=policy, **OPTIONS) as rt, rt.session() as session:
            session.read("the old house by the river " * 9)
            said.append(list(session.ask("What is there?", max_tokens=8, sampling=GREEDY, ignore_eos=True)))
    assert said[0] == said[1]
