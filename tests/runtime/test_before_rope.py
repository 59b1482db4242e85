"""`keydiff(rope=off)` scores keys as they were before RoPE: of every model whose keys can be turned back."""

from __future__ import annotations

import numpy as np
import pytest
from recorded import recorded_runtime
from reference_choice import Reference
from reference_rope import frequencies_of
from rope_models import ROPE_MODELS
from test_context_rope import context_of, rope_of
from test_kept_sets import SHAPE, read_and_check
from test_ragged import tokens_of
from unsupported_models import make_zeros

import edgekv
from bench.papers.captures import check_base
from edgekv.binding.cache import Cache
from edgekv.binding.policy import cache_params
from edgekv.policies import parse_policy
from edgekv.scoring import score
from edgekv.testing.models.families import make_family

SPEC = "keydiff(rope=off)"
OPTIONS = {"budget": 64, "block": 32, "recent": 8, "threads": 1}


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("reposition", ["always", "never"])
def test_rows_are_turned_back_from_where_they_are_now(tiny_model, reposition, kv_type):
    path = tiny_model(**SHAPE, n_ctx_train=1024)
    spec = f"{SPEC}+ada" if kv_type == "q8_0" else SPEC
    read_and_check(path, SHAPE, spec, reposition=reposition, kv_type=kv_type)


@pytest.mark.parametrize("name", ["smollm3", "glm4moe", "qwen2vl", "deepseek2", "gemma3"])
def test_every_model_whose_keys_turn(tmp_path, name):
    """Layers without RoPE, a part of a head, positions in sections, latents, beside sliding windows."""
    path = make_family(tmp_path / "model.gguf", name)
    tokens = tokens_of(300)
    with context_of(path) as context:
        heads = {"n_layer": context.shape().n_layer, "n_head_kv": context.shape().n_head_kv_max}
        if name == "gemma3":  # gemma3's keys never move, so nobody is told how they would
            rope = [(frequencies_of(path), "neox")] * heads["n_layer"]
        else:
            rope = [rope_of(context, layer) for layer in range(heads["n_layer"])]
    reference = Reference(**heads, rope=rope)
    with recorded_runtime(path, **heads, before_compaction=reference, policy=SPEC, **OPTIONS) as run:
        run.read(tokens)
        assert len(run.compactions) >= 6
        reference.check(run.compactions)


def test_models_without_rope_are_scored_as_they_stand(tmp_path):
    path = make_zeros(tmp_path / "gpt2.gguf", "gpt2", ROPE_MODELS["gpt2"])
    with edgekv.Runtime(path, memory="4GiB", policy=SPEC, **OPTIONS) as runtime:
        assert runtime.block_loop.read(tokens_of(100), lambda n: True)


def test_keys_that_cannot_be_turned_back_are_refused(tmp_path):
    path = make_zeros(tmp_path / "maincoder.gguf", "maincoder", ROPE_MODELS["maincoder"])
    with pytest.raises(edgekv.UnsupportedModelError, match=r"MUL between RoPE .* scores keys as they are stored"):
        edgekv.Runtime(path, memory="4GiB", policy=SPEC, **OPTIONS)
    with edgekv.Runtime(path, memory="4GiB", policy="keydiff", **OPTIONS) as runtime:
        assert runtime.block_loop.read(tokens_of(100), lambda n: True)


def test_it_is_the_default_where_keys_can_be_turned_back(tiny_model, tmp_path):
    turned = make_zeros(tmp_path / "maincoder.gguf", "maincoder", ROPE_MODELS["maincoder"])
    for path, policy in ((tiny_model(), SPEC), (turned, "keydiff")):
        assert edgekv.plan(path, memory="4GiB", budget=64).policy == policy
        with edgekv.Runtime(path, memory="4GiB", **OPTIONS) as runtime:
            assert runtime.options.parsed_policy.spec == policy
            assert runtime.block_loop.read(tokens_of(100), lambda n: True)
    with pytest.raises(edgekv.UnsupportedModelError, match="scores keys as they are stored"):
        edgekv.plan(turned, memory="4GiB", budget=64, policy=SPEC)


def test_a_cache_must_be_opened_for_it(tiny_model):
    policy = parse_policy(SPEC)
    with context_of(tiny_model(head_dim=64)) as context:
        cache = Cache(context)
        cache.feed(tokens_of(8))
        with pytest.raises(edgekv.NativeError, match="opened without what the policy reads"):
            cache.compact(policy, 4)
        cache.close()
        cache = Cache(context, cache_params([policy], 32))
        cache.feed(tokens_of(8))
        cache.compact(policy, 4)
        assert cache.n_cells == 4
        cache.close()


def test_where_keys_are_captured_as_they_are_stored_it_is_refused():
    with pytest.raises(edgekv.ConfigError, match="this measurement captures them as they are stored"):
        check_base(parse_policy(f"{SPEC}+caote"))


def test_on_plain_arrays_keys_are_those_before_rope():
    keys, positions = np.random.default_rng(1).standard_normal((1, 40, 32)), np.arange(40)[None]
    plain, as_stored = (score(spec, keys=keys, positions=positions) for spec in (SPEC, "keydiff"))
    np.testing.assert_array_equal(plain, as_stored)
