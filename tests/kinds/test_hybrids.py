"""Models whose layers attend or keep a recurrent state: the rows of attention are evicted, the states go along.

Compared with llama.cpp itself: with its own cache where nothing is evicted, and with its own graph over hidden cells
(masked_cache.py) where something is. What remains is the order of sums, and in a quantised cache rounding.
"""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from exactness import DECODE, PREFILL, QUANTISED, WRONG, distance, error
from failing import failing_after
from masked_cache import masked_logits
from own_cache import own_cache
from recorded import recorded_runtime

import edgekv
from edgekv.binding import library
from edgekv.binding.model import Model
from edgekv.planning.estimate import cache_params_of

# llama.cpp's numbers of the layers that attend, and the KV heads of each
HYBRIDS = {"lfm2": ((2, 4), 1), "granitehybrid": ((2, 5), 2)}
N_PROMPT, N_STEPS = 384, 40
BUDGET = 96


def tokens_of(n, seed=1):
    return np.random.default_rng(seed).integers(3, 250, n).tolist()


def heads_of(name):
    layers, n_head_kv = HYBRIDS[name]
    return {"n_layer": len(layers), "n_head_kv": n_head_kv}


def read_and_step(run, tokens):
    """The logits (1 + N_STEPS, n_vocab) of the last prompt token and of every one after it."""
    return np.array([run.read(tokens[:N_PROMPT]), *map(run.step, tokens[N_PROMPT:])])


def own_logits(path, tokens, **options):
    with own_cache(path, n_cells=1024, **options) as own:
        return read_and_step(own, tokens)


def hidden_logits(name, path, tokens, visible, block):
    layers, _ = HYBRIDS[name]
    return masked_logits(path, tokens, visible, N_PROMPT // block * [block], N_STEPS + 1, layers=layers)


def shifted(run, visible):
    """What is visible, but for one head of one layer that kept its tokens' neighbours."""
    wrong, (fed, _) = visible.copy(), run.compactions[0]
    wrong[1, 0, fed:, : fed - 1] = visible[1, 0, fed:, 1:fed]
    return wrong


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("name", HYBRIDS)
def test_what_evicts_nothing_is_llama_cpps_own_cache(family_model, name, block, kv_type):
    path, tokens = family_model(name), tokens_of(N_PROMPT + N_STEPS)
    expected = own_logits(path, tokens, block=block, kv_type=kv_type)
    with recorded_runtime(path, budget=512, block=block, kv_type=kv_type, focus=False, **heads_of(name)) as run:
        found = read_and_step(run, tokens)
        assert run.compactions == []
    if kv_type == "f16":
        assert error(found[0], expected[0]) < PREFILL
        assert max(map(error, found[1:], expected[1:])) < DECODE
    else:
        assert max(map(error, found, expected)) < QUANTISED


@pytest.mark.parametrize("policy", ["keydiff", "snapkv", "keydiff+ada"])
@pytest.mark.parametrize("block", [32, 128])
@pytest.mark.parametrize("name", HYBRIDS)
def test_evicted_cells_are_as_if_hidden(family_model, name, block, policy):
    path, tokens = family_model(name), tokens_of(N_PROMPT + N_STEPS)
    options = {"policy": policy, "budget": BUDGET, "block": block, "focus": False}
    with recorded_runtime(path, **options, **heads_of(name)) as run:
        found = read_and_step(run, tokens)
        assert len(run.compactions) >= 2
    visible = run.visible(len(tokens))
    expected = hidden_logits(name, path, tokens, visible, block)
    assert error(found[0], expected[0]) < PREFILL
    assert max(map(error, found[1:], expected[1:])) < DECODE
    wrong = hidden_logits(name, path, tokens, shifted(run, visible), block)
    assert max(map(error, found[1:], wrong[1:])) > WRONG


@pytest.mark.parametrize("name", HYBRIDS)
def test_quantised_rows_are_off_by_their_rounding(family_model, name):
    """Eviction adds nothing to what q8_0 costs where nothing is evicted. The policy reads no keys: one set for both."""
    path, tokens = family_model(name), tokens_of(N_PROMPT + N_STEPS)
    options = {"policy": "random(seed=7)", "budget": BUDGET, "block": 64, "kv_type": "q8_0", "focus": False}
    with recorded_runtime(path, **options, **heads_of(name)) as run:
        found = read_and_step(run, tokens)
    exact, rounded = (own_logits(path, tokens, block=64, kv_type=kv_type) for kv_type in ("f16", "q8_0"))
    visible = run.visible(len(tokens))
    limit = 2 * distance(exact, rounded)
    assert distance(found, hidden_logits(name, path, tokens, visible, 64)) < limit
    assert distance(found, hidden_logits(name, path, tokens, shifted(run, visible), 64)) > limit


def test_kept_keys_are_moved_and_the_states_stay(family_model):
    """What keeps the newest tokens alone is moved as a whole, which relative positions do not show."""
    path, tokens = family_model("lfm2"), tokens_of(N_PROMPT + N_STEPS)
    options = {"policy": "sink(n_sink=0)", "budget": BUDGET, "block": 64, "focus": False}

    def move(cache, policy, budget, keywords):
        keywords |= {"reposition": True}

    with recorded_runtime(path, before_compaction=move, **options, **heads_of("lfm2")) as run:
        found = read_and_step(run, tokens)
        assert run.runtime.controller.cache.rope_past < BUDGET + 64 < run.runtime.controller.cache.n_past
    expected = hidden_logits("lfm2", path, tokens, run.visible(len(tokens)), 64)
    assert max(map(error, found, expected)) < 2 * DECODE  # keys are rounded once more at each of six evictions


@pytest.fixture(params=HYBRIDS)
def runtime(request, family_model):
    options = {"budget": 64, "block": 32, "recent": 16, "threads": 1, "policy": "keydiff", "focus": True}
    with edgekv.Runtime(family_model(request.param), memory="4GiB", **options) as opened:
        yield opened


def logits(runtime):
    pointer = ctypes.cast(runtime.context.logits(), ctypes.POINTER(ctypes.c_float))
    return np.ctypeslib.as_array(pointer, (runtime.model.n_vocab,)).copy()


def held(cache):
    """Everything that later feeds read, the states too."""
    return cache.snapshot().data


def test_a_probe_leaves_no_trace(runtime):
    cache, policy = runtime.controller.cache, runtime.options.parsed_policy
    tokens, found = tokens_of(200), []
    for probe in ([], tokens_of(50, seed=2)):
        cache.clear()
        for i in range(0, 160, 32):
            cache.feed(tokens[i : i + 32])
            before = held(cache)
            if probe:
                cache.probe(probe)
                np.testing.assert_array_equal(held(cache), before)
            cache.compact(policy, 64, recent=16)
        cache.feed(tokens[160:192], want_logits=True)
        found.append((logits(runtime), held(cache)))
    for without, with_probe in zip(*found, strict=True):
        np.testing.assert_array_equal(with_probe, without)


@pytest.mark.parametrize("probe", [False, True], ids=["feed", "probe"])
@pytest.mark.parametrize("n_before", [0, 32])
@pytest.mark.parametrize("n_calls", [0, 5, 20, 60])
def test_what_fails_changes_neither_cells_nor_states(runtime, n_calls, n_before, probe):
    cache, tokens = runtime.controller.cache, tokens_of(80)
    if n_before:
        cache.feed(tokens[:n_before])
    before = held(cache)
    fail = cache.probe if probe else cache.feed
    with failing_after(runtime, n_calls), pytest.raises(edgekv.NativeError, match="llama_decode"):
        fail(tokens[40:72])
    np.testing.assert_array_equal(held(cache), before)
    cache.feed(tokens[n_before : n_before + 20], want_logits=True)
    found = logits(runtime)
    cache.clear()
    if n_before:
        cache.feed(tokens[:n_before])
    cache.feed(tokens[n_before : n_before + 20], want_logits=True)
    np.testing.assert_array_equal(found, logits(runtime))


@pytest.mark.parametrize("isolated", [False, True], ids=["here", "isolated"])
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_session_goes_back_to_its_snapshot(family_model, monkeypatch, name, isolated):
    monkeypatch.setattr(Model, "is_end", lambda model, token: False)
    options = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "isolated": isolated}
    with edgekv.Runtime(family_model(name), **options) as rt, rt.session() as session:
        session.read("the old house by the river " * 20)
        snapshot = session.snapshot()
        first = list(session.ask("What is there?", max_tokens=12))
        n_past = session.n_past
        list(session.chat("And what else? " * 9, max_tokens=5))
        session.restore(snapshot)
        assert list(session.ask("What is there?", max_tokens=12)) == first
        assert session.n_past == n_past
        session.close()
        with rt.session() as other:  # an empty state
            other.restore(snapshot)
            assert list(other.ask("What is there?", max_tokens=12)) == first


@pytest.mark.parametrize("name", HYBRIDS)
def test_the_plan_counts_states_and_their_copy(family_model, name):
    with edgekv.Runtime(family_model(name), memory="4GiB", budget=64, block=32, threads=1) as rt:
        cache, memory = rt.controller.cache, rt.context.memory()
        assert memory.state_bytes == rt.plan.parts.state > 0
        assert memory.kv_bytes == rt.plan.parts.kv == rt.plan.n_cells * rt.plan.cell_bytes
        params = cache_params_of(rt.options)
        params.repositions = cache.repositions
        estimate = library.load().edgekv_cache_estimate_bytes(ctypes.byref(cache.shape), ctypes.byref(params))
        assert cache.bookkeeping_bytes == estimate <= rt.plan.parts.bookkeeping
        assert cache.shape.state_bytes <= memory.state_bytes < cache.shape.state_bytes + 4096
