"""Made models say of themselves what was asked for, and the gguf package reads them back."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from diagonals import by_night

from edgekv.errors import ConfigError
from edgekv.models import read_header
from edgekv.testing.models.model_spec import ARCHITECTURES, QUANTIZATIONS, RopeScaling
from edgekv.testing.models.shapes import SHAPES, llama3_rope_factors, make_shape
from edgekv.testing.models.tensors import POOL_BLOCKS
from edgekv.testing.models.tiny import make_tiny
from edgekv.testing.models.vocabulary import TOKENIZERS, make_vocabulary

gguf = pytest.importorskip("gguf")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_header_says_what_was_asked(tmp_path: Path, architecture: str) -> None:
    path = make_tiny(
        tmp_path / "t.gguf",
        architecture=architecture,
        n_layer=3,
        n_embd=96,
        n_head=6,
        n_head_kv=2,
        n_ff=160,
        vocab_size=600,
        n_ctx_train=100,
    )
    header = read_header(path)
    assert header.architecture == architecture
    assert (header.n_layer, header.n_embd, header.n_head, header.n_head_kv) == (3, 96, 6, 2)
    assert (header.n_ctx_train, header.vocab_size) == (100, 600)
    assert header.metadata[f"{architecture}.feed_forward_length"] == 160
    assert f"{architecture}.attention.key_length" not in header.metadata
    assert "<|im_start|>" in (header.chat_template or "")
    names = {tensor.name for tensor in header.tensors}
    assert ("output.weight" in names) == (architecture != "gemma")
    assert ("blk.2.attn_k.bias" in names) == (architecture == "qwen2")
    assert ("blk.2.attn_q_norm.weight" in names) == (architecture == "qwen3")


@pytest.mark.parametrize("n_group", [1, 3, 4, 8])
@pytest.mark.parametrize("head_dim", [32, 64, 128])
def test_heads(tmp_path: Path, n_group: int, head_dim: int) -> None:
    path = make_tiny(tmp_path / "t.gguf", n_layer=1, n_head=2 * n_group, n_head_kv=2, head_dim=head_dim)
    header = read_header(path)
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    assert header.metadata["llama.attention.key_length"] == header.metadata["llama.attention.value_length"] == head_dim
    assert shapes["blk.0.attn_q.weight"] == (64, 2 * n_group * head_dim)
    assert shapes["blk.0.attn_k.weight"] == (64, 2 * head_dim)


def test_rope_scaling_is_in_the_header(tmp_path: Path) -> None:
    yarn = RopeScaling(kind="yarn", n_ctx_original=128, factor=4.0)
    metadata = read_header(make_tiny(tmp_path / "y.gguf", rope_scaling=yarn)).metadata
    assert {key: value for key, value in metadata.items() if ".scaling." in key} == {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.original_context_length": 128,
        "llama.rope.scaling.factor": 4.0,
    }
    longrope = RopeScaling(kind="longrope", n_ctx_original=128, factors=(1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0))
    header = read_header(make_tiny(tmp_path / "l.gguf", rope_scaling=longrope))
    assert header.metadata["llama.rope.scaling.type"] == "longrope"
    assert "llama.rope.scaling.factor" not in header.metadata
    factors = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "l.gguf").tensors}
    assert factors["rope_factors_long.weight"].tolist() == list(longrope.factors)
    assert factors["rope_factors_short.weight"].tolist() == [1.0] * 8


@pytest.mark.parametrize("quantization", QUANTIZATIONS)
def test_the_gguf_package_reads_it_back(tmp_path: Path, quantization: str) -> None:
    path = make_tiny(tmp_path / "t.gguf", quantization=quantization, n_layer=1)
    header = read_header(path)
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert [tensor.name for tensor in header.tensors] == list(theirs)
    for ours in header.tensors:
        tensor = theirs[ours.name]
        assert ours.ggml_type.name == (quantization if len(ours.shape) == 2 else "F32") == tensor.tensor_type.name
        assert ours.shape == tuple(tensor.shape)
        assert header.data_offset + ours.offset == tensor.data_offset
        assert ours.n_bytes == tensor.n_bytes
    values = gguf.quants.dequantize(theirs["blk.0.ffn_up.weight"].data, theirs["blk.0.ffn_up.weight"].tensor_type)
    assert values.std() == pytest.approx(1 / 8, rel=0.05)
    norm = theirs["output_norm.weight"].data
    assert norm.mean() == pytest.approx(1.0, abs=0.05)
    assert norm.std() > 0.05


def test_a_pooled_tensor_has_no_equal_rows(tmp_path: Path) -> None:
    path = make_tiny(tmp_path / "t.gguf", vocab_size=POOL_BLOCKS, quantization="Q4_0", n_layer=1)
    rows = gguf.GGUFReader(path).tensors[0].data
    assert len(np.unique(rows, axis=0)) == POOL_BLOCKS


def test_the_seed_decides_the_bytes(tmp_path: Path) -> None:
    first, again, other = (
        make_tiny(tmp_path / f"{name}.gguf", seed=seed).read_bytes() for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first != other


def test_nothing_is_left_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_tiny(tmp_path / "t.gguf")
    before = path.read_bytes()

    def fail(*arguments: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("edgekv.testing.models.writer.draw", fail)
    with pytest.raises(OSError, match="disk full"):
        make_tiny(path, seed=1)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("tokenizer", TOKENIZERS)
@pytest.mark.parametrize("vocab_size", [262, 300, 512, 5_000])
def test_vocabularies(tokenizer: str, vocab_size: int) -> None:
    vocab_size += 4 * (tokenizer == "code")  # the tokens for gaps
    vocabulary = make_vocabulary(tokenizer, vocab_size)
    assert len(vocabulary.tokens) == len(set(vocabulary.tokens)) == len(vocabulary.types) == vocab_size
    assert vocabulary.tokens[vocabulary.eos] in ("<|im_end|>", "</s>")
    for marker in ("<|im_start|>", "<|im_end|>"):
        assert vocabulary.types[vocabulary.tokens.index(marker)] == gguf.TokenType.CONTROL
    if tokenizer == "spm":
        assert len(vocabulary.scores) == vocab_size
        assert vocabulary.types.count(gguf.TokenType.BYTE) == 256
        assert "\u2581" in vocabulary.tokens
    elif vocab_size >= 512:
        merged = {merge.replace(" ", "") for merge in vocabulary.merges}
        parts = {part for merge in vocabulary.merges for part in merge.split(" ")}
        assert merged | parts <= set(vocabulary.tokens)


BAD_ARGUMENTS = {
    "layers of llama": ({"layer_heads": ((4, 2), (0, 0))}, "only the layers of deci differ"),
    "too few layers": ({"architecture": "deci", "layer_ff": (64,)}, "layer_ff has 1 elements, .* n_layer=2"),
    "KV heads alone": (
        {"architecture": "deci", "layer_heads": ((4, 2), (0, 2))},
        "2 KV heads, which must divide its 0",
    ),
    "a wide layer": ({"architecture": "deci", "layer_ff": (64, 65)}, "layer_ff has 65, .* multiple of 32"),
    "an odd layer": ({"architecture": "deci", "layer_heads": ((4, 2), (3, 1))}, "3 heads of 16 .* no multiple of 32"),
    "architecture": ({"architecture": "mamba"}, "'mamba' is unknown"),
    "quantization": ({"quantization": "Q3_K"}, "'Q3_K' is unknown"),
    "tokenizer": ({"tokenizer": "wpm"}, "'wpm' is unknown"),
    "no layers": ({"n_layer": 0}, "n_layer=0"),
    "KV heads": ({"n_head_kv": 3}, "n_head_kv=3 must divide n_head=4"),
    "heads": ({"n_head": 3, "n_head_kv": 1}, "not a multiple of n_head=3"),
    "odd head": ({"head_dim": 9}, "even number"),
    "row": ({"n_ff": 100}, "n_ff is 100, but must be a multiple of 32"),
    "qwen2": ({"architecture": "qwen2", "head_dim": 64}, "set n_embd=256"),
    "rope factors": ({"rope_factors": (1.0, 2.0)}, "rope_factors has 2 values, but needs 8"),
    "longrope": (
        {"rope_scaling": RopeScaling(kind="longrope", n_ctx_original=8, factors=(1.0,))},
        "longrope has 1 factors, but needs 8",
    ),
    "vocabulary": ({"vocab_size": 100}, "at least 259"),
}


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_bad_arguments(tmp_path: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_tiny(tmp_path / "t.gguf", **arguments)
    assert not list(tmp_path.iterdir())


def test_an_unknown_rope_scaling() -> None:
    with pytest.raises(ConfigError, match="'ntk' is unknown"):
        RopeScaling(kind="ntk", n_ctx_original=128)


def test_without_the_gguf_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"pip install \"gguf"):
        make_tiny(tmp_path / "t.gguf")


@pytest.mark.parametrize("name", by_night(SHAPES, ["smollm2-135m"]))
def test_shapes(tmp_path: Path, name: str) -> None:
    header = read_header(make_shape(name, tmp_path / "s.gguf", n_layer=1))
    spec = SHAPES[name]
    assert (header.n_layer, header.n_embd, header.vocab_size) == (1, spec.n_embd, spec.vocab_size)
    assert "output.weight" not in {tensor.name for tensor in header.tensors}


def test_an_unknown_shape(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'llama-4' is unknown.*llama-3\.2-1b"):
        make_shape("llama-4", tmp_path / "s.gguf")


def test_rope_factors_slow_the_low_frequencies_only() -> None:
    factors = llama3_rope_factors(64, 500_000.0, factor=32.0, low=1.0, high=4.0, n_ctx_original=8_192)
    assert len(factors) == 32
    assert factors[0] == 1.0
    assert factors[-1] == pytest.approx(32.0)
    assert list(factors) == sorted(factors)
