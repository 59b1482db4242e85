"""The sets that the runtime keeps are those that the reference formulas keep on the runtime's own keys and queries."""

from __future__ import annotations

import itertools
from contextlib import nullcontext

import numpy as np
import pytest
from cache_arrays import output_projections
from diagonals import by_night, diagonal
from recorded import recorded_runtime
from reference_choice import Choice, Reference
from reference_rope import frequencies_of
from reference_transformer import ROPE_PAIRS
from uneven import UNEVEN, make_uneven

import edgekv
from edgekv import policies
from edgekv.policies import POLICIES, Head, parse_policy
from edgekv.policies.ada import BASES
from edgekv.policies.selection import Protection

WRAPPERS = ["", "+caote", "+fastcaote", "+critical", "+caote+critical", "+fastcaote+critical"]
# Bases with every wrapper that differ in what the runtime gives them; of the others with one, since a wrapper's formula
# is compared beside every base in tests/unit/test_policies.py.
COMBINATIONS = [
    *POLICIES,
    *(base + wrapper for base, wrapper in diagonal(POLICIES, WRAPPERS[1:], whole=["keydiff", "snapkv", "h2o"])),
]
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
    "keydiff(rope=off)",
    "keydiff(rope=off, anchor=median)",
    "keydiff(rope=off, metric=dot, kernel=15)+caote+critical",
    "l2norm(kernel=5)",
    "snapkv(window=40, kernel=15, pool=max)",
    "snapkv(window=8)+caote",
    "snapkv(window=20)",
    "snapkv(window=20, pool=max, pool_rows=on)",
    "snapkv(aggregate=max)+critical(epsilon=0.1)",
    "ahakv(recent_accumulation=off)",
    "ahakv(step_gain=off, value_prior=off)",
    "ahakv(floor=off, r=8)",
    "ahakv(r=40, protect_recent=on)",
    "tova+critical(alpha=0.25)",
]
QUANTISED = [
    *POLICIES,
    "keydiff(rope=off)",
    "snapkv(pool=max, pool_rows=on)",
    "snapkv+caote",
    "snapkv+critical",
    "keydiff+caote+critical",
    "ahakv+fastcaote",
]
# Options to which the runtime gives something else, or whose cells add up; tests/unit/test_policies.py has all others.
GIVEN_MORE = [
    "keydiff(window=0.2)",
    "keydiff(rope=off)",
    "keydiff(rope=off, metric=dot, kernel=15)+caote+critical",
    "snapkv(window=8)+caote",
    "snapkv(window=20)",
    "snapkv(window=20, pool=max, pool_rows=on)",
    "ahakv(recent_accumulation=off)",
]
CASES = [(spec, "f16") for spec in COMBINATIONS + VARIANTS]
CASES += diagonal(QUANTISED, ["q8_0", "q4_0"], whole=["keydiff", "snapkv", "h2o"])


SHARED = [  # heads or layers differ in how many cells they keep
    *(f"{base.name}+ada" for base in BASES),
    "snapkv(window=20)+ada",
    "snapkv+critical+ada",
    "snapkv+caote+ada",
    "h2o+caote+ada",
    "keydiff+fastcaote+critical+ada",
    "h2o+ada(safeguard=0)",
    "keydiff+ada(safeguard=0)",
    "tova+ada(safeguard=0.7)",
    "keydiff(rope=off)+ada",
    "ahakv+ada(safeguard=0)",
    "random+pyramid",
    "sink+pyramid(beta=3)",
    "snapkv+pyramid",
    "ahakv+critical+pyramid",
    "snapkv+pyramid+ada",
    "keydiff+pyramid+ada",
    "keydiff(window=0.2)+ada+pyramid",
    "ahakv+ada(safeguard=0)+pyramid(beta=5)",
]
SHARED_CASES = [(spec, "f16") for spec in SHARED]
SHARED_CASES += itertools.product(["h2o+ada", "keydiff+pyramid+ada", "snapkv+critical+ada"], ["q8_0", "q4_0"])

SHARED_DAILY = [  # every way to share, of bases that read each kind of array; tests/unit/test_allot.py has all others
    "keydiff+ada",
    "h2o+ada",
    "snapkv(window=20)+ada",
    "snapkv+critical+ada",
    "h2o+caote+ada",
    "h2o+ada(safeguard=0)",
    "keydiff(rope=off)+ada",
    "random+pyramid",
    "snapkv+pyramid",
    "ahakv+ada(safeguard=0)+pyramid(beta=5)",
]
SHARED_DAILY_CASES = [(spec, "f16") for spec in SHARED_DAILY]
SHARED_DAILY_CASES += [("keydiff+pyramid+ada", "q8_0"), ("snapkv+critical+ada", "q4_0")]

SHAPE = {"n_layer": 2, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "head_dim": 64}
BUDGET = 100


def w_o_of(path, shape, policy):
    """W_O by layer and KV head, where the policy reads it."""
    if "wo_norm" not in policy.reads:
        return None
    return output_projections(path, shape["n_head"], shape["n_head_kv"], shape["head_dim"])


def rope_of(path, shape):
    """Return the frequencies and pairs by which RoPE turns the keys of every layer of a tiny llama."""
    return [(frequencies_of(path), ROPE_PAIRS["llama"])] * shape["n_layer"]


def read_and_check(path, shape, spec, n_tokens=280, pinned=(), **options):
    """Read, then generate the last 48 tokens; returns how many cells of each head stayed, compaction by compaction:
    (compactions, n_layer, n_head_kv)."""
    heads = {"n_layer": shape["n_layer"], "n_head_kv": shape["n_head_kv"]}
    reference = Reference(**heads, w_o=w_o_of(path, shape, parse_policy(spec)), rope=rope_of(path, shape))
    tokens = np.random.default_rng(5).integers(3, 250, n_tokens).tolist()
    options = {"policy": spec, "budget": BUDGET, "block": 32, "recent": 10} | options
    with recorded_runtime(path, **heads, before_compaction=reference, **options) as run:
        run.runtime.block_loop.pinned = pinned
        run.read(tokens[:-48])
        for token in tokens[-48:]:
            run.step(token)
        assert len(run.compactions) >= 5
        reference.check(run.compactions)
        n_kept = np.array([[list(map(len, layer)) for layer in kept] for _, kept in run.compactions])
        assert run.runtime.block_loop.cache.budgets() == n_kept[-1].tolist()
    return n_kept


@pytest.mark.parametrize(
    ("spec", "kv_type"),
    by_night(CASES, [case for case in CASES if case[0] not in VARIANTS or case[0] in GIVEN_MORE]),
)
def test_kept_positions_are_those_of_the_reference(tiny_model, spec, kv_type):
    path = tiny_model(**SHAPE, n_ctx_train=1024, quantization="Q8_0" if kv_type == "q8_0" else "F32")
    assert (read_and_check(path, SHAPE, spec, kv_type=kv_type)[-1] == BUDGET).all()


@pytest.mark.parametrize(("spec", "kv_type"), by_night(SHARED_CASES, SHARED_DAILY_CASES))
def test_heads_that_share_keep_what_the_reference_keeps(uneven_model, spec, kv_type):
    n_kept = read_and_check(uneven_model, UNEVEN, spec, kv_type=kv_type, pinned=((40, 50),), threads=2)
    assert n_kept[-1].sum() == BUDGET * n_kept[-1].size
    by_layer = n_kept[-1].mean(axis=1)
    if "pyramid" in spec:
        assert (np.diff(by_layer) < -20).all()
    else:
        assert (by_layer == BUDGET).all()
    most = np.ptp(n_kept, axis=2).max(axis=0)  # largest difference between a layer's heads, after any compaction
    assert (most > 0).all() if "ada" in spec else (most == 0).all()


@pytest.mark.parametrize(("lead", "may_exchange"), [(1e-6, True), (1e-4, False)])
def test_only_cells_that_float32_cannot_tell_apart_may_stand_for_each_other(lead, may_exchange):
    """Four cells for two heads; the last to get in leads the first that does not, a cell of the other head."""
    rows = {"queries": np.zeros((1, 1, 8)), "query_positions": np.array([4])}
    heads = [
        Head(keys=np.zeros((4, 8)), positions=np.arange(4), accumulated=np.array(scores), budget=2, **rows)
        for scores in ([9, 8, 3 + 3 * lead, 1], [9, 3, 2, 1])
    ]
    choice = Choice(parse_policy("h2o+ada(safeguard=0)"), Protection(), [heads], largest=4)
    first, second, third = np.array([0]), np.array([0, 1]), np.array([0, 1, 2])
    choice.check([[third, first]])
    with nullcontext() if may_exchange else pytest.raises(AssertionError, match=r"the reference has \[3, 1\]"):
        choice.check([[second, second]])
    for impossible in ([first, third], [third, second], [np.array([0, 1, 3]), first]):
        with pytest.raises(AssertionError):
            choice.check([impossible])


def test_no_head_keeps_more_than_it_may(tmp_path):
    """Of those that look at all cells alike, though nobody else needs so many: here the trained context is short."""
    path = make_uneven(tmp_path / "model.gguf", n_ctx_train=256)
    n_kept = read_and_check(path, UNEVEN, "tova+pyramid+ada(safeguard=0)", budget=40, n_tokens=400)
    assert n_kept.max() == 3 * 40
    assert n_kept[-1].sum() == 40 * n_kept[-1].size


PROBED = [
    "keydiff",
    "snapkv",
    "snapkv(window=64, kernel=15)+critical",
    "snapkv(window=64, kernel=15, pool_rows=on, aggregate=max)+critical(epsilon=0)",
    "tova",
    "h2o",
    "ahakv",
    "snapkv+caote",
    "snapkv+critical",
    "snapkv+critical+ada",
    "h2o+ada",
]


@pytest.mark.parametrize(
    ("spec", "kv_type"),
    by_night(list(itertools.product(PROBED, ["f16", "q8_0"])), diagonal(PROBED, ["f16", "q8_0"])),
)
def test_a_probe_keeps_what_the_reference_keeps_by_its_queries(tiny_model, uneven_model, spec, kv_type):
    """Focus: the probe's queries score, its cells are gone, and reading goes on as if it had not been.

    They score again until 128 tokens have come, unless what they gave adds up with the cell, and not at the last block.
    """
    shape = UNEVEN if "ada" in spec else SHAPE
    path = uneven_model if "ada" in spec else tiny_model(**SHAPE, n_ctx_train=1024)
    heads = {"n_layer": shape["n_layer"], "n_head_kv": shape["n_head_kv"]}
    tokens = np.random.default_rng(6).integers(3, 250, 300).tolist()
    probe = np.random.default_rng(7).integers(3, 250, 40).tolist()  # more than a block: fed in two parts
    w_o = output_projections(path, shape["n_head"], shape["n_head_kv"], shape["head_dim"])
    reference = Reference(**heads, w_o=w_o, rope=rope_of(path, shape))

    scored = []

    def look(cache, policy, budget, keywords):
        n_held = [cache.head_cells(layer, g)[0] for layer, g in np.ndindex(*heads.values())]
        assert cache.n_cells == -(-sum(n_held) // len(n_held)) <= budget + 32
        assert cache.positions(1, 1)[-1] == cache.n_past - 1
        if keywords["probed"]:
            rows = cache.queries(0, probed=True)[1]
            assert rows.tolist() == list(range(cache.n_past, cache.n_past + len(probe)))
            scored.append(policy)
        reference(cache, policy, budget, keywords)

    options = {"policy": spec, "budget": BUDGET, "block": 32, "kv_type": kv_type, "recent": 10}
    with recorded_runtime(path, **heads, before_compaction=look, **options) as run:
        block_loop = run.runtime.block_loop
        assert block_loop.read(tokens, lambda n: True, probe)
        assert len(scored) >= 6
        again = not run.runtime.options.parsed_focus.carries
        assert block_loop.work.probes == len({*range(0, len(scored), 5 if again else 1), len(scored) - 1})
        assert block_loop.cache.n_past == len(tokens)
        assert block_loop.cache.n_cells == BUDGET + 16  # half of the spare cells hold the last tokens
        reference.check(run.compactions)


@pytest.mark.parametrize(
    ("spec", "focus_policy", "options"),
    [
        ("snapkv+caote", "snapkv(window=20, kernel=15)+critical", {}),
        ("tova", "h2o+ada", {"reposition": "always"}),
        ("snapkv(window=20)+ada", "tova", {}),
    ],
)
def test_one_policy_scores_by_the_probe_and_another_what_is_said(uneven_model, spec, focus_policy, options):
    """Both read attention: that of the probe while a text is read, then that of the newest tokens."""
    heads = {"n_layer": UNEVEN["n_layer"], "n_head_kv": UNEVEN["n_head_kv"]}
    rng = np.random.default_rng(8)
    tokens, probe = (rng.integers(3, 250, n).tolist() for n in (300, 40))
    reference = Reference(**heads, w_o=w_o_of(uneven_model, UNEVEN, parse_policy("tova+critical")))
    scored = []

    def look(cache, policy, budget, keywords):
        scored.append((policy.spec, keywords["probed"]))
        reference(cache, policy, budget, keywords)

    options = {"policy": spec, "focus_policy": focus_policy, "budget": BUDGET, "block": 32, "recent": 10} | options
    with recorded_runtime(uneven_model, **heads, before_compaction=look, **options) as run:
        assert run.runtime.block_loop.read(tokens, lambda n: True, probe)
        for token in rng.integers(3, 250, 80).tolist():
            run.step(token)
        reference.check(run.compactions)
    assert list(dict.fromkeys(scored)) == [(focus_policy, True), (spec, False)]


def attended_most(keys, queries):
    """A scorer of one's own: a key's largest product with the mean query, so that parts of a probe differ."""
    means = queries.mean(axis=1).reshape(len(keys), -1, queries.shape[-1])  # by KV head
    return np.einsum("hnd,hgd->hgn", keys, means).max(axis=1)


PARTS = (7, 18, 40)


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("snapkv", {}),
        ("snapkv(window=64, kernel=15)+critical", {}),
        ("snapkv(window=64, kernel=61, aggregate=max)", {}),
        ("snapkv(window=64, kernel=61, aggregate=max)", {"kv_type": "q4_0"}),
        ("snapkv(window=9)", {"reposition": "always"}),
        ("snapkv(aggregate=max, pool_rows=on)", {}),
        ("snapkv+critical+ada", {}),
        ("tova+caote", {"kv_type": "q8_0"}),
        ("h2o+ada", {}),
        ("ahakv+fastcaote", {}),
        ("ahakv(recent_accumulation=off)", {}),
        ("attended", {}),
        ("attended", {"kv_type": "q8_0"}),
    ],
)
def test_each_part_of_a_probe_keeps_what_it_needs(tiny_model, uneven_model, spec, options):
    """A cell has the largest of the scores that the parts give it; as if each had scored by itself."""
    shape = UNEVEN if "ada" in spec else SHAPE
    path = uneven_model if "ada" in spec else tiny_model(**SHAPE, n_ctx_train=1024)
    heads = {"n_layer": shape["n_layer"], "n_head_kv": shape["n_head_kv"]}
    tokens = np.random.default_rng(6).integers(3, 250, 300).tolist()
    probe = np.random.default_rng(7).integers(3, 250, PARTS[-1]).tolist()
    if spec == "attended":
        policies.register("attended", attended_most, rows=64)
    try:
        w_o = output_projections(path, shape["n_head"], shape["n_head_kv"], shape["head_dim"])
        reference = Reference(**heads, w_o=w_o, rope=rope_of(path, shape))
        reference.heads.part_ends = PARTS
        options = {"policy": spec, "budget": BUDGET, "block": 32, "recent": 10} | options
        with recorded_runtime(path, **heads, before_compaction=reference, **options) as run:
            assert run.runtime.block_loop.read(tokens, lambda n: True, probe, part_ends=PARTS)
            reference.check(run.compactions)
            by_parts = run.kept()
        with recorded_runtime(path, **heads, **options) as run:
            assert run.runtime.block_loop.read(tokens, lambda n: True, probe)
            both = zip(itertools.chain(*by_parts), itertools.chain(*run.kept()), strict=True)
            assert any(parts.tolist() != whole.tolist() for parts, whole in both)
    finally:
        if spec == "attended":
            policies.unregister("attended")


@pytest.mark.parametrize("ends", [(3, 5), (0, 4), (2, 2, 4), (3, 2, 4), (5,), ()])
def test_parts_of_a_probe_end_one_after_the_other(tiny_model, ends):
    with recorded_runtime(tiny_model(n_layer=2), n_layer=2, n_head_kv=2, budget=64, block=32) as run:
        cache = run.runtime.block_loop.cache
        cache.feed([5, 6, 7, 8])
        before = cache.snapshot().data
        if ends:
            with pytest.raises(edgekv.ConfigError, match="parts of a probe"):
                cache.probe([5, 6, 7, 8], ends)
        else:
            cache.probe([5, 6, 7, 8], ends)  # one part
        np.testing.assert_array_equal(cache.snapshot().data, before)


def far_from_mean(keys, positions):
    """Only a true position gives the score of this cell."""
    return np.linalg.norm(keys, axis=2) + positions % 7


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("own", ["function", "graph"])
def test_a_scorer_of_ones_own_after_heads_that_shared_cells(uneven_model, tmp_path, own, kv_type):
    """Focus made heads of a layer unlike; the scorer that goes on with them keeps what it should of each."""
    if own == "graph":
        pytest.importorskip("onnxruntime")
        export_policy = pytest.importorskip("exported_policies").export_policy
        export_policy("keydiff", tmp_path / "own.onnx")  # one that reads no queries: else it would focus itself
    else:
        policies.register("own", far_from_mean)
    spec = f"onnx:{tmp_path / 'own.onnx'}" if own == "graph" else "own"
    heads = {"n_layer": UNEVEN["n_layer"], "n_head_kv": UNEVEN["n_head_kv"]}
    rng = np.random.default_rng(8)
    tokens, probe = (rng.integers(3, 250, n).tolist() for n in (300, 40))
    reference, n_held = Reference(**heads), []

    def look(cache, policy, budget, keywords):
        n_held.append([cache.head_cells(layer, g)[0] for layer, g in np.ndindex(*heads.values())])
        reference(cache, policy, budget, keywords)

    options = {"policy": spec, "focus_policy": "h2o+ada", "budget": BUDGET, "block": 32, "kv_type": kv_type}
    try:
        with recorded_runtime(uneven_model, **heads, before_compaction=look, recent=10, **options) as run:
            assert run.runtime.block_loop.read(tokens, lambda n: True, probe)
            del n_held[:]
            for token in rng.integers(3, 250, 80).tolist():
                run.step(token)
            assert len(set(n_held[0])) > 3  # the first of them finds the heads as focus left them
            reference.check(run.compactions)
    finally:
        if own == "function":
            policies.unregister("own")
