"""Logits of the whole runtime against a float64 transformer that sees the same (layer, head, token) triples.

Tolerances are on max |error| / std(logits), and come from comparing that transformer with an unmodified llama.cpp that
evicts nothing. The processor's attention kernel sums values in f16 when it is given fewer than 64 queries, so
single tokens have a wider one. A quantised cache flips values at rounding boundaries, which later layers amplify.
"""

from __future__ import annotations

import numpy as np
import pytest
from recorded import recorded_runtime
from reference_transformer import ReferenceModel

from edgekv import _native
from edgekv.cache import Cache

N_LAYER = 3
N_PROMPT = 300
N_STEPS = 70
BUDGET = 96
BLOCK = 64

PREFILL = {"f16": 5e-3, "q8_0": 0.1, "q4_0": 0.5}
DECODE = {"f16": 4e-2, "q8_0": 0.1, "q4_0": 0.5}
WRONG = 1.0  # a wrong set for one head of one layer gives at least this

SHAPES = {
    # mistral too: its files are llama files whose heads are not n_embd / n_head wide
    "llama": {"architecture": "llama", "n_embd": 128, "n_head": 4, "n_head_kv": 2, "head_dim": 64},
    "qwen2": {"architecture": "qwen2", "n_embd": 128, "n_head": 4, "n_head_kv": 1},
    "qwen3": {"architecture": "qwen3", "n_embd": 128, "n_head": 3, "n_head_kv": 3, "head_dim": 128},
    "gemma": {"architecture": "gemma", "n_embd": 128, "n_head": 4, "n_head_kv": 2, "head_dim": 64},
}


def error(found, expected):
    return np.abs(found - expected).max() / expected.std()


def assert_exact(path, tokens, run, n_read, prefill, decoded, kv_type, least=WRONG):
    """The last logits of reading n_read tokens, and those of every token after them, are the reference's.

    The check must be able to fail: one head of one layer is also given a set shifted by one token, whose error is at
    `least` that.
    """
    visible = run.visible(len(tokens))
    model = ReferenceModel.from_gguf(path)
    n = len(tokens)
    stored = {"kv_type": kv_type, "n_in_blocks": n_read, "positions": run.positions(n), "moves": run.moves(n)}
    expected = model.logits(tokens, visible=visible, **stored)
    assert error(prefill, expected[n_read - 1]) < PREFILL[kv_type]
    assert max(map(error, decoded, expected[n_read:])) < DECODE[kv_type]

    wrong = visible.copy()
    fed = run.compactions[0][0]
    wrong[1, 0, fed:, : fed - 1] = visible[1, 0, fed:, 1:fed]
    shifted = model.logits(tokens, visible=wrong, **stored)
    assert max(map(error, decoded, shifted[n_read:])) > max(least, DECODE[kv_type])


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_a_transformer_that_masks_the_same_triples(tiny_model, shape, kv_type):
    arguments = SHAPES[shape]
    n_head_kv = arguments["n_head_kv"]
    path = tiny_model(n_layer=N_LAYER, n_ctx_train=1024, **arguments)
    tokens = np.random.default_rng(1).integers(3, 250, N_PROMPT + N_STEPS).tolist()
    options = {"policy": "random(seed=7)", "budget": BUDGET, "block": BLOCK, "kv_type": kv_type, "recent": 8}
    with recorded_runtime(path, n_layer=N_LAYER, n_head_kv=n_head_kv, **options) as run:
        prefill = run.read(tokens[: N_PROMPT - N_PROMPT % BLOCK])
        n_read = run.runtime.controller.cache.n_past
        decoded = [run.step(token) for token in tokens[n_read:]]
        assert len(run.compactions) >= 4
        assert any(not np.array_equal(a, b) for kept in run.compactions[-1][1] for a in kept for b in kept) or (
            n_head_kv == 1
        )

    assert_exact(path, tokens, run, n_read, prefill, decoded, kv_type)


def test_a_cache_that_evicts_nothing_equals_the_full_one(tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=1024)
    tokens = np.random.default_rng(2).integers(3, 250, 256).tolist()
    with recorded_runtime(path, n_layer=2, n_head_kv=2, budget=256, block=64) as run:
        found = run.read(tokens)
        assert run.compactions == []
    expected = ReferenceModel.from_gguf(path).logits(tokens)
    assert error(found, expected[-1]) < PREFILL["f16"]


def test_compacting_through_a_host_copy_changes_nothing(tiny_model):
    """Rows on a device are scored and moved in a host copy; here the same path runs on host memory."""
    path = tiny_model(n_layer=2, n_ctx_train=1024)
    tokens = np.random.default_rng(3).integers(3, 250, 256).tolist()
    results = []
    for staged in (False, True):
        with recorded_runtime(path, n_layer=2, n_head_kv=2, budget=96, block=64, policy="keydiff") as run:
            if staged:
                run.runtime.controller.cache.close()
                run.runtime.controller.cache = Cache(run.runtime.context, _native.CacheParams(staged=True))
            results.append((run.read(tokens), run.kept()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    for a, b in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_array_equal(a, b)
