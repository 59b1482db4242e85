"""Kept keys at other RoPE positions: the logits are those of a transformer that turns them too, no position leaves the
trained context, and the text has no end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from diagonals import diagonal
from recorded import recorded_runtime
from reference_transformer import ROPE_PAIRS, ReferenceModel, rope, rope_angles
from rope_models import ROPE_MODELS
from test_exactness import BLOCK, BUDGET, N_LAYER, N_PROMPT, N_STEPS, SHAPES, assert_exact, error
from test_ragged import draw_budgets, held, tokens_of
from unsupported_models import make_zeros

import edgekv

SMALL = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "probe_tokens": 32}


@pytest.fixture
def talkative(monkeypatch):
    """Random weights may end a reply at any token; here none does."""
    monkeypatch.setattr(edgekv.binding.model.Model, "is_end", lambda model, token: False)


def words(n):
    return " ".join(f"word{i % 97}" for i in range(n))


@pytest.mark.each_by_day("shape", "kv_type")
@pytest.mark.filterwarnings("ignore:kv_type=q4_0 may spoil")  # keys of qwen2 have biases
@pytest.mark.parametrize("kv_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_equal_a_transformer_that_turns_the_same_keys(tiny_model, shape, kv_type):
    path = tiny_model(n_layer=N_LAYER, n_ctx_train=1024, **SHAPES[shape])
    n_head_kv = SHAPES[shape]["n_head_kv"]
    n_read = N_PROMPT - N_PROMPT % BLOCK
    tokens = tokens_of(n_read + N_STEPS)

    evictions = itertools.count()

    def turn(cache, policy, budget, keywords):
        keywords["reposition"] = kv_type != "q4_0" or next(evictions) % 3 == 1  # each turn rounds to q4_0 once more

    options = {"policy": "keydiff", "budget": BUDGET, "block": BLOCK, "kv_type": kv_type, "recent": 8}
    with recorded_runtime(path, n_layer=N_LAYER, n_head_kv=n_head_kv, before_compaction=turn, **options) as run:
        prefill = run.read(tokens[:n_read])
        decoded = [run.step(token) for token in tokens[n_read:]]
        assert len(run.compactions) >= 4
        assert run.runtime.block_loop.cache.rope_past < run.runtime.block_loop.cache.n_past - BLOCK
    assert_exact(path, tokens, run, n_read, prefill, decoded, kv_type)

    # the check must be able to fail: where keys had stayed, the logits would be others
    stayed = ReferenceModel.from_gguf(path).logits(tokens, visible=run.visible(len(tokens)))
    assert max(map(error, decoded, stayed[n_read:])) > 1


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_heads_of_different_lengths_end_at_one_position(tiny_model, kv_type):
    path = tiny_model(n_layer=N_LAYER, n_ctx_train=1024, **SHAPES["llama"])
    tokens, rng = tokens_of(N_PROMPT + N_STEPS), np.random.default_rng(3)

    def draw(cache, policy, budget, keywords):
        keywords |= {"budgets": draw_budgets(rng, held(cache), budget), "reposition": True}

    options = {"policy": "random+pyramid", "budget": 64, "block": BLOCK, "kv_type": kv_type, "recent": 8}
    n_read = N_PROMPT - N_PROMPT % BLOCK
    with recorded_runtime(path, n_layer=N_LAYER, n_head_kv=2, before_compaction=draw, **options) as run:
        prefill = run.read(tokens[:n_read])
        decoded = [run.step(token) for token in tokens[n_read:]]
    longest = []
    for (_, kept), (positions, following) in zip(run.compactions, run.rope, strict=True):
        for layer, g in np.ndindex(N_LAYER, 2):
            n = len(kept[layer][g])
            assert positions[layer][g].tolist() == list(range(following - n, following))
        longest.append(max(len(head) for layer in kept for head in layer))
        assert following == longest[-1]
    assert len(set(longest)) > 3
    assert_exact(path, tokens, run, n_read, prefill, decoded, kv_type)


@pytest.mark.parametrize("shape", ["llama", "qwen3"])
@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_queries_that_are_there_already_are_turned_with_the_keys(tiny_model, shape, kv_type):
    """Windows that reach over an eviction have such queries; rotated ones are compared with the rotation undone."""
    from reference_quant import key_rotation, rotate

    path = tiny_model(n_layer=N_LAYER, n_ctx_train=1024, **SHAPES[shape])
    model = ReferenceModel.from_gguf(path).hparams
    options = {"policy": "snapkv(window=16)", "budget": 64, "block": 32, "kv_type": kv_type, "focus": False}
    with edgekv.Runtime(path, memory="4GiB", threads=1, reposition="always", **options) as runtime:
        cache, policy = runtime.block_loop.cache, runtime.options.parsed_policy
        for start in range(0, 96, 32):
            cache.feed(tokens_of(96)[start : start + 32])
        before, positions, _ = cache.queries(1)
        lag = cache.n_past - cache.rope_past
        cache.compact(policy, 64, reposition=True)
        after, same, _ = cache.queries(1)
        assert positions.tolist() == same.tolist() == list(range(80, 96))
        by = lag - (cache.n_past - cache.rope_past)
        assert by == 64 - 96

        # tokens fed since are not turned twice
        cache.feed([5] * 4)
        mixed, positions, _ = cache.queries(1)
    angles = rope_angles(np.full(16, by), model.n_rot, model.rope_base)
    width = key_rotation(model.head_dim) if kv_type != "f16" else 0
    plain = rotate(before.astype(np.float64), width).swapaxes(0, 1)
    expected = rotate(rope(plain, angles, ROPE_PAIRS[shape]).swapaxes(0, 1), width)
    assert np.abs(after - expected).max() < 1e-5 * np.abs(before).max()
    assert np.abs(after - before).max() > 0.1 * np.abs(before).max()
    assert positions.tolist() == list(range(84, 100))
    np.testing.assert_array_equal(mixed[:, :12], after[:, 4:])


@pytest.mark.parametrize(
    ("shape", "how"), diagonal(SHAPES, [("f16", False), ("q8_0", True), ("f16", True), ("q8_0", False)])
)
def test_queries_of_a_probe_are_turned_to_where_it_would_come_now(tiny_model, shape, how):
    """A block was read since the probe, with keys left where they are, or turned, before it."""
    from reference_quant import key_rotation, rotate

    kv_type, repositions = how
    path = tiny_model(n_layer=N_LAYER, n_ctx_train=1024, **SHAPES[shape])
    model = ReferenceModel.from_gguf(path).hparams
    options = {"policy": "snapkv(window=16)", "budget": 64, "block": 32, "kv_type": kv_type, "probe_tokens": 8}
    with edgekv.Runtime(path, memory="4GiB", threads=1, **options) as runtime:
        cache, policy = runtime.block_loop.cache, runtime.options.parsed_policy
        for start in range(0, 96, 32):
            cache.feed(tokens_of(96)[start : start + 32])
        cache.probe([7, 8, 9])
        before, asked, _ = cache.queries(1, probed=True)
        assert asked.tolist() == [96, 97, 98]
        cache.compact(policy, 64, probed=True, reposition=repositions)
        cache.feed(tokens_of(20))
        after, positions, _ = cache.queries(1, probed=True)
        by = 20 + (64 - 96 if repositions else 0)
    assert positions.tolist() == [116, 117, 118]
    angles = rope_angles(np.full(3, by), model.n_rot, model.rope_base)
    width = key_rotation(model.head_dim) if kv_type != "f16" else 0
    plain = rotate(before.astype(np.float64), width).swapaxes(0, 1)
    expected = rotate(rope(plain, angles, ROPE_PAIRS[shape]).swapaxes(0, 1), width)
    assert np.abs(after - expected).max() < 1e-5 * np.abs(before).max()
    assert np.abs(after - before).max() > 0.1 * np.abs(before).max()


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize(("policy", "kv_type"), diagonal(["keydiff", "snapkv+ada", "h2o"], ["f16", "q8_0"]))
def test_a_text_that_fits_is_left_alone_and_a_longer_one_stays_within_the_trained_context(tiny_model, policy, kv_type):
    path = tiny_model(n_layer=2, n_ctx_train=512, head_dim=64)
    with edgekv.Runtime(path, **SMALL, policy=policy, kv_type=kv_type) as rt, rt.session() as session:
        cache = rt.block_loop.cache

        def rope_positions():
            return [cache.positions(layer, head, rope=True) for layer in range(2) for head in range(2)]

        list(session.generate(words(30), max_tokens=1))
        assert session.stats.repositions == 0 < session.stats.evictions
        assert cache.rope_past == cache.n_past
        np.testing.assert_array_equal(cache.positions(1, 1, rope=True), cache.positions(1, 1))

        list(session.generate(words(400), max_tokens=600))
        stats = session.stats
        assert stats.finish_reason == "length"
        assert session.n_past > 2000
        most = stats.evictions if kv_type == "f16" else stats.evictions // 4  # quantised keys are turned seldom
        assert 0 < stats.repositions <= most
        for positions in rope_positions():
            assert positions[0] >= 0
            assert positions[-1] < cache.rope_past <= 512
            assert (np.diff(positions) > 0).all()


@pytest.mark.usefixtures("talkative")
def test_generation_goes_on_past_the_trained_context(tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=256)
    with edgekv.Runtime(path, **SMALL, focus=False) as rt, rt.session() as session:
        list(session.generate(words(10), max_tokens=700))
        assert session.stats.finish_reason == "length"
        assert session.n_past >= 700
        assert rt.block_loop.cache.rope_past <= 256
        assert session.stats.repositions > 0


@pytest.mark.usefixtures("talkative")
def test_always_and_never(tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=512)
    with edgekv.Runtime(path, **SMALL, reposition="always") as rt, rt.session() as session:
        list(session.generate(words(40), max_tokens=40))
        assert session.stats.repositions == session.stats.evictions > 0
    with edgekv.Runtime(path, **SMALL, reposition="never") as rt, rt.session() as session:
        with pytest.raises(edgekv.InputError, match=r"trained on 512, and reposition='never' .* use reposition='auto'"):
            list(session.generate(words(400)))
        assert session.n_past == 0
        list(session.generate(words(10), max_tokens=1000))
        assert session.stats.finish_reason == "context"
        assert session.n_past <= 512
        assert session.stats.prompt_tokens + session.stats.generated_tokens == 512  # one more would stand beyond it
    with pytest.raises(edgekv.ConfigError, match="reposition='often' is unknown; possible: auto, always, never"):
        edgekv.Runtime(path, **SMALL, reposition="often")


def test_cells_that_leave_no_positions_to_move_to(tiny_model):
    path = tiny_model(n_layer=2, n_ctx_train=256)
    options = SMALL | {"budget": 250}
    with (
        edgekv.Runtime(path, **options) as rt,
        rt.session() as session,
        pytest.raises(edgekv.InputError, match="a head of 314 cells leaves no positions to move to; lower the budget"),
    ):
        list(session.generate(words(300)))


def test_a_model_whose_keys_cannot_be_turned_reads_up_to_its_trained_context(tmp_path):
    path = make_zeros(tmp_path / "gpt2.gguf", "gpt2", ROPE_MODELS["gpt2"])
    with edgekv.Runtime(path, memory="4GiB", budget=64, block=32, threads=1) as rt:
        assert not rt.block_loop.cache.repositions
        assert rt.block_loop.repositioning.limit == rt.model.n_ctx_train
    with pytest.raises(edgekv.UnsupportedModelError, match="architecture 'gpt2' has no RoPE"):
        edgekv.Runtime(path, memory="4GiB", budget=64, block=32, threads=1, reposition="always")
