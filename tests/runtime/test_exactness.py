"""Logits of the whole runtime against a float64 transformer that sees the same (layer, head, token) triples.

An f16 cache: tolerances are on max |error| / std(logits). For blocks it comes from comparing that transformer with an
unmodified llama.cpp that evicts nothing. Single tokens are many, and may be off twice as much: 5.5e-3 was measured.

A quantised cache: the sums of two processors differ a little. So one of them may store a value close to a rounding
boundary one step higher, and later layers amplify that. How far this may move the logits follows from what rounding
itself does to them, which the transformer tells (`kv_type="exact"`). Let a value differ by u of its deviation, and let
a step be d of it. A share 2 u / d of the values crosses a boundary, and each of these is off by d. Rounding puts every
value off by d / sqrt(12), root mean square. So the error of the logits is sqrt(12 * 2 u / d) of the error by rounding.
The limit takes u = 2^-11, as sums in f16 have it. The largest magnitude of 32 normal values is 2.4 deviations on
average; q8_0 divides it into 127 steps and q4_0 into 8: d = 0.019 and 0.3. A third of the limit was measured with q8_0,
and half of it with q4_0.

On a device ggml attends by itself. Its processor backend rounds queries, and sums values in f16, cell by cell. The
transformer does so too (`rounded_from`). So quantised caches have the host's limit there. Single tokens over f16 may be
off by twice what such sums are, once for the device's and once for the transformer's, whose order of cells is another.
Other backends may round less. CUDA's attention multiplies in f16. With products in f16 lavapipe was at most 2.0e-2 off,
and twice that is the bound over f16 there. A value of q4_0 may differ by u = 2^-9; q8_0 has the host's limit.
"""

from __future__ import annotations

import numpy as np
import pytest
from diagonals import diagonal
from recorded import recorded_runtime
from reference_transformer import ReferenceModel

N_LAYER = 3
N_PROMPT = 300
N_STEPS = 70
BUDGET = 96
BLOCK = 64

PREFILL = 5e-3
DECODE = 1e-2
IN_F16 = 4e-2
OF_ROUNDING = {kv_type: np.sqrt(24 * 2**-11 / (2.4 / steps)) for kv_type, steps in (("q8_0", 127), ("q4_0", 8))}
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


def distance(found, expected):
    return np.sqrt(np.mean((found - expected) ** 2))


def assert_exact(path, tokens, run, n_read, prefill, decoded, kv_type, least=WRONG):
    """The last logits of reading n_read tokens, and those of every token after them, are the reference's.

    The check must be able to fail: where the kept set of one head of one layer is shifted by one token, the largest
    error is above `least`, and in a quantised cache the distance is above twice the limit.
    """
    visible = run.visible(len(tokens))
    model = ReferenceModel.from_gguf(path)
    n = len(tokens)
    stored = {"positions": run.positions(n), "moves": run.moves(n)}

    def logits(visible, kv_type, **rounded):
        return model.logits(tokens, visible=visible, kv_type=kv_type, **stored, **rounded)[n_read - 1 :]

    expected = rounded = logits(visible, kv_type)
    if run.runtime.plan.device_bytes > 0:
        rounded = logits(visible, kv_type, rounded_from=n_read if kv_type == "f16" else 0)
    in_f16 = any(share.name.startswith("CUDA") for share in run.runtime.plan.devices)
    if kv_type == "f16":
        assert error(prefill, expected[0]) < (IN_F16 if in_f16 else PREFILL)
        by_sums = max(map(error, rounded[1:], expected[1:]))
        assert max(map(error, decoded, expected[1:])) < (IN_F16 if in_f16 else DECODE) + 2 * by_sums
    else:
        limit = OF_ROUNDING[kv_type] * distance(expected, logits(visible, "exact"))
        limit *= 2 if in_f16 and kv_type == "q4_0" else 1
        assert min(distance([prefill, *decoded], each) for each in (expected, rounded)) < limit

    wrong = visible.copy()
    fed = run.compactions[0][0]
    wrong[1, 0, fed:, : fed - 1] = visible[1, 0, fed:, 1:fed]
    shifted = logits(wrong, kv_type)
    assert max(map(error, decoded, shifted[1:])) > least
    if kv_type != "f16":
        assert distance([prefill, *decoded], shifted) > 2 * limit


@pytest.mark.filterwarnings("ignore:kv_type=q4_0 may spoil:UserWarning")
@pytest.mark.parametrize(("shape", "kv_type"), diagonal(SHAPES, ["f16", "q8_0", "q4_0"], whole=["llama"]))
def test_logits_equal_a_transformer_that_masks_the_same_triples(tiny_model, shape, kv_type):
    arguments = SHAPES[shape]
    n_head_kv = arguments["n_head_kv"]
    path = tiny_model(n_layer=N_LAYER, n_ctx_train=1024, **arguments)
    tokens = np.random.default_rng(1).integers(3, 250, N_PROMPT + N_STEPS).tolist()
    options = {"policy": "random(seed=7)", "budget": BUDGET, "block": BLOCK, "kv_type": kv_type, "recent": 8}
    with recorded_runtime(path, n_layer=N_LAYER, n_head_kv=n_head_kv, threads=2, **options) as run:
        prefill = run.read(tokens[: N_PROMPT - N_PROMPT % BLOCK])
        n_read = run.runtime.block_loop.cache.n_past
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
    assert error(found, expected[-1]) < PREFILL


def test_compacting_through_a_host_copy_changes_nothing(tiny_model, monkeypatch):
    """Rows on a device are scored and moved in a host copy; here the same path runs on host memory."""
    path = tiny_model(n_layer=2, n_ctx_train=1024)
    tokens = np.random.default_rng(3).integers(3, 250, 256).tolist()
    results = []
    for staging in ("auto", "copies"):
        monkeypatch.setenv("EDGEKV_STAGING", staging)
        with recorded_runtime(path, n_layer=2, n_head_kv=2, budget=96, block=64, policy="keydiff") as run:
            results.append((run.read(tokens), run.kept()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    for a, b in zip(results[0][1], results[1][1], strict=True):
        np.testing.assert_array_equal(a, b)
