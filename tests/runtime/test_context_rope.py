"""The angles that a context's RoPE turns keys by, and stored keys of a real cache turned by them."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager

import numpy as np
import pytest
from gguf.quants import dequantize

from edgekv import ConfigError, NativeError, UnsupportedModelError
from edgekv.binding import library, structs
from edgekv.binding.cache import Cache
from edgekv.binding.model import Context, Model
from edgekv.options import KV_TYPES, Options
from edgekv.testing.models.families import make_family
from edgekv.testing.models.model_spec import RopeScaling
from edgekv.testing.models.shapes import llama3_rope_factors

pytest.importorskip("gguf")
from reference_rope import frequencies_of
from reference_transformer import ROPE_PAIRS
from rope_models import N_LAYER, N_ROT, ROPE_MODELS
from unsupported_models import HEAD_DIM, make_zeros

LONG = tuple(np.linspace(1, 24, 32).tolist())
ROPES = {
    "plain": {},
    "llama3": {
        "rope_factors": llama3_rope_factors(64, 1e4, factor=8.0, low=1.0, high=4.0, n_ctx_original=256),
        "n_ctx_train": 2048,
    },
    "linear": {"rope_scaling": RopeScaling(kind="linear", n_ctx_original=256, factor=4.0), "n_ctx_train": 1024},
    "yarn": {"rope_scaling": RopeScaling(kind="yarn", n_ctx_original=256, factor=8.0), "n_ctx_train": 2048},
    "longrope": {
        "rope_scaling": RopeScaling(kind="longrope", n_ctx_original=256, factors=LONG),
        "n_ctx_train": 4096,
    },
}
MODELS = {
    "llama": {"architecture": "llama", "head_dim": 64},
    "llama96": {"architecture": "llama", "head_dim": 96, "n_head": 2, "n_head_kv": 1},
    "llama128": {"architecture": "llama", "head_dim": 128},
    "qwen2": {"architecture": "qwen2", "n_embd": 128, "n_head": 2, "n_head_kv": 1},
    "qwen3": {"architecture": "qwen3", "head_dim": 128},
    "gemma": {"architecture": "gemma", "head_dim": 64},
}
CASES = [(model, "plain") for model in MODELS]
CASES += [(model, rope) for model in ("llama", "qwen2", "qwen3") for rope in ("linear", "yarn")]
CASES += [("llama", "llama3"), ("llama", "longrope")]

# Largest error of a key turned to a position against one fed there, both rounded by their type.
STORED_TWICE = {"f16": 5e-4, "q8_0": 1.2e-2, "q4_0": 0.2}


@contextmanager
def context_of(path, *, n_cells=64, kv_type="f16", layout=True):
    options = Options(block=64, threads=1, kv_type=kv_type)
    with Model(path, options) as model:
        context = Context(model, n_cells, options, structs.Layout(n_cells, n_cells) if layout else None)
        try:
            yield context
        finally:
            context.close()


def rope_of(context, layer, room=256):
    """Radians per position (n_rot / 2,), how pairs lie, and the element that they begin at."""
    angles, first, n_rot = np.full(room // 2, np.nan), ctypes.c_uint32(1 << 31), ctypes.c_uint32(room)
    neighbours = ctypes.c_int32(-1)
    arguments = (angles.ctypes.data, ctypes.byref(first), ctypes.byref(n_rot), ctypes.byref(neighbours))
    library.call("edgekv_context_rope", context.handle, layer, *arguments)
    return angles[: n_rot.value // 2], {0: "neox", 1: "norm"}[neighbours.value], first.value


@pytest.mark.parametrize(("model", "rope"), CASES)
def test_angles_are_those_of_the_formulas(tiny_model, model, rope):
    """ggml multiplies a float32 ratio from pair to pair, so the angle of pair i is i roundings off."""
    path = tiny_model(**MODELS[model], **ROPES[rope])
    expected = frequencies_of(path)
    with context_of(path) as context:
        for layer in range(2):
            found, pairs, first = rope_of(context, layer)
            assert (pairs, first) == (ROPE_PAIRS[MODELS[model]["architecture"]], 0)
            assert found.shape == expected.shape
            assert (np.abs(found / expected - 1) < 6e-8 * (np.arange(len(expected)) + 4)).all()


def test_scalings_differ(tiny_model):
    """Otherwise equal formulas would prove nothing."""
    found = [frequencies_of(tiny_model(**MODELS["llama"], **arguments)) for arguments in ROPES.values()]
    for i, one in enumerate(found):
        assert all(np.abs(one / other - 1).max() > 0.5 for other in found[:i])


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize(("model", "rope"), CASES)
def test_a_turned_key_is_the_one_that_is_fed_at_the_new_position(tiny_model, model, rope, kv_type):
    """In the first layer a key depends on its token and its position alone: one token, fed again and again."""
    n, shift = 600, 517
    with context_of(tiny_model(**MODELS[model], **ROPES[rope]), n_cells=640, kv_type=kv_type) as context:
        cache = Cache(context)
        for start in range(0, n, 60):
            cache.feed([77] * min(60, n - start))
        rows, described = cache.rows(0, 0)
        angles, pairs, first = rope_of(context, 0)
        cache.close()

    def values(stored):
        return dequantize(stored.reshape(-1), described.type).astype(np.float64).reshape(n, -1)

    fed = values(rows)
    for deltas in (shift - np.arange(n), np.arange(n)[::-1] - np.arange(n)):
        turned, deltas = rows.copy(), np.ascontiguousarray(deltas, dtype=np.int32)
        described.data, described.stride_bytes = turned.ctypes.data, turned.strides[0]
        angle_arguments = (angles.ctypes.data, first, 2 * len(angles), pairs == "norm")
        library.call("edgekv_rope_turn", ctypes.byref(described), *angle_arguments, deltas.ctypes.data)
        expected = fed[np.arange(n) + deltas]
        assert np.linalg.norm(values(turned) - expected) < STORED_TWICE[kv_type] * np.linalg.norm(expected)
        assert np.linalg.norm(fed - expected) > 0.5 * np.linalg.norm(expected)


@pytest.fixture(scope="module")
def zeros(tmp_path_factory):
    folder = tmp_path_factory.mktemp("zeros")
    return {name: make_zeros(folder / f"{name}.gguf", name, wanted) for name, wanted in ROPE_MODELS.items()}


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_a_layer_without_rope_turns_nothing(zeros, kv_type):
    with context_of(zeros["smollm3"], kv_type=kv_type) as context:
        found = [len(rope_of(context, layer)[0]) for layer in range(N_LAYER)]
    assert found == [HEAD_DIM // 2] * 3 + [0]


def test_a_part_of_a_head(zeros):
    with context_of(zeros["stablelm"]) as context:
        found, pairs, first = rope_of(context, 1)
    assert (pairs, first) == ("neox", 0)
    assert found == pytest.approx(1e4 ** (-2 * np.arange(N_ROT // 2) / N_ROT), rel=1e-6)


@pytest.mark.parametrize(("name", "n_still"), [("qwen2vl", 0), ("qwen3vl", 1), ("qwen35", 0)])
def test_sections_of_text_turn_by_one_position(tmp_path, name, n_still):
    """But for pairs that are in none of the three: their position is always 0."""
    path = make_family(tmp_path / "model.gguf", name)
    expected = frequencies_of(path)
    assert np.count_nonzero(expected == 0) == n_still
    with context_of(path) as context:
        found, pairs, _ = rope_of(context, 0)
    assert pairs == "neox"
    assert (np.abs(found - expected) <= 6e-8 * (np.arange(len(expected)) + 4) * expected).all()


@pytest.mark.parametrize(
    ("name", "reason"),
    [("gpt2", "architecture 'gpt2' has no RoPE"), ("maincoder", "the graph computes MUL between RoPE and the cache")],
)
def test_keys_that_cannot_be_turned_are_refused(zeros, name, reason):
    with context_of(zeros[name]) as context, pytest.raises(UnsupportedModelError) as caught:
        rope_of(context, 0)
    assert str(caught.value) == (
        f"keys cannot be moved to other positions: {reason}; choose a model of the llama, qwen2, qwen3 or gemma "
        "family, stay within the trained context, or choose a policy that scores keys as they are stored"
    )


def test_misuse(tiny_model):
    path = tiny_model(head_dim=64)
    with context_of(path) as context:
        with pytest.raises(ConfigError, match="layer 2 does not exist; the cache has 2 layers"):
            rope_of(context, 2)
        with pytest.raises(ConfigError, match="RoPE turns 64 elements of a key, but there is room for 62"):
            rope_of(context, 0, room=62)
        with pytest.raises(ConfigError, match="ctx, angles, first, n_rot or neighbours is NULL"):
            library.call("edgekv_context_rope", context.handle, 0, None, None, None, None)
    with context_of(path, layout=False) as context, pytest.raises(NativeError, match="without a layout"):
        rope_of(context, 0)
