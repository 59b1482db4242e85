"""The sets that the runtime keeps are those that the reference formulas keep on the runtime's own keys and queries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cache_arrays import Heads, output_projections
from recorded import recorded_runtime

from edgekv.policies import POLICIES, parse_policy
from edgekv.policies.select import Protection

WRAPPERS = ["", "+caote", "+fastcaote", "+critical", "+caote+critical", "+fastcaote+critical"]
COMBINATIONS = [base + wrapper for base, wrapper in itertools.product(POLICIES, WRAPPERS)]
VARIANTS = [
    "random(seed=3, kernel=5, pool=max)",
    "keydiff(window=0.2)",
    "keydiff(kernel=15)",
    "keydiff(kernel=7, pool=max)",
    "keydiff(anchor=mean)",
    "keydiff(anchor=median)",
    "keydiff(anchor=pairwise)",
    "keydiff(metric=dot)",
    "keydiff(metric=euclidean)",
    "l2norm(kernel=5)",
    "snapkv(window=40, kernel=15, pool=max)",
    "snapkv(window=8)+caote(rounds=4)",
    "snapkv(window=20, carry=0.9)",
    "h2o+fastcaote(rounds=2)",
    "ahakv(recent_accumulation=off)",
    "ahakv(step_gain=off, value_prior=off)",
    "ahakv(floor=off, r=8)",
    "tova+critical(alpha=0.25)",
]
QUANTISED = [*POLICIES, "snapkv+caote", "snapkv+critical", "keydiff+caote+critical", "ahakv+fastcaote"]
CASES = [(spec, "f16") for spec in COMBINATIONS + VARIANTS]
CASES += list(itertools.product(QUANTISED, ["q8_0", "q4_0"]))

SHAPE = {"n_layer": 2, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "head_dim": 64}
BUDGET = 100


def assert_same_set(found, expected, policy, head):
    """Equal sets, but for one cell that stands for another whose score float32 cannot tell from its own."""
    exchanged = np.setxor1d(found, head.positions[expected])
    if len(exchanged) == 0:
        return
    assert len(exchanged) == 2, f"{exchanged} differ"
    cells = np.isin(head.positions, exchanged)
    stages = [policy.score(head)] + ([policy.inner.score(head)] if policy.name == "critical" else [])
    assert min(np.ptp(scores[cells]) / np.abs(scores).max() for scores in stages) < 1e-5


@pytest.mark.parametrize(("spec", "kv_type"), CASES)
def test_kept_positions_are_those_of_the_reference(tiny_model, spec, kv_type):
    policy = parse_policy(spec)
    quantization = "Q8_0" if kv_type == "q8_0" else "F32"
    path = tiny_model(**SHAPE, n_ctx_train=1024, quantization=quantization)
    w_o = output_projections(path, 4, 2, 64) if policy.name == "critical" else None
    tokens = np.random.default_rng(5).integers(3, 250, 330).tolist()
    heads = Heads(2, 2, w_o)
    expected = []

    def remember(cache, policy, budget, keywords):
        protection = Protection(keywords["n_sink"], keywords["recent"], keywords["pinned"])
        before = heads.before(cache, policy, budget, probed=keywords["probed"], generating=keywords["generating"])
        expected.append([(policy.keep(head, protection), head) for head in before.values()])

    options = {"policy": spec, "budget": BUDGET, "block": 32, "kv_type": kv_type, "recent": 10}
    with recorded_runtime(path, n_layer=2, n_head_kv=2, before_compaction=remember, **options) as run:
        run.read(tokens[:250])
        for token in tokens[250:]:
            run.step(token)
        found = [[kept for heads in layers for kept in heads] for _, layers in run.compactions]
    assert len(found) == len(expected) >= 7
    assert len(found[-1][0]) == BUDGET
    for all_kept, all_expected in zip(found, expected, strict=True):
        for kept, (indices, head) in zip(all_kept, all_expected, strict=True):
            assert_same_set(kept, indices, policy, head)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize(
    "spec",
    [
        "keydiff",
        "snapkv",
        "snapkv(window=64, kernel=15, carry=0.8)+critical",
        "tova",
        "h2o",
        "ahakv",
        "snapkv+caote",
        "snapkv+critical",
    ],
)
def test_a_probe_keeps_what_the_reference_keeps_by_its_queries(tiny_model, spec, kv_type):
    """Focus: the probe's queries score, its cells are gone, and reading goes on as if it had not been."""
    path = tiny_model(**SHAPE, n_ctx_train=1024)
    w_o = output_projections(path, 4, 2, 64)
    tokens = np.random.default_rng(6).integers(3, 250, 300).tolist()
    probe = np.random.default_rng(7).integers(3, 250, 40).tolist()  # more than a block: fed in two parts
    heads = Heads(2, 2, w_o)
    expected = []

    def remember(cache, policy, budget, keywords):
        assert cache.n_cells == len(cache.positions(0, 0)) <= budget + 32
        assert cache.positions(1, 1)[-1] == cache.n_past - 1
        protection = Protection(keywords["n_sink"], keywords["recent"], keywords["pinned"])
        if keywords["probed"]:
            rows = cache.queries(0, probed=True)[1]
            assert rows.tolist() == list(range(cache.n_past, cache.n_past + len(probe)))
        before = heads.before(cache, policy, budget, probed=keywords["probed"])
        expected.append([(policy, policy.keep(head, protection), head) for head in before.values()])

    options = {"policy": spec, "budget": BUDGET, "block": 32, "kv_type": kv_type, "recent": 10}
    with recorded_runtime(path, n_layer=2, n_head_kv=2, before_compaction=remember, **options) as run:
        controller = run.runtime.controller
        assert controller.read(tokens, lambda n: True, probe)
        assert controller.work.probes >= 6
        assert controller.cache.n_past == len(tokens)
        assert controller.cache.n_cells == BUDGET + 1  # the last token comes after the last probe
        found = [[kept for heads in layers for kept in heads] for _, layers in run.compactions]
    for all_kept, all_expected in zip(found, expected, strict=True):
        for kept, (policy, indices, head) in zip(all_kept, all_expected, strict=True):
            assert_same_set(kept, indices, policy, head)
