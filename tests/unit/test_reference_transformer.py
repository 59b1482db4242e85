"""Properties of the float64 reference itself; none of them needs the native library."""

import sys
from dataclasses import fields, replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as GGMLType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import reference_quant as rq
import reference_transformer as rt

ARCHITECTURES = tuple(rt.ROPE_PAIRS)
N_TOKENS, N_VOCAB = 24, 40
TOKENS = np.random.default_rng(0).integers(0, N_VOCAB, N_TOKENS)
CAUSAL = np.tri(N_TOKENS, dtype=bool)


def make_model(architecture="llama", *, n_layer=2, n_embd=32, n_head=4, n_head_kv=2, head_dim=64, n_ff=32, seed=1):
    """Random weights, with scores spread widely enough that every mask matters."""
    rng = np.random.default_rng(seed)

    def matrix(n_out, n_in, scale=1.0):
        return rng.standard_normal((n_out, n_in)) * scale / np.sqrt(n_in)

    def norm(n, scale=1.0):
        return scale * (1 + 0.1 * rng.standard_normal(n))

    def layer():
        bias = architecture == "qwen2"
        per_head = architecture == "qwen3"
        return rt.Layer(
            attn_norm=norm(n_embd),
            wq=matrix(n_head * head_dim, n_embd, 1.5),
            wk=matrix(n_head_kv * head_dim, n_embd, 1.5),
            wv=matrix(n_head_kv * head_dim, n_embd),
            wo=matrix(n_embd, n_head * head_dim, 1.5),
            ffn_norm=norm(n_embd),
            w_gate=matrix(n_ff, n_embd),
            w_up=matrix(n_ff, n_embd),
            w_down=matrix(n_embd, n_ff),
            bq=rng.standard_normal(n_head * head_dim) if bias else None,
            bk=rng.standard_normal(n_head_kv * head_dim) if bias else None,
            bv=rng.standard_normal(n_head_kv * head_dim) if bias else None,
            q_norm=norm(head_dim, 1.5) if per_head else None,
            k_norm=norm(head_dim, 1.5) if per_head else None,
        )

    hparams = rt.Hyperparameters(
        architecture, n_layer, n_embd, n_head, n_head_kv, head_dim, head_dim, head_dim, rope_base=1e4, rms_eps=1e-3
    )
    layers = tuple(layer() for _ in range(n_layer))
    embedding = rng.standard_normal((N_VOCAB, n_embd))
    return rt.ReferenceModel(hparams, layers, embedding, norm(n_embd), embedding)


def random_visible(model, seed=2):
    """Each layer, KV head and query reads its own keys, itself always among them."""
    shape = (model.hparams.n_layer, model.hparams.n_head_kv, N_TOKENS, N_TOKENS)
    return (np.random.default_rng(seed).random(shape) < 0.5) | np.eye(N_TOKENS, dtype=bool)


def assert_same(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


def error(actual, expected):
    """The measure used against the runtime: largest error over the deviation of the expected logits."""
    return np.abs(actual - expected).max() / expected.std()


# A second implementation: one token at a time, with a cache of rows as llama.cpp keeps them


STORED_AS = {"f16": GGMLType.F16, "q8_0": GGMLType.Q8_0, "q4_0": GGMLType.Q4_0}


class RowCache:
    """Rows of one layer and KV head. Quantised: rows kept rotated, queries rotated, outputs rotated back."""

    def __init__(self, kv_type):
        self.kv_type = kv_type
        self.rotates = kv_type in ("q8_0", "q4_0")
        self.keys, self.values = [], []

    def through_bytes(self, row, kv_type):
        if kv_type == "exact":
            return row
        stored = gguf.quants.quantize(row.astype(np.float32), STORED_AS[kv_type])
        return gguf.quants.dequantize(stored, STORED_AS[kv_type]).astype(np.float64)

    def turn(self, row, width):
        return (row.reshape(-1, width) @ rq.hadamard(width)).ravel() if self.rotates else row

    def append(self, k, v):
        self.keys.append(self.through_bytes(self.turn(k, len(k)), self.kv_type))
        self.values.append(self.through_bytes(self.turn(v, 64), self.kv_type))

    def attend(self, q, readable):
        q = self.turn(q, len(q))
        weights = np.exp([q @ self.keys[j] / np.sqrt(len(q)) for j in readable])
        return self.turn(sum(w * self.values[j] for w, j in zip(weights, readable, strict=True)) / weights.sum(), 64)


def turn_pairs(row, position, base, interleaved):
    """RoPE of one head as complex numbers: (a + i b) e^(i angle)."""
    half = len(row) // 2
    angle = position * base ** (-np.arange(half) / half)
    pairs = row.reshape(half, 2).T if interleaved else row.reshape(2, half)
    turned = (pairs[0] + 1j * pairs[1]) * np.exp(1j * angle)
    parts = np.array([turned.real, turned.imag])
    return parts.T.ravel() if interleaved else parts.ravel()


def logits_token_by_token(model, tokens, visible, kv_type):
    hp = model.hparams
    caches = [[RowCache(kv_type) for _ in range(hp.n_head_kv)] for _ in range(hp.n_layer)]

    def norm(row, weight):
        return row * weight / np.sqrt(row @ row / len(row) + hp.rms_eps)

    def head(weight, bias, head_norm, h, index, position):
        rows = slice(index * hp.head_dim, (index + 1) * hp.head_dim)
        row = weight[rows] @ h + (0 if bias is None else bias[rows])
        if head_norm is not None:
            row = norm(row, head_norm)
        return (
            row if position is None else turn_pairs(row, position, hp.rope_base, hp.architecture in ("llama", "deci"))
        )

    logits = []
    for t, token in enumerate(tokens):
        x = model.embedding[token] * (hp.n_embd**0.5 if hp.architecture == "gemma" else 1)
        for il, layer in enumerate(model.layers):
            h = norm(x, layer.attn_norm)
            for g, cache in enumerate(caches[il]):
                k = head(layer.wk, layer.bk, layer.k_norm, h, g, t)
                cache.append(k, head(layer.wv, layer.bv, None, h, g, None))
            outs = []
            for query_head in range(hp.n_head):
                g = query_head * hp.n_head_kv // hp.n_head
                q = head(layer.wq, layer.bq, layer.q_norm, h, query_head, t)
                outs.append(caches[il][g].attend(q, np.flatnonzero(visible[il, g, t, : t + 1])))
            x = x + layer.wo @ np.concatenate(outs)
            h = norm(x, layer.ffn_norm)
            gate = layer.w_gate @ h
            if hp.architecture == "gemma":
                gate = gate / (1 + np.exp(-np.sqrt(8 / np.pi) * (gate + 0.044715 * gate**3)))
            else:
                gate = gate / (1 + np.exp(-gate))
            x = x + layer.w_down @ (gate * (layer.w_up @ h))
        logits.append(model.output @ norm(x, model.output_norm))
    return np.array(logits)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kv_type", rq.KV_TYPES)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_equals_a_token_by_token_decoder(architecture, kv_type, head_dim):
    model = make_model(architecture, head_dim=head_dim)
    visible = random_visible(model)
    expected = logits_token_by_token(model, TOKENS, visible, kv_type)
    assert_same(model.logits(TOKENS, visible=visible, kv_type=kv_type), expected)


# Masks


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kv_type", rq.KV_TYPES)
def test_causal_visible_equals_none(architecture, kv_type):
    model = make_model(architecture)
    plain = model.logits(TOKENS, kv_type=kv_type)
    shape = random_visible(model).shape
    np.testing.assert_array_equal(model.logits(TOKENS, kv_type=kv_type, visible=np.broadcast_to(CAUSAL, shape)), plain)
    np.testing.assert_array_equal(model.logits(TOKENS, kv_type=kv_type, visible=np.ones(shape)), plain)
    assert plain.shape == (N_TOKENS, N_VOCAB)
    assert plain.dtype == np.float64


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("kv_type", rq.KV_TYPES)
def test_hiding_a_key_everywhere_equals_leaving_its_token_out(architecture, kv_type):
    model, hidden = make_model(architecture), 7
    visible = np.ones(random_visible(model).shape, dtype=bool)
    visible[:, :, hidden + 1 :, hidden] = False
    rest = np.delete(np.arange(N_TOKENS), hidden)
    without = model.logits(TOKENS[rest], positions=rest, kv_type=kv_type)
    assert_same(model.logits(TOKENS, visible=visible, kv_type=kv_type)[rest], without)


def test_attention_equals_scores_of_minus_infinity():
    model = make_model()
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((N_TOKENS, n_head, 8)) for n_head in (4, 2, 2))
    mask = random_visible(model)[0] & CAUSAL
    expected = np.empty_like(q)
    for t in range(N_TOKENS):
        for h, g in enumerate((0, 0, 1, 1)):
            scores = [q[t, h] @ k[j, g] / np.sqrt(8) if mask[g, t, j] else -np.inf for j in range(N_TOKENS)]
            weights = np.exp(scores)
            expected[t, h] = sum(weights[j] * v[j, g] for j in range(N_TOKENS)) / weights.sum()
    assert_same(rt.attention(q, k, v, mask), expected)


def test_query_that_reads_nothing_gets_zeros():
    q = k = v = np.ones((3, 1, 4))
    mask = np.tri(3, dtype=bool)[None].copy()
    mask[0, 1] = False
    out = rt.attention(q, k, v, mask)
    np.testing.assert_array_equal(out[1], 0)
    assert_same(out[[0, 2]], np.ones((2, 1, 4)))


def test_visible_follows_its_kv_head():
    """Exchanging two KV heads, their query groups and their masks changes nothing; the masks alone do."""
    model = make_model("qwen2")
    visible = random_visible(model)
    expected = model.logits(TOKENS, visible=visible, kv_type="exact")

    def exchanged(x, n_rows):
        return np.roll(x, n_rows, axis=0)

    def exchange(layer):
        half = len(layer.wq) // 2  # the queries of one of the two KV heads
        return replace(
            layer,
            **{name: exchanged(getattr(layer, name), half) for name in ("wq", "bq")},
            **{name: exchanged(getattr(layer, name), half // 2) for name in ("wk", "bk", "wv", "bv")},
            wo=exchanged(layer.wo.T, half).T,
        )

    twin = replace(model, layers=tuple(map(exchange, model.layers)))
    assert_same(twin.logits(TOKENS, visible=visible[:, ::-1], kv_type="exact"), expected)
    assert error(model.logits(TOKENS, visible=visible[:, ::-1], kv_type="exact"), expected) > 0.5


@pytest.mark.parametrize("kv_type", rq.KV_TYPES)
def test_visible_follows_its_layer_and_query(kv_type):
    """One key of one head and layer hidden from one query: earlier queries do not notice, that one does."""
    model, query = make_model(), 10
    plain = model.logits(TOKENS, kv_type=kv_type)
    for layer in range(model.hparams.n_layer):
        visible = np.ones(random_visible(model).shape, dtype=bool)
        visible[layer, 1, query, query] = False
        changed = np.abs(model.logits(TOKENS, visible=visible, kv_type=kv_type) - plain).max(axis=1) > 1e-6
        assert not changed[:query].any()
        assert changed[query]
        # The state of a query in layer l feeds later tokens through the keys of layer l + 1, if there is one.
        assert changed[query + 1 :].any() == (layer + 1 < model.hparams.n_layer)


@pytest.mark.parametrize("n_head_kv", [1, 2])
def test_grouped_heads_equal_repeated_ones(n_head_kv):
    model = make_model("qwen2", n_head_kv=n_head_kv)
    group = model.hparams.n_head // n_head_kv

    def repeat(x):
        heads = x.reshape(n_head_kv, model.hparams.head_dim, *x.shape[1:])
        return np.repeat(heads, group, axis=0).reshape(-1, *x.shape[1:])

    layers = tuple(
        replace(layer, **{name: repeat(getattr(layer, name)) for name in ("wk", "bk", "wv", "bv")})
        for layer in model.layers
    )
    wide = replace(model, layers=layers, hparams=replace(model.hparams, n_head_kv=model.hparams.n_head))
    visible = random_visible(model)
    expected = model.logits(TOKENS, visible=visible)
    assert_same(wide.logits(TOKENS, visible=np.repeat(visible, group, axis=1)), expected)


# Formulas


def test_formulas_at_known_values():
    np.testing.assert_allclose(rt.silu(np.array([0.0, 1.0, -1.0])), [0, 0.731059, -0.268941], atol=1e-6)
    np.testing.assert_allclose(rt.gelu(np.array([0.0, 1.0, -1.0])), [0, 0.841192, -0.158808], atol=1e-6)
    np.testing.assert_allclose(rt.rms_norm(np.array([3.0, 4.0]), np.array([1.0, 2.0]), 3.5), [0.75, 2.0])
    gemma = make_model("gemma")
    assert gemma.hparams.embedding_scale == np.sqrt(gemma.hparams.n_embd)
    assert gemma.hparams.activation is rt.gelu


# RoPE


def test_rope_turns_a_pair_by_its_angle():
    x = np.array([[[1.0, 0.0, 2.0, 0.0]]])
    quarter = np.array([[np.pi / 2, np.pi]])
    np.testing.assert_allclose(rt.rope(x, quarter, "norm"), [[[0, 1, -2, 0]]], atol=1e-15)
    np.testing.assert_allclose(rt.rope(x, quarter, "neox"), [[[-2, 0, 1, 0]]], atol=1e-15)
    np.testing.assert_allclose(rt.rope_angles([3], 4, 100.0), [[3, 0.3]])
    np.testing.assert_allclose(rt.rope_angles([3], 4, 100.0, factors=np.array([1, 3])), [[3, 0.1]])


def test_rope_kinds_differ_by_a_permutation():
    x = np.random.default_rng(4).standard_normal((N_TOKENS, 3, 16))
    angles = rt.rope_angles(np.arange(N_TOKENS), 16, 1e4)
    halves = np.concatenate([np.arange(0, 16, 2), np.arange(1, 16, 2)])  # interleaved pairs -> halves
    np.testing.assert_array_equal(rt.rope(x, angles, "norm")[..., halves], rt.rope(x[..., halves], angles, "neox"))


@pytest.mark.parametrize("pairs", ["norm", "neox"])
def test_rope_keeps_lengths_and_the_dimensions_beyond_n_rot(pairs):
    x = np.random.default_rng(5).standard_normal((N_TOKENS, 2, 16))
    turned = rt.rope(x, rt.rope_angles(np.arange(N_TOKENS), 8, 1e4), pairs)
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1))
    np.testing.assert_array_equal(turned[..., 8:], x[..., 8:])
    np.testing.assert_array_equal(turned[0], x[0])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_only_relative_positions_count(architecture):
    model = make_model(architecture)
    expected = model.logits(TOKENS, kv_type="exact")
    assert_same(model.logits(TOKENS, kv_type="exact", positions=np.arange(N_TOKENS) + 1000), expected)
    assert error(model.logits(TOKENS, kv_type="exact", positions=2 * np.arange(N_TOKENS)), expected) > 0.1


# Cache types


@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_coarser_caches_are_farther_from_exact(head_dim):
    model = make_model(head_dim=head_dim)
    exact = model.logits(TOKENS, kv_type="exact")
    errors = [error(model.logits(TOKENS, kv_type=kv_type), exact) for kv_type in ("f16", "q8_0", "q4_0")]
    assert 0 < errors[0] < 0.02
    assert errors[0] < errors[1] < errors[2]


# Files


def write_gguf(path, model, matrix_type):
    """The model as a GGUF file without a tokenizer; returns it with the weights as the file holds them."""
    hp = model.hparams
    writer = gguf.GGUFWriter(path, hp.architecture)
    writer.add_block_count(hp.n_layer)
    writer.add_embedding_length(hp.n_embd)
    writer.add_head_count(hp.n_head)
    writer.add_head_count_kv(hp.n_head_kv)
    writer.add_key_length(hp.head_dim)
    writer.add_value_length(hp.head_dim_v)
    writer.add_layer_norm_rms_eps(hp.rms_eps)
    writer.add_rope_freq_base(hp.rope_base)

    def add(name, x):
        if x is None:
            return None
        stored_as = matrix_type if x.ndim == 2 else GGMLType.F32
        data = gguf.quants.quantize(x.astype(np.float32), stored_as)
        writer.add_tensor(name, data, raw_dtype=stored_as)
        return gguf.quants.dequantize(data, stored_as).astype(np.float64)

    names = rt.LAYER_TENSORS | rt.OPTIONAL_LAYER_TENSORS
    assert set(names) == {field.name for field in fields(rt.Layer)}
    layers = tuple(
        rt.Layer(**{field: add(f"blk.{il}.{name}", getattr(layer, field)) for field, name in names.items()})
        for il, layer in enumerate(model.layers)
    )
    embedding = add("token_embd.weight", model.embedding)
    output = embedding if model.output is model.embedding else add("output.weight", model.output)
    stored = replace(
        model,
        layers=layers,
        embedding=embedding,
        output_norm=add("output_norm.weight", model.output_norm),
        output=output,
        hparams=replace(hp, rms_eps=float(np.float32(hp.rms_eps))),
    )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("matrix_type", [GGMLType.F32, GGMLType.F16, GGMLType.Q8_0, GGMLType.Q4_0])
def test_from_gguf_reads_every_weight(tmp_path, architecture, matrix_type):
    path = tmp_path / "model.gguf"
    stored = write_gguf(path, make_model(architecture), matrix_type)
    model = rt.ReferenceModel.from_gguf(path)
    assert model.hparams == stored.hparams
    np.testing.assert_array_equal(model.logits(TOKENS), stored.logits(TOKENS))


def test_from_gguf_reads_an_output_of_its_own(tmp_path):
    path = tmp_path / "model.gguf"
    model = make_model()
    stored = write_gguf(path, replace(model, output=model.embedding[::-1]), GGMLType.F32)
    assert_same(rt.ReferenceModel.from_gguf(path).logits(TOKENS), stored.logits(TOKENS))


def test_what_is_not_covered_is_refused(tmp_path):
    def written(architecture, **strings):
        path = tmp_path / f"{architecture}{len(strings)}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in strings.items():
            writer.add_string(key.replace("__", "."), value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    with pytest.raises(ValueError, match="'mamba' is not one of"):
        rt.ReferenceModel.from_gguf(written("mamba"))
    with pytest.raises(ValueError, match="rope scaling 'yarn'"):
        rt.ReferenceModel.from_gguf(written("llama", llama__rope__scaling__type="yarn"))
    with pytest.raises(ValueError, match=r"has no llama\.embedding_length"):
        rt.ReferenceModel.from_gguf(written("llama"))
    model = make_model()
    with pytest.raises(ValueError, match="kv_type='q5_1' is not one of"):
        model.logits(TOKENS, kv_type="q5_1")
    with pytest.raises(ValueError, match="visible has shape"):
        model.logits(TOKENS, visible=CAUSAL)
