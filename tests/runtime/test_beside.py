"""Cells that stay beside a budget or within it: an eviction by any policy passes over them, and leaves others."""

from __future__ import annotations

import numpy as np
import pytest
from recorded import recorded_runtime
from small import SETTINGS, words
from test_archive import rows_by_position
from test_ragged import rows, tokens_of

from edgekv.binding.held_cells import HeadPositions
from edgekv.errors import ConfigError
from edgekv.generation.sampler import GREEDY
from edgekv.policies import parse_policy

N_LAYER, N_HEAD_KV = 3, 2
HEADS = list(np.ndindex(N_LAYER, N_HEAD_KV))
BUDGET, BLOCK = 48, 64
POLICIES = ["keydiff", "snapkv", "h2o+critical", "snapkv+caote", "keydiff+ada", "random(seed=3)+pyramid", "sink"]


@pytest.fixture
def model(tiny_model):
    return tiny_model(n_layer=N_LAYER, n_ctx_train=4096, n_embd=128, n_head=4, n_head_kv=N_HEAD_KV, head_dim=64)


def note_scores(cache, policy):
    """Compact without evicting, if the policy scores by every token that is fed."""
    if policy.carries:
        cache.compact(policy, 2 * BLOCK)


def positions(cache):
    return {at: cache.positions(*at).tolist() for at in HEADS}


@pytest.mark.parametrize("where", ["beside", "within"])
@pytest.mark.parametrize("spec", POLICIES)
def test_a_head_keeps_what_pinned_cells_would_leave(model, spec, where):
    """Heads keep what they would keep if those cells were pinned; beside a budget, if it was larger by them too."""
    policy, rng = parse_policy(spec), np.random.default_rng(7)
    options = {"policy": spec, "budget": BUDGET, "block": BLOCK, "recent": 4}
    with recorded_runtime(model, n_layer=N_LAYER, n_head_kv=N_HEAD_KV, **options) as run:
        cache = run.runtime.block_loop.cache
        for seed in (1, 2):
            cache.feed(tokens_of(BLOCK, seed))
            note_scores(cache, policy)
        for n in (5, 12):
            same = np.sort(2 + rng.permutation(cache.n_past - 6)[:n]).astype(np.int32)
            before, bytes_before = cache.snapshot(), rows(cache)
            pinned, n_more = tuple((int(p), int(p) + 1) for p in same), n if where == "beside" else 0
            cache.compact(policy, BUDGET + n_more, n_sink=2, recent=4, pinned=pinned)
            expected = positions(cache)
            cache.restore(before)
            cache.compact(policy, BUDGET, n_sink=2, recent=4, **{where: HeadPositions.of([same] * len(HEADS))})
            assert positions(cache) == expected
            assert sum(map(len, expected.values())) == (BUDGET + n_more) * len(HEADS)
            assert rows(cache).items() <= bytes_before.items()
            cache.restore(before)


@pytest.mark.parametrize("spec", POLICIES)
def test_each_head_has_cells_of_its_own_beside_its_budget(model, spec):
    """Eviction after eviction, also where heads share a budget, and some lack what is named."""
    policy, rng = parse_policy(spec), np.random.default_rng(8)
    options = {"policy": spec, "budget": BUDGET, "block": BLOCK, "recent": 4, "archive": "1MiB"}
    with recorded_runtime(model, n_layer=N_LAYER, n_head_kv=N_HEAD_KV, **options) as run:
        cache = run.runtime.block_loop.cache
        cache.feed(tokens_of(BLOCK))
        note_scores(cache, policy)
        counts = (0, 3, 9, 1, 12, 5)
        own = [np.sort(rng.permutation(BLOCK)[:n]).astype(np.int32) for n in counts]
        for _ in range(4):
            cache.feed(tokens_of(BUDGET, seed=2))
            named = HeadPositions.of(np.append(it, np.int32(cache.n_past)) for it in own)  # one has no cell
            cache.compact(policy, BUDGET, n_sink=2, recent=4, generating=True, beside=named)
            held = positions(cache)
            assert all(set(it) <= set(held[at]) for at, it in zip(HEADS, own, strict=True))
            assert sum(map(len, held.values())) == BUDGET * len(HEADS) + sum(counts)
        others = {len(held[at]) - n for at, n in zip(HEADS, counts, strict=True)}
        assert (len(others) > 1) == spec.endswith(("+ada", "+pyramid"))


@pytest.mark.parametrize("spec", POLICIES)
def test_each_head_has_cells_of_its_own_within_its_budget(model, spec):
    policy, rng = parse_policy(spec), np.random.default_rng(10)
    options = {"policy": spec, "budget": BUDGET, "block": BLOCK, "recent": 4}
    with recorded_runtime(model, n_layer=N_LAYER, n_head_kv=N_HEAD_KV, **options) as run:
        cache = run.runtime.block_loop.cache
        cache.feed(tokens_of(BLOCK))
        note_scores(cache, policy)
        own = [np.sort(rng.permutation(BLOCK)[:n]).astype(np.int32) for n in (0, 3, 20, 1, 12, 5)]
        beside = [np.setdiff1d(np.arange(9, 12, dtype=np.int32), it) for it in own]
        for _ in range(3):
            cache.feed(tokens_of(BUDGET - 3, seed=2))
            both = {"beside": HeadPositions.of(beside), "within": HeadPositions.of(own)}
            cache.compact(policy, BUDGET, n_sink=2, recent=4, generating=True, **both)
            held = positions(cache)
            assert all({*a, *b} <= set(held[at]) for at, a, b in zip(HEADS, own, beside, strict=True))
            assert sum(map(len, held.values())) == BUDGET * len(HEADS) + sum(map(len, beside))


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("policy", ["keydiff", "keydiff+ada"])
def test_what_heads_held_and_needed_stays_too(open_runtime, policy):
    options = {"policy": policy, "archive": "1MiB", "reposition": "never", "recent": 8}
    with open_runtime(**options) as rt, rt.session() as session:
        loop, n = rt.block_loop, 4 * SETTINGS["block"]
        session.read(words(200))
        reply = session.chat("What is it?", max_tokens=n, sampling=GREEDY, allow_loops=True)
        next(reply)
        needed = loop.archive.needed
        assert needed.counts.sum() > 0
        assert needed.counts.max() <= SETTINGS["block"] // 2
        ends = np.cumsum(needed.counts)[:-1]
        of_head = dict(zip(map(tuple, loop.cache.heads), np.split(needed.positions, ends), strict=True))
        assert all(set(it) <= set(loop.cache.positions(*at)) for at, it in of_head.items())
        "".join(reply)
        assert session.stats.evictions > 4
        assert all(set(it) <= set(loop.cache.positions(*at)) for at, it in of_head.items())
        session.read(words(60, "other"))
        assert loop.archive.needed is None


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("policy", ["keydiff", "h2o", "keydiff+ada"])
def test_what_a_prompt_recalled_stays_to_the_bit_while_its_reply_goes_on(open_runtime, policy):
    """So does the rest of each head. The next prompt lets all of it go, but for what the policy keeps."""
    options = {"policy": policy, "archive": "1MiB", "reposition": "never", "recent": 8}
    with open_runtime(**options) as rt, rt.session() as session:
        loop, n = rt.block_loop, 4 * SETTINGS["block"]
        session.read(words(200))
        reply = session.chat("What is it?", max_tokens=n, sampling=GREEDY, allow_loops=True)
        next(reply)
        brought, before = loop.archive.brought, rows_by_position(loop.cache)
        heads = np.repeat(np.arange(len(brought.counts)), brought.counts)
        named = {(*loop.cache.heads[h], int(p)) for h, p in zip(heads, brought.positions, strict=True)}
        assert sum(p == -1 for *_, p in named) == len(loop.cache.heads)
        "".join(reply)
        after = rows_by_position(loop.cache)
        assert {at: before[at] for at in named}.items() <= after.items()
        stats = session.stats
        assert (stats.recalls, stats.recalled_cells) == (1, SETTINGS["block"] // 2)
        assert stats.evictions > 4
        session.read(words(60, "other"))
        assert len(named & rows_by_position(loop.cache).keys()) < len(named) / 2


@pytest.mark.usefixtures("talkative")
def test_a_text_that_is_first_evicted_from_in_a_reply_recalls_once(open_runtime):
    with open_runtime(archive="1MiB", policy="keydiff", reposition="never") as rt, rt.session() as session:
        session.chat("What is it?", max_tokens=1)
        session.read(words(10))
        n = 4 * SETTINGS["block"]
        "".join(session.chat("What?", max_tokens=n, sampling=GREEDY, allow_loops=True))
        stats = session.stats
        assert stats.evictions >= 3
        assert (stats.recalls, stats.recalled_cells) == (1, SETTINGS["block"] // 2)


def test_positions_that_do_not_ascend_or_fit_or_have_no_room_are_refused(model):
    policy = parse_policy("keydiff")
    options = {"policy": "keydiff", "budget": BUDGET, "block": BLOCK}
    with recorded_runtime(model, n_layer=N_LAYER, n_head_kv=N_HEAD_KV, **options) as run:
        cache = run.runtime.block_loop.cache
        cache.feed(tokens_of(BLOCK))
        before = positions(cache)
        for order in ([3, 2], [2, 2]):
            beside = HeadPositions.of([np.array(order, np.int32)] * len(HEADS))
            with pytest.raises(ConfigError, match="positions beside or within a budget do not ascend"):
                cache.compact(policy, BUDGET, beside=beside)
            with pytest.raises(ConfigError, match="positions beside or within a budget do not ascend"):
                cache.compact(policy, BUDGET, within=beside)
        many = HeadPositions.of([np.arange(BUDGET + 1, dtype=np.int32)] * len(HEADS))
        with pytest.raises(ConfigError, match="49 protected cells exceed the budget of 48"):
            cache.compact(policy, BUDGET, within=many)
        for name in ("beside", "within"):
            with pytest.raises(ConfigError, match="2 positions of 1 head that are to stay do not fit a model of 6"):
                cache.compact(policy, BUDGET, **{name: HeadPositions.of([np.array([1, 2], np.int32)])})
        assert positions(cache) == before
