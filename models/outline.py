"""The outline of a model: a GGUF file with its header, made from its dimensions, and holes in place of the weights.

A plan reads nothing else. The vocabulary is made up: as many tokens and merges as the model's, of usual lengths.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .ggml_types import GGML_TYPES, TYPE_NUMBERS, GgmlType
from .header import DEFAULT_ALIGNMENT, padded
from .suggested import SuggestedModel, Tokenizer

_U32, _I32, _F32, _STRING, _ARRAY = 4, 5, 6, 8, 9  # enum gguf_type
_BYTE_TOKENS = range(0x21, 0x180)  # characters that stand for bytes, and some more


def write_outline(path: Path, model: SuggestedModel) -> None:
    """Write the outline of a model to a file, which has the size of the model and takes none of it on the disk."""
    tensors, keys = list(_tensors(model)), dict(_keys(model))
    header = bytearray(struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)))
    for key, (kind, value) in keys.items():
        header += _string(key) + struct.pack("<I", kind) + _value(kind, value)
    offset = 0
    for name, shape, type_ in tensors:
        header += _string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        header += struct.pack("<IQ", TYPE_NUMBERS[type_.name], offset)
        offset += padded(type_.n_bytes(math.prod(shape)), DEFAULT_ALIGNMENT)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(padded(len(header), DEFAULT_ALIGNMENT) + offset)


def outline_bytes(model: SuggestedModel) -> int:
    """Return the bytes of a model's weights."""
    return sum(type_.n_bytes(math.prod(shape)) for _, shape, type_ in _tensors(model))


def _keys(model: SuggestedModel) -> Iterator[tuple[str, tuple[int, Any]]]:
    """Yield the metadata: each key, with the type and the value."""
    yield "general.architecture", (_STRING, model.architecture)
    counts = {
        "block_count": model.n_layer,
        "context_length": model.n_ctx_train,
        "embedding_length": model.n_embd,
        "feed_forward_length": model.n_ff,
        "attention.head_count": model.n_head,
        "attention.head_count_kv": model.n_head_kv,
        "attention.key_length": model.head_dim,
        "attention.value_length": model.head_dim,
        "rope.dimension_count": model.head_dim,
    }
    yield from ((f"{model.architecture}.{name}", (_U32, n)) for name, n in counts.items())
    yield f"{model.architecture}.attention.layer_norm_rms_epsilon", (_F32, 1e-6)
    yield f"{model.architecture}.rope.freq_base", (_F32, model.rope_base)
    tokenizer = model.tokenizer
    yield "tokenizer.ggml.model", (_STRING, "gpt2")
    yield "tokenizer.ggml.pre", (_STRING, tokenizer.pre)
    yield "tokenizer.ggml.tokens", (_ARRAY, (_STRING, _tokens(tokenizer)))
    yield "tokenizer.ggml.token_type", (_ARRAY, (_I32, [1] * tokenizer.n_tokens))
    merges = [f"t{i:05x} t{i + 1:05x}" for i in range(tokenizer.n_merges)]
    yield "tokenizer.ggml.merges", (_ARRAY, (_STRING, merges))
    yield "tokenizer.ggml.eos_token_id", (_U32, tokenizer.n_tokens - 1)


def _tokens(tokenizer: Tokenizer) -> list[str]:
    letters = [chr(code) for code in _BYTE_TOKENS]
    return letters + [f"t{i:05x}" for i in range(tokenizer.n_tokens - len(letters))]


def _tensors(model: SuggestedModel) -> Iterator[tuple[str, tuple[int, ...], GgmlType]]:
    """Yield name, shape and type of each tensor, as llama.cpp's converter and quantizer make them."""
    usual, better, f32 = _types(model.quantization)
    n_embd, n_queries, n_keys = model.n_embd, model.n_head * model.head_dim, model.n_head_kv * model.head_dim
    embeddings = better if model.tied else usual
    yield "token_embd.weight", (n_embd, model.tokenizer.n_tokens), embeddings
    if not model.tied:
        yield "output.weight", (n_embd, model.tokenizer.n_tokens), better
    yield "output_norm.weight", (n_embd,), f32
    if model.tokenizer.pre == "llama-bpe":  # factors of long contexts
        yield "rope_freqs.weight", (model.head_dim // 2,), f32
    for i in range(model.n_layer):
        precise = better if _has_more_bits(i, model.n_layer) else usual
        yield f"blk.{i}.attn_norm.weight", (n_embd,), f32
        yield f"blk.{i}.attn_q.weight", (n_embd, n_queries), usual
        yield f"blk.{i}.attn_k.weight", (n_embd, n_keys), usual
        yield f"blk.{i}.attn_v.weight", (n_embd, n_keys), precise
        yield f"blk.{i}.attn_output.weight", (n_queries, n_embd), usual
        if model.architecture == "qwen2":
            yield from (
                (f"blk.{i}.attn_{x}.bias", (n,), f32) for x, n in zip("qkv", (n_queries, n_keys, n_keys), strict=True)
            )
        if model.architecture == "qwen3":
            yield from ((f"blk.{i}.attn_{x}_norm.weight", (model.head_dim,), f32) for x in "qk")
        yield f"blk.{i}.ffn_norm.weight", (n_embd,), f32
        yield f"blk.{i}.ffn_gate.weight", (n_embd, model.n_ff), usual
        yield f"blk.{i}.ffn_up.weight", (n_embd, model.n_ff), usual
        yield f"blk.{i}.ffn_down.weight", (model.n_ff, n_embd), precise


def _types(quantization: str) -> tuple[GgmlType, GgmlType, GgmlType]:
    """Return three types: of usual matrices, of more precise matrices, and of vectors."""
    names = {"Q8_0": ("Q8_0", "Q8_0"), "Q4_K_M": ("Q4_K", "Q6_K")}[quantization]
    usual, better, f32 = (GGML_TYPES[TYPE_NUMBERS[name]] for name in (*names, "F32"))
    return usual, better, f32


def _has_more_bits(layer: int, n_layer: int) -> bool:
    """Return True if llama.cpp's quantizer stores some matrices of a layer more precisely: the first and the last
    eighth of the layers, and every third between.
    """
    first = n_layer // 8
    return layer < first or layer >= 7 * n_layer // 8 or (layer - first) % 3 == 2


def _value(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        return _string(value)
    if kind == _F32:
        return struct.pack("<f", value)
    if kind != _ARRAY:
        return struct.pack("<I", value)
    inner, items = value
    packed = struct.pack(f"<{len(items)}i", *items) if inner == _I32 else b"".join(map(_string, items))
    return struct.pack("<IQ", inner, len(items)) + packed


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
