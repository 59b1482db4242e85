"""Rows on a device are scored, moved and turned by graphs that the device computes. Here ggml's CPU backend computes
them: what is kept, and every byte of it, is what the host's own kernels leave."""

from __future__ import annotations

import ctypes as c

import numpy as np
import pytest
import test_before_rope
import test_kept_sets
import test_reposition
import test_snapshot
from diagonals import by_night, diagonal
from recorded import recorded_runtime
from reference_choice import Reference
from test_kept_sets import BUDGET, SHAPE, read_and_check
from test_ragged import rows, tokens_of
from uneven import UNEVEN

import edgekv
from edgekv.binding import library
from edgekv.binding.cache import Cache, CacheSnapshot
from edgekv.binding.structs import CacheParams
from edgekv.planning import estimate
from edgekv.policies import parse_policy
from edgekv.policies.wrappers import weights_of

SCORED = [
    "keydiff",
    "keydiff(kernel=15)",
    "keydiff(window=0.2)",
    "keydiff(anchor=mean)",
    "keydiff(anchor=pairwise)",
    "keydiff(metric=dot)",
    "keydiff(anchor=mean, metric=euclidean)",
    "keydiff(rope=off)",
    "keydiff(rope=off, kernel=15, metric=dot)",
    "l2norm",
    "l2norm(kernel=5)",
    "snapkv",
    "snapkv(window=8, kernel=15, pool=max)",
    "snapkv(window=20)",
    "snapkv(window=40, kernel=15)",
    "snapkv(aggregate=max)",
    "snapkv(window=40, kernel=15, aggregate=max)",
    "snapkv(window=40, kernel=61, aggregate=max)",
    "snapkv(window=20, kernel=1, pool_rows=on, aggregate=max)",
    "tova",
    "h2o",
    "ahakv",
    "ahakv(r=20, floor=off)",
    "ahakv(value_prior=off, recent_accumulation=off)",
    "ahakv+caote",
    "snapkv+caote",
    "tova+caote",
    "h2o+fastcaote",
    "keydiff+caote",
    "snapkv+critical",
    "tova+critical(alpha=0.25, epsilon=0)",
    "snapkv(window=20)+caote+critical",
]
WITHOUT_ROWS = ["sink", "random"]
SHARED = [  # heads or layers differ in how many cells they keep
    "keydiff+ada",
    "keydiff(anchor=pairwise)+pyramid",
    "l2norm+ada",
    "snapkv(window=20)+ada",
    "tova+ada(safeguard=0.7)",
    "h2o+ada",
    "keydiff+pyramid+ada",
    "ahakv+pyramid",
    "snapkv(window=20)+caote+ada",
    "snapkv+critical+ada",
]
SHARED_CASES = diagonal(SHARED, ["f16", "q8_0"])
STAGED = ["keydiff(anchor=median)", "snapkv(pool_rows=on)"]
KV_TYPES = ["f16", "q8_0", "q4_0"]
PROBED = diagonal(["keydiff", "snapkv", "tova", "h2o", "snapkv+critical+ada", "h2o+ada"], ["f16", "q8_0"])
CASES = diagonal(SCORED + WITHOUT_ROWS + STAGED, KV_TYPES, whole=["keydiff", "snapkv"])
EACH_GRAPH = [  # parts of a graph that the policies of SAME_CASES have not, which leave the same bytes as the host
    "keydiff(anchor=pairwise)",
    "keydiff(rope=off, kernel=15, metric=dot)",
    "snapkv(window=40, kernel=61, aggregate=max)",
    "ahakv(r=20, floor=off)",
    "h2o+fastcaote",
    "snapkv(window=20)+caote+critical",
]
HEADS = {"n_layer": 2, "n_head_kv": 2}
UNEVEN_HEADS = {name: UNEVEN[name] for name in HEADS}


@pytest.fixture
def stage(monkeypatch):
    """A function that says how runtimes work on their rows from now on."""

    def stage(how):
        monkeypatch.setenv("EDGEKV_STAGING", how)

    return stage


@pytest.fixture
def by_host(device):
    """Return how the host works on rows: where they lie, or in copies of a device's rows."""
    return "auto" if device == "host" else "copies"


def read(path, staging, stage, spec, kv_type, reposition=False, heads=HEADS):
    """Logits, kept positions, kept rows and work of a text that is read, then gone on with token by token."""

    def turn(cache, policy, budget, keywords):
        keywords["reposition"] = reposition

    stage(staging)
    tokens = tokens_of(300)
    options = {"policy": spec, "budget": BUDGET, "block": 32, "recent": 10, "kv_type": kv_type}
    with recorded_runtime(path, **heads, before_compaction=turn, **options) as run:
        run.read(tokens[:-40])
        logits = [run.step(token) for token in tokens[-40:]]
        block_loop = run.runtime.block_loop
        assert block_loop.work.evictions >= 6
        assert (block_loop.cache.rope_past < block_loop.cache.n_past) == reposition
        held = [
            [block_loop.cache.rows(*at, values=values)[0].tobytes() for values in (False, True)]
            for at in np.ndindex(*heads.values())
        ]
        params = estimate.checked_params(run.runtime.context, run.runtime.options)
        most_bytes = library.load().edgekv_cache_estimate_bytes(c.byref(block_loop.cache.shape), c.byref(params))
        assert block_loop.cache.bookkeeping_bytes <= most_bytes
        return logits, [[kept.tolist() for kept in layer] for layer in run.kept()], held, block_loop.work


@pytest.mark.parametrize(("spec", "kv_type"), by_night(CASES, [case for case in CASES if case[0] in EACH_GRAPH]))
def test_the_reference_keeps_the_same(tiny_model, stage, spec, kv_type):
    stage("graphs")
    path = tiny_model(**SHAPE, n_ctx_train=1024)
    assert (read_and_check(path, SHAPE, spec, kv_type=kv_type)[-1] == BUDGET).all()


LEFT_THE_SAME = [
    "keydiff",
    "keydiff(rope=off)",
    "l2norm",
    "snapkv",
    "snapkv(aggregate=max)",
    "sink",
    "ahakv",
    "tova+caote",
    "snapkv+critical",
]
SAME_CASES = diagonal(LEFT_THE_SAME, KV_TYPES, whole=["keydiff"])
SAME_DAILY = [("keydiff", "q4_0")]
BY_DAY = ("keydiff(rope=off)", "snapkv(aggregate=max)", "ahakv", "tova+caote", "snapkv+critical")
SAME_DAILY += [case for case in SAME_CASES if case[0] in BY_DAY]


@pytest.mark.parametrize(("spec", "kv_type"), by_night(SAME_CASES, SAME_DAILY))
def test_graphs_and_host_leave_the_same_bytes(tiny_model, stage, by_host, spec, kv_type):
    path = tiny_model(**SHAPE, n_ctx_train=1024)
    *expected, here = read(path, by_host, stage, spec, kv_type)
    *found, by_graphs = read(path, "graphs", stage, spec, kv_type)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert (here.crossed_bytes > 0, here.staged_layers > 0) == (by_host == "copies",) * 2
    assert by_graphs.crossed_bytes > 0 == by_graphs.staged_layers


@pytest.mark.parametrize(("spec", "kv_type"), by_night(SHARED_CASES, SHARED_CASES[-2:]))
def test_heads_that_share_keep_what_the_reference_keeps(uneven_model, stage, spec, kv_type):
    stage("graphs")
    test_kept_sets.test_heads_that_share_keep_what_the_reference_keeps(uneven_model, spec, kv_type)


@pytest.mark.parametrize(("spec", "kv_type"), diagonal(["keydiff+ada", "keydiff+pyramid+ada", "snapkv+ada"], KV_TYPES))
def test_heads_that_share_are_left_the_same_bytes(uneven_model, stage, by_host, spec, kv_type):
    """Scored head by head, and closed up where they lie."""
    logits, *expected, _ = read(uneven_model, by_host, stage, spec, kv_type, heads=UNEVEN_HEADS)
    same_logits, *found, by_graphs = read(uneven_model, "graphs", stage, spec, kv_type, heads=UNEVEN_HEADS)
    assert found == expected
    np.testing.assert_array_equal(same_logits, logits)
    assert len({len(kept) for layer in found[0] for kept in layer}) > 1
    assert by_graphs.crossed_bytes > 0 == by_graphs.staged_layers


@pytest.mark.parametrize("spec", by_night(STAGED, [STAGED[0]]))
def test_what_has_no_graph_is_scored_in_a_copy_and_said(tiny_model, stage, spec):
    path = tiny_model(**SHAPE, n_ctx_train=1024)
    *expected, copied = read(path, "copies", stage, spec, "q8_0")
    *found, work = read(path, "graphs", stage, spec, "q8_0")
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert work.staged_layers == copied.staged_layers > 0
    assert work.crossed_bytes < copied.crossed_bytes  # rows still move where they lie


def test_rows_that_are_no_whole_words_move_in_a_copy(tiny_model, stage, by_host):
    """Of q8_0, an odd number of blocks of 34 bytes: no operation of ggml's moves them byte for byte."""
    path = tiny_model(n_layer=2, n_embd=128, n_head=4, n_head_kv=2, head_dim=32, n_ctx_train=1024)
    *expected, _ = read(path, by_host, stage, "keydiff", "q8_0")
    *found, work = read(path, "graphs", stage, "keydiff", "q8_0")
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, other)
    assert work.staged_layers == 2 * work.evictions


@pytest.mark.parametrize("kv_type", by_night(["f16", "q8_0", "q4_0"], ["q8_0"]))
def test_every_kept_row_survives_every_move(tiny_model, stage, kv_type):
    """Also where more rows move than are listed at once."""
    stage("graphs")
    path = tiny_model(n_layer=3, n_embd=128, n_head=4, n_head_kv=2, head_dim=64, n_ctx_train=4096)
    rng = np.random.default_rng(5)
    options = {"policy": "random", "budget": 96, "block": 32, "kv_type": kv_type}
    with recorded_runtime(path, n_layer=3, n_head_kv=2, **options) as run:
        run.runtime.block_loop.cache.close()
        cache = run.runtime.block_loop.cache = Cache(run.runtime.context, CacheParams())
        policy = parse_policy("random(seed=3)")
        for _ in range(40):
            cache.feed(tokens_of(int(rng.integers(1, min(33, cache.n_free + 1)))))
            before, budget = rows(cache), int(rng.integers(8, 97))
            result = cache.compact(policy, budget, n_sink=2, recent=4)
            after = rows(cache)
            assert after.items() <= before.items()
            assert len(after) == 3 * 2 * min(budget, len(before) // 6)
            assert result.n_staged == 0


@pytest.mark.each_by_day("kv_type")
@pytest.mark.filterwarnings("ignore:kv_type=q4_0 may spoil")  # keys of qwen2 have biases
@pytest.mark.parametrize(("shape", "kv_type"), diagonal(test_reposition.SHAPES, ["f16", "q8_0", "q4_0"]))
def test_keys_turn(tiny_model, stage, shape, kv_type):
    stage("graphs")
    test_reposition.test_logits_equal_a_transformer_that_turns_the_same_keys(tiny_model, shape, kv_type)


@pytest.mark.each_by_day("reposition", "kv_type")
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("reposition", ["always", "never"])
def test_keys_are_turned_back(tiny_model, stage, reposition, kv_type):
    stage("graphs")
    test_before_rope.test_rows_are_turned_back_from_where_they_are_now(tiny_model, reposition, kv_type)


@pytest.mark.parametrize(
    "name",
    by_night(["smollm3", "glm4moe", "qwen2vl", "deepseek2", "gemma3"], ["qwen2vl", "deepseek2"]),
)
def test_keys_of_every_model_are_turned_back(tmp_path, stage, name):
    """Keys that no graph turns are copied to the host."""
    stage("graphs")
    test_before_rope.test_every_model_whose_keys_turn(tmp_path, name)


@pytest.mark.parametrize("kv_type", [pytest.param("f16", marks=pytest.mark.nightly), "q8_0"])
def test_keys_of_heads_of_different_lengths_turn(tiny_model, stage, kv_type):
    stage("graphs")
    test_reposition.test_heads_of_different_lengths_end_at_one_position(tiny_model, kv_type)


@pytest.mark.parametrize(("kv_type", "bound"), by_night([("f16", 0.002), ("q8_0", 0.1)], [("q8_0", 0.1)]))
def test_turned_keys_need_not_cross(tiny_model, stage, by_host, kv_type, bound):
    path = tiny_model(**SHAPE, n_ctx_train=1024)
    logits, *kept, _ = read(path, by_host, stage, "sink", kv_type, reposition=True)
    found, *also_kept, work = read(path, "graphs", stage, "sink", kv_type, reposition=True)
    assert kept[0] == also_kept[0]
    assert work.staged_layers == 0
    # now and then a value is rounded the other way: the host's cosines come from float64
    np.testing.assert_allclose(found, logits, rtol=0, atol=bound * np.std(logits))


@pytest.mark.parametrize(
    ("spec", "kv_type"),
    by_night(PROBED, [case for case in PROBED if case[0] in ("h2o", "snapkv+critical+ada")]),
)
def test_queries_of_a_probe_score(tiny_model, uneven_model, stage, spec, kv_type):
    """Also again, turned to where the probe would come after the next block."""
    stage("graphs")
    test_kept_sets.test_a_probe_keeps_what_the_reference_keeps_by_its_queries(tiny_model, uneven_model, spec, kv_type)


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        pytest.param("snapkv", {}, marks=pytest.mark.nightly),
        ("snapkv(window=64, kernel=61, aggregate=max)", {"kv_type": "q4_0"}),
        ("snapkv(window=9)", {"reposition": "always"}),
        pytest.param("snapkv+critical+ada", {}, marks=pytest.mark.nightly),
        pytest.param("tova+caote", {"kv_type": "q8_0"}, marks=pytest.mark.nightly),
        pytest.param("h2o+ada", {}, marks=pytest.mark.nightly),
        ("ahakv", {}),
        pytest.param("snapkv(aggregate=max, pool_rows=on)", {}, marks=pytest.mark.nightly),
        ("attended", {"kv_type": "q8_0"}),
    ],
)
def test_parts_of_a_probe_score(tiny_model, uneven_model, stage, spec, options):
    """Each by itself; the last two by rows and queries that are copied to the host."""
    stage("graphs")
    test_kept_sets.test_each_part_of_a_probe_keeps_what_it_needs(tiny_model, uneven_model, spec, options)


@pytest.mark.parametrize(
    ("shape", "kv_type"),
    by_night([("llama", "f16"), ("llama", "q8_0"), ("qwen3", "f16"), ("qwen3", "q8_0")], [("qwen3", "q8_0")]),
)
def test_queries_turn_with_the_keys(tiny_model, stage, shape, kv_type):
    stage("graphs")
    test_reposition.test_queries_that_are_there_already_are_turned_with_the_keys(tiny_model, shape, kv_type)
    test_reposition.test_queries_of_a_probe_are_turned_to_where_it_would_come_now(tiny_model, shape, (kv_type, True))


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(
    ("policy", "kv_type"), [pytest.param("keydiff", "f16", marks=pytest.mark.nightly), ("snapkv+ada", "q8_0")]
)
def test_snapshots(open_runtime, stage, monkeypatch, policy, kv_type):
    stage("graphs")
    test_snapshot.test_a_restored_session_goes_on_as_one_that_never_left(open_runtime, monkeypatch, policy, kv_type)
    test_snapshot.test_a_text_beyond_the_trained_context(open_runtime, monkeypatch, policy, kv_type)


@pytest.mark.each_by_day("wrapper", "kv_type")
@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("wrapper", ["caote", "fastcaote"])
def test_a_cell_that_holds_most_of_the_weight(tiny_model, stage, wrapper, kv_type):
    """caote measures its value from the mean of the others, which takes a second graph."""
    stage("graphs")
    path = tiny_model(**SHAPE, n_ctx_train=1024)
    policy = f"keydiff(metric=dot, anchor=mean)+{wrapper}"
    reference = Reference(**HEADS)
    options = {"budget": BUDGET, "block": 32, "recent": 10, "kv_type": kv_type}
    with recorded_runtime(path, **HEADS, policy=policy, before_compaction=reference, **options) as run:
        run.read(tokens_of(300))
        assert run.runtime.block_loop.work.staged_layers == 0
        reference.check(run.compactions)
    heads = [head for choice in reference.choices for layer in choice.layers for head in layer]
    weights = [weights_of(parse_policy(policy).inner, head) for head in heads]
    assert max(one.max() / one.sum() for one in weights) > 0.5


def crossed_at_an_eviction(tiny_model, stage, how, policy, kv_type):
    """Bytes between host and device, of 30 heads that go from 1,152 cells to 1,024, once 128 tokens are new."""
    path = tiny_model(n_layer=30, n_embd=64, n_head=1, n_head_kv=1, head_dim=64, n_ctx_train=2048)
    stage(how)
    options = {"policy": policy, "budget": 1024, "block": 128, "kv_type": kv_type, "focus": False}
    with recorded_runtime(path, n_layer=30, n_head_kv=1, **options) as run:
        cache = run.runtime.block_loop.cache
        for i in range(9):
            cache.feed(tokens_of(128, i))
        cache.compact(parse_policy(policy), 1024, n_sink=4)
        cache.feed(tokens_of(128, 9))
        return cache.compact(parse_policy(policy), 1024, n_sink=4).crossed_bytes


@pytest.mark.parametrize(
    ("policy", "kv_type", "share"),
    [
        ("keydiff", "q8_0", 0.02),
        pytest.param("snapkv(aggregate=max)", "f16", 0.02, marks=pytest.mark.nightly),
        pytest.param("ahakv", "f16", 0.03, marks=pytest.mark.nightly),
        pytest.param("snapkv+caote", "f16", 0.06, marks=pytest.mark.nightly),
        pytest.param("keydiff", "f16", 0.01, marks=pytest.mark.nightly),
        pytest.param("keydiff(rope=off)", "f16", 0.02, marks=pytest.mark.nightly),
        pytest.param("snapkv", "f16", 0.02, marks=pytest.mark.nightly),
        pytest.param("snapkv+critical", "f16", 0.02, marks=pytest.mark.nightly),
    ],
)
def test_scores_cross_and_rows_do_not(tiny_model, stage, policy, kv_type, share):
    """Bytes between host and device at an eviction, over those of copies."""
    copies, graphs = (crossed_at_an_eviction(tiny_model, stage, how, policy, kv_type) for how in ("copies", "graphs"))
    print(f"{policy}, {kv_type}: {graphs} of {copies} bytes, {graphs / copies:.2%}")
    assert 0 < graphs <= share * copies


@pytest.mark.parametrize(
    "spec",
    by_night(
        ["keydiff", "l2norm", "tova", "snapkv(window=40)", "snapkv(window=40, aggregate=max)"],
        ["l2norm", "snapkv(window=40, aggregate=max)"],
    ),
)
def test_rows_that_are_no_numbers_are_told_and_nothing_is_evicted(tiny_model, stage, spec):
    stage("graphs")
    path = tiny_model(**SHAPE, n_ctx_train=1024)
    with recorded_runtime(path, **HEADS, policy=spec, budget=BUDGET, block=32, recent=10, kv_type="f16") as run:
        cache = run.runtime.block_loop.cache
        for i in range(4):
            cache.feed(tokens_of(32, i))
        data = cache.snapshot().data.copy()
        data[-(len(data) // 3) :] = 255  # NaN in f16
        cache.restore(CacheSnapshot(data))
        before = cache.positions(1, 1)
        with pytest.raises(edgekv.NativeError, match="not finite"):
            cache.compact(parse_policy(spec), BUDGET, n_sink=4)
        np.testing.assert_array_equal(cache.positions(1, 1), before)


def test_new_values_cross_for_their_norms_and_old_ones_do_not(tiny_model, stage):
    """No graph takes these norms: rows of 64 elements in f16, of 128 tokens and 30 heads."""
    policies = ("snapkv", "snapkv+critical")
    plain, critical = (crossed_at_an_eviction(tiny_model, stage, "copies", policy, "f16") for policy in policies)
    assert critical - plain == 128 * 30 * 64 * 2


PROJECTIONS = [("F16", False), ("Q4_0", False), ("Q8_0", False), ("Q4_0", True)]
PROJECTED = diagonal(PROJECTIONS, ["f16", "q8_0"])


@pytest.mark.parametrize(("projections", "kv_type"), by_night(PROJECTED, PROJECTED[1::2]), ids=str)
def test_norms_by_quantised_projections(tiny_model, stage, projections, kv_type):
    """No graph can read weights that were repacked for the host's processor."""
    quantization, repack = projections
    stage("graphs")
    path = tiny_model(**SHAPE, n_ctx_train=1024, quantization=quantization)
    spec, options = "snapkv+critical", {"kv_type": kv_type, "repack": repack}
    read_and_check(path, SHAPE, spec, **options)
    with recorded_runtime(path, **HEADS, policy=spec, budget=BUDGET, block=32, recent=10, **options) as run:
        run.read(tokens_of(300))
        work, plan = run.runtime.block_loop.work, run.runtime.plan
    assert (work.staged_layers > 0) == (plan.parts.repacking > 0)
    assert plan.parts.repacking == 0 or repack


@pytest.mark.each_by_day("heads_differ", "kv_type")
@pytest.mark.parametrize("heads_differ", [False, True])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_norms_of_more_values_than_a_product_takes(tiny_model, uneven_model, stage, heads_differ, kv_type):
    """An eviction has 192 new values of each head, and a product takes 128. Norms decide what stays."""
    stage("graphs")
    spec = "snapkv+critical(alpha=0, epsilon=1)" + "+ada" * heads_differ
    path, shape = (uneven_model, UNEVEN) if heads_differ else (tiny_model(**SHAPE, n_ctx_train=2048), SHAPE)
    read_and_check(path, shape, spec, n_tokens=1500, block=192, kv_type=kv_type)
