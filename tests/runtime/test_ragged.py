"""Heads with budgets of their own, drawn anew at every compaction: nothing is lost, and the logits are those of a
float64 transformer that sees the same (layer, head, token) triples."""

from __future__ import annotations

import numpy as np
import pytest
from diagonals import diagonal
from recorded import recorded_runtime
from test_exactness import assert_exact

from edgekv.binding import structs
from edgekv.binding.cache import Cache
from edgekv.errors import BudgetError, ConfigError, NativeError
from edgekv.policies import parse_policy

N_LAYER = 3
N_PROMPT = 384
N_STEPS = 70
BUDGET = 64
BLOCK = 64
LOW, HIGH = 20, 3 * BUDGET  # cells that one head may be given

# query heads of a KV head -> n_head, n_head_kv
GQA = {1: (3, 3), 3: (6, 2), 4: (8, 2), 8: (16, 2)}


def draw_budgets(rng, n_held, mean):
    """Random budgets [layer][head] of that mean, or less where heads hold less: n_held (n_layer, n_head_kv)."""
    caps = np.minimum(n_held, HIGH).ravel()
    budgets = np.clip(rng.exponential(mean, caps.size), LOW, caps).astype(int)
    while lack := min(mean * caps.size, caps.sum()) - budgets.sum():
        able = np.flatnonzero(budgets < caps if lack > 0 else budgets > LOW)
        budgets[rng.choice(able, min(abs(lack), len(able)), replace=False)] += np.sign(lack)
    return budgets.reshape(n_held.shape).tolist()


def held(cache):
    """Cells of every head, (n_layer, n_head_kv)."""
    return np.array(
        [[cache.head_cells(layer, g)[0] for g in range(cache.shape.n_head_kv_max)] for layer in range(N_LAYER)]
    )


def rows(cache):
    """Return the bytes of every cell: (layer, head, position) -> bytes of its key and value."""
    found = {}
    for layer, g in np.ndindex(N_LAYER, cache.shape.n_head_kv_max):
        keys, values = (cache.rows(layer, g, values=values)[0] for values in (False, True))
        for position, key, value in zip(cache.positions(layer, g), keys, values, strict=True):
            found[layer, g, int(position)] = key.tobytes() + value.tobytes()
    return found


def tokens_of(n, seed=1):
    return np.random.default_rng(seed).integers(3, 250, n).tolist()


@pytest.fixture
def ragged_cache(tiny_model):
    """A cache of tiny heads that may differ, by cache type."""
    opened = []

    def open_cache(kv_type="f16"):
        path = tiny_model(n_layer=N_LAYER, n_ctx_train=4096, n_embd=128, n_head=4, n_head_kv=2, head_dim=64)
        run = recorded_runtime(
            path, n_layer=N_LAYER, n_head_kv=2, policy="random+pyramid", budget=BUDGET, block=BLOCK, kv_type=kv_type
        )
        runtime = run.__enter__().runtime
        runtime.block_loop.cache.close()
        cache = runtime.block_loop.cache = Cache(runtime.context, structs.CacheParams(ragged=True))
        opened.append(run)
        return cache

    yield open_cache
    for run in opened:
        run.__exit__(None, None, None)


@pytest.mark.each_by_day("group", "kv_type")
@pytest.mark.parametrize(("group", "kv_type"), diagonal(GQA, ["f16", "q8_0", "q4_0"], whole=[3]))
def test_logits_equal_a_transformer_that_masks_the_same_triples(tiny_model, group, kv_type):
    n_head, n_head_kv = GQA[group]
    path = tiny_model(n_layer=N_LAYER, n_ctx_train=1024, n_embd=128, n_head=n_head, n_head_kv=n_head_kv, head_dim=64)
    tokens, rng = tokens_of(N_PROMPT + N_STEPS), np.random.default_rng(group)

    def draw(cache, policy, budget, keywords):
        keywords["budgets"] = draw_budgets(rng, held(cache), budget)

    options = {"policy": "random(seed=7)+pyramid", "budget": BUDGET, "block": BLOCK, "kv_type": kv_type, "recent": 8}
    with recorded_runtime(path, n_layer=N_LAYER, n_head_kv=n_head_kv, before_compaction=draw, **options) as run:
        cache = run.runtime.block_loop.cache
        prefill = run.read(tokens[:N_PROMPT])
        decoded = [run.step(token) for token in tokens[N_PROMPT:]]
        assert len(run.compactions) >= 6
        assert np.sum(cache.budgets()) == BUDGET * N_LAYER * n_head_kv
        assert len({len(kept) for layer in run.compactions[-1][1] for kept in layer}) > 1

    assert_exact(path, tokens, run, N_PROMPT, prefill, decoded, kv_type)


@pytest.mark.parametrize("staging", ["auto", "copies", "graphs"])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_every_kept_row_survives_every_move(ragged_cache, kv_type, staging, monkeypatch):
    monkeypatch.setenv("EDGEKV_STAGING", staging)
    cache = ragged_cache(kv_type)
    policy, rng, tokens = parse_policy("random(seed=3)"), np.random.default_rng(5), tokens_of(40 * BLOCK)
    for i in range(40):
        cache.feed(tokens[BLOCK * i :][: rng.integers(1, BLOCK + 1)])
        before, budgets = rows(cache), draw_budgets(rng, held(cache), BUDGET)
        result = cache.compact(policy, BUDGET, n_sink=2, recent=4, budgets=budgets)
        assert staging == "copies" or result.n_staged == 0  # also of heads that close up
        after = rows(cache)
        assert held(cache).tolist() == budgets
        assert after.items() <= before.items()
        newest = cache.n_past - 1
        assert all((layer, g, p) in after for layer, g in np.ndindex(N_LAYER, 2) for p in (0, 1, newest))
    assert held(cache).sum() == BUDGET * N_LAYER * 2 == np.sum(cache.budgets())


def test_budgets_change_without_changing_what_there_is(ragged_cache):
    """From even to as uneven as can be and back: the same bytes hold them, and as many tokens fit."""
    cache = ragged_cache()
    policy, tokens = parse_policy("sink"), tokens_of(20 * BLOCK)
    n_bytes = cache.bookkeeping_bytes
    even = [[BUDGET] * 2] * N_LAYER
    steep = [[HIGH, LOW], [LOW, LOW], [LOW, 6 * BUDGET - HIGH - 4 * LOW]]
    for p0, budgets in zip(range(0, 16 * BLOCK, BLOCK), [even, even, steep, steep] * 4, strict=True):
        cache.feed(tokens[p0 : p0 + BLOCK])
        n_held = held(cache)
        cache.compact(policy, BUDGET, budgets=budgets)
        assert held(cache).tolist() == np.minimum(n_held, budgets).tolist()
        assert cache.n_free >= BLOCK
    assert cache.bookkeeping_bytes == n_bytes


@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
def test_the_longest_head_needs_no_buffer_beyond_the_plan(tiny_model, kv_type):
    """Buffers of graphs are as large as when the context was made, also where a head is copied as floats."""
    path = tiny_model(n_layer=N_LAYER, n_ctx_train=4096, n_embd=128, n_head=4, n_head_kv=2, head_dim=64)
    steep = [[HIGH, LOW], [LOW, LOW], [LOW, 6 * BUDGET - HIGH - 4 * LOW]]

    def draw(cache, policy, budget, keywords):
        keywords["budgets"] = np.minimum(held(cache), steep).tolist()

    options = {"policy": "random+pyramid", "budget": BUDGET, "block": BLOCK, "kv_type": kv_type, "recent": 8}
    with recorded_runtime(path, n_layer=N_LAYER, n_head_kv=2, before_compaction=draw, **options) as run:
        planned = run.runtime.context.memory().compute_bytes
        run.read(tokens_of(12 * BLOCK))
        assert held(run.runtime.block_loop.cache).max() >= HIGH
        assert run.runtime.context.memory().compute_bytes == planned


def test_impossible_budgets_are_refused_and_change_nothing(ragged_cache, tiny_model):
    cache = ragged_cache()
    policy = parse_policy("sink")
    cache.feed(tokens_of(BLOCK))
    cache.feed(tokens_of(BLOCK))
    before = rows(cache)
    for budgets, kind, message in (
        ([[BUDGET] * 2] * 2, ConfigError, "budgets for 4 heads do not fit a model of 6"),
        ([[BUDGET + 1] * 2] * 3, ConfigError, "64 per head and 512 at most are possible"),
        ([[513, 1]] + [[1, 1]] * 2, ConfigError, "513 at most, but 64 per head and 512 at most"),
        ([[5, 64]] + [[64, 64]] * 2, BudgetError, "8 protected cells exceed the budget of 5"),
    ):
        with pytest.raises(kind, match=message):
            cache.compact(policy, BUDGET, recent=8, budgets=budgets)
    assert rows(cache) == before

    path = tiny_model(n_layer=1, n_ctx_train=1024)
    with (
        recorded_runtime(path, n_layer=1, n_head_kv=2, budget=BUDGET, block=BLOCK) as run,
        pytest.raises(NativeError, match="opened for heads that keep the same"),
    ):
        run.runtime.block_loop.cache.compact(policy, BUDGET, budgets=[[BUDGET, BUDGET]])
