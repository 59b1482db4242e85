"""Learnt sinks take part in the attention that scores: the kept sets are those of the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
from recorded import recorded_runtime

from edgekv.policies import register, unregister
from edgekv.scoring import select

gguf = pytest.importorskip("gguf")

LAYERS, N_HEAD_KV = (1, 3), 2  # layers of gpt-oss that see the whole text


@pytest.fixture
def newest():
    """Registers `newest`, what tova scores, written in Python: with the sinks or as if there were none."""

    def call(with_sinks):
        def attention(keys, queries, sinks):
            n_head_kv, n, dim = keys.shape
            logits = queries[:, -1].reshape(n_head_kv, -1, dim) @ keys.transpose(0, 2, 1) / np.sqrt(np.float32(dim))
            if with_sinks:
                logits = np.concatenate([logits, sinks.reshape(n_head_kv, -1, 1)], axis=2)
            weights = np.exp(logits - logits.max(axis=2, keepdims=True))
            return (weights / weights.sum(axis=2, keepdims=True)).mean(axis=1)[:, :n]

        register("newest", attention, weights=True, rows=1, replace=True)
        return "newest"

    yield call
    unregister("newest")


def sinks_of(path):
    """(n_head,) of each of LAYERS."""
    tensors = {tensor.name: np.array(tensor.data) for tensor in gguf.GGUFReader(path).tensors}
    return [tensors[f"blk.{il}.attn_sinks.weight"] for il in LAYERS]


def heads_of(cache, layer):
    """Return a layer's heads as a policy sees them."""

    def keys(head):
        data, rows = cache.rows(layer, head)
        return np.frombuffer(data.tobytes(), np.float16).reshape(rows.n, rows.dim)

    queries, rows, scale = cache.queries(layer)
    positions = [cache.positions(layer, head) for head in range(N_HEAD_KV)]
    return {
        "keys": np.array([keys(head) for head in range(N_HEAD_KV)]),
        "positions": np.array(positions),
        "queries": queries,
        "query_positions": rows,
        "scale": scale,
    }


@pytest.mark.parametrize("spec", ["snapkv", "tova", "h2o"])
def test_kept_positions_are_those_of_the_reference(family_model, spec):
    path = family_model("gpt-oss")
    sinks, expected, without = sinks_of(path), [], []

    def choose(cache, policy, budget, keywords):
        protection = {name: keywords[name] for name in ("n_sink", "recent")} | {"budget": budget}
        for layer, of_layer in enumerate(sinks):
            arrays = heads_of(cache, layer) | protection
            for found, given in ((expected, of_layer), (without, None)):
                kept = select(spec, backend="reference", sinks=given, **arrays)
                found += [where[cells] for where, cells in zip(arrays["positions"], kept, strict=True)]

    # h2o scores once: what it gathered later depends on what was evicted before
    tokens = np.random.default_rng(1).integers(3, 250, 128 if spec == "h2o" else 320).tolist()
    options = {"policy": spec, "budget": 96, "block": 128, "focus": False}
    with recorded_runtime(path, n_layer=len(LAYERS), n_head_kv=N_HEAD_KV, before_compaction=choose, **options) as run:
        run.read(tokens)
    found = [kept for _, layers in run.compactions for heads in layers for kept in heads]
    assert len(found) == len(expected) > 0
    for kept, right in zip(found, expected, strict=True):
        np.testing.assert_array_equal(kept, right)
    assert any(not np.array_equal(kept, wrong) for kept, wrong in zip(found, without, strict=True))


def kept_of(path, policy):
    """Positions that each head kept at each compaction."""
    tokens = np.random.default_rng(1).integers(3, 250, 320).tolist()
    options = {"policy": policy, "budget": 96, "block": 64, "focus": False}
    with recorded_runtime(path, n_layer=len(LAYERS), n_head_kv=N_HEAD_KV, **options) as run:
        run.read(tokens)
    return np.array([kept for _, layers in run.compactions for heads in layers for kept in heads])


def test_a_custom_scorer_is_given_the_sinks(family_model, newest):
    path = family_model("gpt-oss")
    expected = kept_of(path, "tova")
    np.testing.assert_array_equal(kept_of(path, newest(with_sinks=True)), expected)
    assert not np.array_equal(kept_of(path, newest(with_sinks=False)), expected)


def test_an_exported_graph_is_given_the_sinks(family_model, tmp_path):
    pytest.importorskip("onnxruntime")
    export_policy = pytest.importorskip("exported_policies").export_policy
    path = family_model("gpt-oss")
    export_policy("snapkv", tmp_path / "with.onnx", sinks=True)
    export_policy("snapkv", tmp_path / "without.onnx")
    expected = kept_of(path, "snapkv")
    np.testing.assert_array_equal(kept_of(path, f"onnx:{tmp_path / 'with.onnx'}"), expected)
    assert not np.array_equal(kept_of(path, f"onnx:{tmp_path / 'without.onnx'}"), expected)
