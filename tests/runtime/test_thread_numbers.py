"""The number of threads that decode a token changes while others are busy, and nothing that is computed with it."""

from __future__ import annotations

import numpy as np
import pytest
from diagonals import HERE_BY_DAY

import edgekv
from edgekv.cells.decoder import ThreadTuner

SHAPE = {"n_layer": 2, "n_embd": 256, "n_head": 4, "n_head_kv": 2, "head_dim": 64, "n_ctx_train": 2048}


def logits_of(path, numbers, **options):
    """The logits of tokens behind a text, each decoded by as many threads as `numbers` says in turn."""
    settings = {"memory": "4GiB", "budget": 600, "block": 128, "threads": 3, "focus": False}
    with edgekv.Runtime(path, **settings | options) as rt:
        rt.block_loop.read(np.random.default_rng(2).integers(3, 250, 700).tolist(), lambda n: True)
        found = []
        for token, n_threads in zip(range(3, 3 + 8), numbers * 8, strict=False):
            rt.block_loop.cache.decode_with(n_threads)
            rt.block_loop.step(token)
            found.append(rt.context.logits_array().copy())
    return np.array(found)


@pytest.mark.each_by_day("kv_type", "quantization")
@pytest.mark.parametrize("quantization", ["F32", "F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_logits_do_not_depend_on_it(tiny_model, quantization, kv_type):
    path = tiny_model(**SHAPE, quantization=quantization)
    expected = logits_of(path, [3], kv_type=kv_type)
    assert np.array_equal(logits_of(path, [1], kv_type=kv_type), expected)
    assert np.array_equal(logits_of(path, [2, 1, 3], kv_type=kv_type), expected)


@pytest.mark.parametrize("isolated", HERE_BY_DAY)
def test_replies_are_the_same_while_it_changes(tiny_model, monkeypatch, talkative, isolated):
    """Another number of threads decodes every second token; a worker, a process of its own, changes nothing."""
    path = tiny_model(**SHAPE, quantization="Q8_0")

    def said():
        options = {"budget": 64, "block": 32, "threads": 2, "isolated": isolated}
        with edgekv.Runtime(path, memory="4GiB", **options) as rt, rt.session() as session:
            return "".join(session.chat("Hello", max_tokens=60, allow_loops=True))

    expected = said()

    def decoded(threads, seconds, own_seconds):
        threads.now = 3 - threads.now
        return True

    monkeypatch.setattr(ThreadTuner, "decoded", decoded)
    assert said() == expected
