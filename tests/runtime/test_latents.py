"""Models whose cache holds a latent a token: what policies see of it, what they keep, and which are refused."""

from __future__ import annotations

from dataclasses import replace

import gguf
import numpy as np
import pytest
from cache_arrays import read_rows
from diagonals import diagonal
from gguf.quants import dequantize
from recorded import recorded_runtime
from reference_choice import Reference
from reference_rope import frequencies_of
from test_context_rope import context_of, rope_of

import edgekv
from edgekv.binding.cache import Cache
from edgekv.binding.model import Model
from edgekv.binding.structs import CacheParams
from edgekv.testing.models.families import latent, make_family
from edgekv.testing.models.vocabulary import make_vocabulary
from edgekv.testing.models.writer import write_tensors

N_LAYER, N_HEAD, RANK, N_ROT, N_VALUE = 3, 4, 64, 64, 64  # sizes of the family deepseek2
HEADS = {"n_layer": N_LAYER, "n_head_kv": 1}
OPTIONS = {"budget": 100, "block": 32, "recent": 10, "threads": 1}
TOKENS = np.random.default_rng(5).integers(3, 250, 330).tolist()
PROBE = (7, 8, 9, 10)

KEYS_AND_ATTENTION = ["keydiff", "keydiff(anchor=median)", "keydiff(metric=dot)", "l2norm", "sink", "random(seed=3)"]
KEYS_AND_ATTENTION += ["snapkv(window=20)", "tova", "h2o", "ahakv(value_prior=off)"]
CRITICAL = ["keydiff+critical", "snapkv+critical", "h2o+critical"]
SHARED = ["keydiff+pyramid", "snapkv+critical+ada", "h2o+ada"]
REFUSED = ["snapkv+caote", "keydiff+fastcaote+critical", "ahakv", "ahakv+critical"]


@pytest.fixture(scope="module")
def latent_model(tmp_path_factory):
    """A function from a quantization to the path of a tiny model."""
    folder, made = tmp_path_factory.mktemp("latents"), {}

    def make(quantization="F32"):
        if quantization not in made:
            made[quantization] = make_family(folder / f"{quantization}.gguf", "deepseek2", quantization=quantization)
        return made[quantization]

    return make


def projections(path):
    """Of each layer and its KV head what W_V and W_O together make of a latent: (n_head, RANK, n_embd)."""
    tensors = {tensor.name: dequantize(tensor.data, tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors}
    found = []
    for layer in range(N_LAYER):
        w_v = tensors[f"blk.{layer}.attn_v_b.weight"].reshape(N_HEAD, N_VALUE, RANK).astype(np.float64)
        w_o = tensors[f"blk.{layer}.attn_output.weight"].reshape(-1, N_HEAD, N_VALUE).astype(np.float64)
        found.append([np.einsum("hvr,ehv->hre", w_v, w_o)])
    return found


def check_kept_sets(path, spec, probe=(), **options):
    """Read and generate; what was kept is what the reference keeps."""
    reference = Reference(**HEADS, w_o=projections(path) if "critical" in spec else None)
    options = OPTIONS | {"policy": spec, "focus": bool(probe)} | options
    with recorded_runtime(path, **HEADS, before_compaction=reference, **options) as run:
        assert run.runtime.block_loop.read(TOKENS[:250], lambda n: True, probe)
        for token in TOKENS[250:]:
            run.step(token)
        assert len(run.compactions) >= 7
        reference.check(run.compactions)


@pytest.mark.parametrize(
    ("spec", "kv_type"), diagonal(KEYS_AND_ATTENTION + CRITICAL + SHARED, ["f16", "q8_0", "q4_0"], whole=["keydiff"])
)
def test_kept_positions_are_those_of_the_reference(latent_model, spec, kv_type):
    check_kept_sets(latent_model(), spec, kv_type=kv_type)


@pytest.mark.parametrize("quantization", ["F32", "Q4_0"])
@pytest.mark.parametrize("spec", ["snapkv", "snapkv+critical"])
def test_under_a_probe_too_with_repacked_weights(latent_model, spec, quantization):
    check_kept_sets(latent_model(quantization), spec, PROBE, repack=quantization == "Q4_0")


def test_a_value_is_the_first_part_of_its_key(latent_model):
    for kv_type in ("f16", "q8_0"):
        with edgekv.Runtime(latent_model(), memory="4GiB", kv_type=kv_type, **OPTIONS) as runtime:
            cache = runtime.block_loop.cache
            cache.feed(TOKENS[:32])
            keys, values = (read_rows(cache, 1, 0, values=values) for values in (False, True))
            assert (keys.shape, values.shape) == ((32, RANK + N_ROT), (32, RANK))
            np.testing.assert_array_equal(values, keys[:, :RANK])
            bytes_of_row = {"f16": 2 * (RANK + N_ROT), "q8_0": 34 * (RANK + N_ROT) // 32}[kv_type]
            assert runtime.plan.cell_bytes == N_LAYER * bytes_of_row
            assert cache.shape.latent_dim_v == N_VALUE
            assert cache.bookkeeping_bytes <= runtime.plan.parts.bookkeeping


@pytest.mark.parametrize("spec", ["keydiff", "snapkv+critical"])
def test_compacting_through_a_host_copy_or_by_graphs_changes_nothing(latent_model, spec, monkeypatch):
    results = []
    for staging in ("auto", "copies", "graphs"):
        monkeypatch.setenv("EDGEKV_STAGING", staging)
        options = OPTIONS | {"policy": spec, "focus": False}
        with recorded_runtime(latent_model(), **HEADS, **options) as run:
            params = CacheParams(n_query_rows=32, wo_norms=True)
            run.runtime.block_loop.cache.close()
            cache = run.runtime.block_loop.cache = Cache(run.runtime.context, params)
            logits = run.read(TOKENS)
            assert cache.n_cells <= OPTIONS["budget"] + OPTIONS["block"] < cache.n_past
            results.append((logits, np.array(run.kept()), [read_rows(cache, layer, 0) for layer in range(N_LAYER)]))
    for one, *others in zip(*results, strict=True):
        for other in others:
            np.testing.assert_array_equal(one, other)


def test_the_last_elements_turn_by_yarn(latent_model):
    with context_of(latent_model()) as context:
        angles, pairs, first = rope_of(context, 2)
    assert (pairs, first) == ("norm", RANK)
    np.testing.assert_allclose(angles, frequencies_of(latent_model()), rtol=1e-5)


@pytest.mark.parametrize("focus", [False, True])
@pytest.mark.parametrize("spec", REFUSED)
def test_policies_that_compare_values_are_refused(latent_model, spec, focus):
    """Before anything is loaded, by the option that names them."""
    name = "focus_policy" if focus and "keydiff" not in spec else "policy"
    options = OPTIONS | {name: spec, "focus": focus}
    for refuse in (edgekv.plan, edgekv.Runtime):
        with pytest.raises(edgekv.ConfigError) as caught:
            refuse(latent_model(), memory="4GiB", **options)
        assert str(caught.value).startswith(f"{name}={edgekv.policies.parse_policy(spec).spec} compares the values")
        assert "keydiff or snapkv" in str(caught.value)


@pytest.fixture
def own():
    """Registers a scorer as "own" for one test."""
    yield lambda function: edgekv.policies.register("own", function)
    edgekv.policies.unregister("own")


def test_scorers_that_read_values_are_refused(latent_model, own):
    own(lambda keys, values: values.sum(axis=2))
    with pytest.raises(edgekv.ConfigError, match="policy=own compares the values of a head"):
        edgekv.plan(latent_model(), memory="4GiB", policy="own", **OPTIONS)


def test_scorers_that_read_keys_are_given_whole_rows(latent_model, own):
    seen = []

    def by_keys(keys, positions):
        seen.append(keys.shape)
        return positions.astype(np.float32)

    own(by_keys)
    with edgekv.Runtime(latent_model(), memory="4GiB", policy="own", focus=False, **OPTIONS) as runtime:
        assert runtime.block_loop.read(TOKENS, lambda n: True)
    assert {(shape[0], shape[2]) for shape in seen} == {(1, RANK + N_ROT)}


def test_a_cache_is_not_opened_for_values(latent_model):
    with context_of(latent_model()) as context:
        with pytest.raises(edgekv.UnsupportedModelError, match="the cache holds latents"):
            Cache(context, CacheParams(values=True))
        cache = Cache(context)
        cache.feed(TOKENS[:8])
        with pytest.raises(edgekv.NativeError, match="opened without what the policy reads"):
            cache.compact(edgekv.policies.parse_policy("ahakv"), 4)
        cache.close()


def test_texts_go_beyond_the_trained_context(latent_model, monkeypatch):
    monkeypatch.setattr(Model, "is_end", lambda model, token: False)
    with edgekv.Runtime(latent_model(), memory="4GiB", **OPTIONS) as runtime, runtime.session() as session:
        session.read("the old house by the river " * 500)
        assert session.n_past > runtime.model.n_ctx_train >= runtime.block_loop.cache.rope_past
        assert len("".join(session.chat("And?", max_tokens=8))) > 0


@pytest.mark.parametrize(
    "keys",
    [{"attention.head_count_kv": 2}, {"attention.key_length": RANK + N_ROT + 32}, {"attention.key_length": RANK}],
    ids=["heads", "long", "short"],
)
def test_a_file_that_contradicts_itself_is_an_error(tmp_path, keys):
    sound = latent.deepseek2()
    family = replace(sound, keys={**sound.keys, **keys})
    path, words = tmp_path / "model.gguf", make_vocabulary(family.tokenizer, family.vocab_size)
    write_tensors(path, family.architecture, family.add_keys, family.tensors, words, quantization="F32", seed=0)
    with pytest.raises(edgekv.EdgeKVError):
        edgekv.plan(path, memory="4GiB", **OPTIONS)
