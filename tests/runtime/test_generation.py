"""Long generations: 2,000 tokens in the cells and the memory of the first few hundred, whatever the policy."""

from __future__ import annotations

import numpy as np
import pytest
from diagonals import by_night

import edgekv
from edgekv.generation.sampler import Sampler, Sampling
from edgekv.memory.process import resident_bytes
from edgekv.policies import POLICIES

SPECS = [*POLICIES, "snapkv+caote", "snapkv+fastcaote", "snapkv+critical", "snapkv+caote+critical"]

BUDGET, BLOCK, N_SINK, RECENT = 512, 128, 4, 32
N_PROMPT, N_EARLY, N_STRETCH, N_TOKENS = 600, 500, 250, 2000
# 2 KiB of cells a token: a cache that grew would show
SHAPE = {"n_layer": 2, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "head_dim": 128, "n_ctx_train": 4096}
ALLOWANCE_BYTES = 1 << 19


def assert_sound(cache, n_cells, n_past):
    """Every head holds as many cells as it should, the sinks and the newest tokens among them."""
    assert cache.n_cells == n_cells
    assert cache.n_past == n_past
    for layer, head in np.ndindex(SHAPE["n_layer"], SHAPE["n_head_kv"]):
        positions = cache.positions(layer, head)
        assert len(positions) == n_cells
        assert (np.diff(positions) > 0).all()
        assert positions[:N_SINK].tolist() == list(range(N_SINK))
        assert positions[-RECENT:].tolist() == list(range(n_past - RECENT, n_past))


DAILY = ["h2o"]  # what adds up: test_kept_sets.py generates with every policy


@pytest.mark.parametrize("spec", by_night(SPECS, DAILY))
def test_cells_and_memory_of_a_long_generation(tiny_model, spec, monkeypatch):
    """Sampled and fed token by token, past tokens that would end a reply; checked after every step."""
    path = tiny_model(**SHAPE)
    options = {"budget": BUDGET, "block": BLOCK, "n_sink": N_SINK, "recent": RECENT, "threads": 1}
    with edgekv.Runtime(path, memory="4GiB", policy=spec, **options) as runtime:
        block_loop, cache = runtime.block_loop, runtime.block_loop.cache
        after_compactions = []
        compact = cache.compact

        def compact_and_look(*arguments, **keywords):
            n_before = cache.n_cells
            result = compact(*arguments, **keywords)
            assert_sound(cache, min(n_before, BUDGET), cache.n_past)
            after_compactions.append((n_before, cache.n_past))
            return result

        monkeypatch.setattr(cache, "compact", compact_and_look)
        prompt = np.random.default_rng(1).integers(3, 250, N_PROMPT).tolist()
        assert block_loop.read(prompt, lambda n: True)
        assert_sound(cache, BUDGET, N_PROMPT)  # the last prompt block, too, ends with an eviction
        after_compactions.clear()

        sampler = Sampler(Sampling(temperature=1.0, seed=7))
        fed, held_bytes = set(), []
        for i in range(N_TOKENS):
            if i >= N_EARLY and (i - N_EARLY) % N_STRETCH == 0:
                held_bytes.append(resident_bytes())
            token = sampler.sample(runtime.context)
            block_loop.step(token)
            fed.add(token)
            assert_sound(cache, BUDGET + 1 + i % BLOCK, N_PROMPT + i + 1)
        growths = np.diff(held_bytes)
        assert len(growths) >= 4
        assert (
            np.median(growths) * len(growths) < ALLOWANCE_BYTES
        )  # a leak grows in every stretch, other threads in one
        sampler.close()

    expected = [(BUDGET + BLOCK, N_PROMPT + n) for n in range(BLOCK, N_TOKENS, BLOCK)]
    assert after_compactions == expected
    assert len(fed) > 100  # not one token over and over
