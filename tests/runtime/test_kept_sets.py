"""The sets that the runtime keeps are those that the reference formulas keep on the runtime's own keys."""

from __future__ import annotations

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from recorded import recorded_runtime
from reference_quant import rotate

from edgekv.policies.select import cells_to_keep

SPECS = [
    "sink",
    "random(seed=3)",
    "random(seed=3, kernel=5, pool=max)",
    "keydiff",
    "keydiff(window=0.2)",
    "keydiff(kernel=15)",
    "keydiff(kernel=7, pool=max)",
    "keydiff(anchor=mean)",
    "keydiff(anchor=median)",
    "keydiff(anchor=pairwise)",
    "keydiff(metric=dot)",
    "keydiff(metric=euclidean)",
]


def read_keys(cache, layer, head):
    """One head's keys as float64 (n, d), un-rotated."""
    data, rows = cache.rows(layer, head)
    keys = dequantize(data.reshape(-1), GGMLQuantizationType(rows.type)).reshape(rows.n, rows.dim).astype(np.float64)
    return rotate(keys, rows.rotation) if rows.rotation else keys


def assert_same_set(found, expected, scores, positions):
    """Equal sets, but for cells whose scores float32 cannot tell from the worst that stays."""
    if not np.array_equal(found, positions[expected]):
        differing = np.isin(positions, np.setxor1d(found, positions[expected]))
        worst = np.sort(scores[np.isin(positions, found)])[0]
        np.testing.assert_allclose(scores[differing], worst, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("spec", SPECS)
def test_kept_positions_are_those_of_the_reference(tiny_model, spec, kv_type):
    path = tiny_model(n_layer=2, n_embd=128, n_head=4, n_head_kv=2, head_dim=64, n_ctx_train=1024)
    tokens = np.random.default_rng(5).integers(3, 250, 400).tolist()
    expected = []

    def remember(cache, policy, budget, keywords):
        for layer in range(2):
            for head in range(2):
                positions = cache.positions(layer, head)
                scores = policy.score(read_keys(cache, layer, head), positions, layer=layer, head=head)
                kept = cells_to_keep(scores, positions, budget, **keywords)
                expected.append((kept, scores, positions))

    options = {"policy": spec, "budget": 100, "block": 32, "kv_type": kv_type, "recent": 10}
    with recorded_runtime(path, n_layer=2, n_head_kv=2, before_compaction=remember, **options) as run:
        run.read(tokens[:300])
        for token in tokens[300:]:
            run.step(token)
        found = [kept for _, layers in run.compactions for heads in layers for kept in heads]
    assert len(found) == len(expected) > 4 * 8
    for kept, (indices, scores, positions) in zip(found, expected, strict=True):
        assert len(kept) == 100
        assert_same_set(kept, indices, scores, positions)
