"""read_header takes sound files, and refuses each kind of damage with its own words and nothing but a ModelError."""

from __future__ import annotations

import dataclasses
import math
import os
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from gguf_bytes import BYTE_TOKENS, GgufBytes, as_keys, f32, i32s, metadata, string, strings, tensor, text, u32, u32s

from edgekv.errors import InvalidModelError, ModelError, ModelNotFoundError, UnsupportedModelError
from edgekv.models import Header, read_header
from edgekv.models.ggml_types import GGML_TYPES
from edgekv.models.outline import write_outline
from edgekv.models.suggested import SUGGESTED, SuggestedModel, Tokenizer
from edgekv.testing.models.families import make_family

Read = Callable[[bytes], Header]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    path = tmp_path / "model.gguf"

    def write_and_read(data: bytes) -> Header:
        path.write_bytes(data)
        return read_header(path)

    return write_and_read


def with_metadata(**changes: bytes | None) -> bytes:
    return GgufBytes(keys=as_keys(metadata(**changes))).build()


def test_a_sound_file(read: Read) -> None:
    data = GgufBytes().build()
    header = read(data)
    assert header.architecture == "llama"
    assert (header.n_layer, header.n_embd, header.n_head, header.n_head_kv) == (2, 64, 4, 2)
    assert (header.n_ctx_train, header.vocab_size, header.chat_template) == (128, 259, "{{ messages }}")
    assert header.metadata["llama.block_count"] == 2
    assert header.array_lengths == {"tokenizer.ggml.tokens": 259}
    assert "tokenizer.ggml.tokens" not in header.metadata
    first, second = header.tensors
    assert (first.name, first.shape, first.ggml_type.name, first.n_bytes) == ("a", (64, 3), "F32", 768)
    assert (second.name, second.shape, second.ggml_type.name, second.n_bytes) == ("b", (32, 2), "Q4_0", 36)
    assert second.offset == 768
    assert header.n_tensors == 2
    assert header.file_bytes == len(data)
    assert header.data_offset == len(data) - 804
    assert header.weight_bytes == 804


def test_the_last_byte_of_the_last_tensor_is_in_the_file(read: Read) -> None:
    data = GgufBytes().build()  # ends with the last tensor, without padding
    with pytest.raises(InvalidModelError, match=f"ends at byte {len(data) - 1}, but the tensor 'b' .* needs 36 bytes"):
        read(data[:-1])
    assert read(data + b"\0").weight_bytes == read(data).weight_bytes


def test_version_2_is_read(read: Read) -> None:
    assert read(GgufBytes(version=2).build()).n_layer == 2


def test_what_a_file_leaves_out(read: Read) -> None:
    header = read(
        with_metadata(llama__attention__head_count_kv=None, llama__context_length=None, tokenizer__chat_template=None)
    )
    assert (header.n_head_kv, header.n_ctx_train, header.chat_template) == (4, None, None)


def test_heads_per_layer_are_not_scalars(read: Read) -> None:
    header = read(with_metadata(llama__attention__head_count_kv=u32s(2, 4)))
    assert (header.n_head, header.n_head_kv) == (4, None)


def test_dimensions_of_each_layer(read: Read) -> None:
    header = read(with_metadata())
    assert (header.kv_heads, header.head_dim, header.by_layer("feed_forward_length")) == ((2, 2), 16, (0, 0))
    header = read(with_metadata(llama__attention__head_count=u32s(2, 4), llama__attention__head_count_kv=None))
    assert (header.kv_heads, header.head_dim) == ((2, 4), 32)  # the size of a head is that of the first layer
    header = read(with_metadata(llama__feed_forward_length=u32s(96, 0), llama__attention__key_length=u32(8)))
    assert (header.by_layer("feed_forward_length"), header.head_dim) == ((96, 0), 8)


def deci(**changes: bytes | None) -> bytes:
    """A file of deci with 2 layers."""
    values = {key.replace("llama.", "deci."): value for key, value in metadata().items()}
    values |= {"general.architecture": text("deci"), "deci.feed_forward_length": u32(96)}
    values |= {key.replace("__", "."): value for key, value in changes.items() if value is not None}
    return GgufBytes(keys=as_keys(values)).build()


def test_models_of_recurrent_states_alone_have_no_heads(read: Read) -> None:
    values = {key.replace("llama.", "mamba2."): value for key, value in metadata().items()}
    del values["mamba2.attention.head_count_kv"]
    values |= {"general.architecture": text("mamba2"), "mamba2.attention.head_count": u32(0)}
    assert read(GgufBytes(keys=as_keys(values)).build()).kv_heads == (0, 0)


def test_layers_of_deci_may_have_no_attention(read: Read) -> None:
    for kinds in ((2, 0), (0, 2)):
        assert read(deci(deci__attention__head_count_kv=u32s(*kinds))).kv_heads == kinds


FREE_LAYERS = {
    "another architecture": (
        with_metadata(llama__attention__head_count_kv=u32s(2, 0)),
        "'llama' uses no attention in layer 1, as only deci models and some hybrids may",
    ),
    "no attention at all": (deci(deci__attention__head_count_kv=u32s(0, 0)), "'deci' uses no attention in any layer"),
    "no heads in the first": (
        deci(deci__attention__head_count=u32s(0, 4), deci__attention__head_count_kv=u32s(0, 2)),
        "'deci' uses no query heads in layer 0",
    ),
    "nothing behind the last": (
        deci(deci__feed_forward_length=u32s(96, 0)),
        "'deci' uses no feed-forward part in the last layer",
    ),
}


@pytest.mark.parametrize(("data", "message"), FREE_LAYERS.values(), ids=FREE_LAYERS)
def test_free_layers_that_cannot_be_run(read: Read, data: bytes, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(data)


def test_kv_heads_without_query_heads(read: Read) -> None:
    data = deci(deci__attention__head_count=u32s(4, 0), deci__attention__head_count_kv=u32s(2, 2))
    with pytest.raises(InvalidModelError, match="layer 1 has 2 KV heads, but they must divide its 0 heads"):
        read(data)


def test_alignment_moves_the_tensors(read: Read) -> None:
    header = read(GgufBytes(keys=as_keys(metadata(general__alignment=u32(256))), alignment=256).build())
    assert header.data_offset % 256 == 0


def test_a_long_string_is_left_out(read: Read) -> None:
    header = read(with_metadata(general__description=text("x" * (1 << 20) + "y"), general__name=text("z")))
    assert "general.description" not in header.metadata
    assert header.metadata["general.name"] == "z"


def test_a_sound_file_cut_anywhere(read: Read) -> None:
    data = GgufBytes().build()
    # seven shares no factor with the sizes of numbers, so it comes upon every byte of each; an empty file is called so
    for n_bytes in range(1, len(data), 7):
        with pytest.raises(InvalidModelError, match=f"ends at byte {n_bytes}, but .* needs"):
            read(data[:n_bytes])


def test_a_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gguf", tmp_path / "nul\0.gguf"):
        with pytest.raises(ModelNotFoundError, match="there is no model file"):
            read_header(path)


def test_not_a_file(tmp_path: Path) -> None:
    paths = [tmp_path]
    if sys.platform != "win32":  # pipes have no names there
        os.mkfifo(tmp_path / "pipe")
        paths.append(tmp_path / "pipe")
    for path in paths:
        with pytest.raises(InvalidModelError, match="is not a file"):
            read_header(path)


def test_the_message_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_bytes(b"<!DOCTYPE html>")
    with pytest.raises(InvalidModelError, match=r"page\.gguf': the file starts with b'<!DO'.*download"):
        read_header(path)


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(InvalidModelError, match=r"empty\.gguf': the file is empty; download it again"):
        read_header(tmp_path / "empty.gguf")


HUGE = (1 << 64) - 1
SOUND = as_keys(metadata())
DAMAGED = {
    "magic": (GgufBytes(magic=b"GGML"), "starts with"),
    "version 1": (GgufBytes(version=1), "version 1 "),
    "version 4": (GgufBytes(version=4), "version 4 "),
    "big endian": (GgufBytes(version=3 << 24), "little-endian"),
    "no tensors": (GgufBytes(n_tensors=0), "0 tensors"),
    "many tensors": (GgufBytes(n_tensors=HUGE), "tensors, but"),
    "many keys": (GgufBytes(n_keys=HUGE), "metadata keys, but"),
    "key length": (GgufBytes(keys=[struct.pack("<Q", HUGE), *SOUND]), "a metadata key .* bytes"),
    "key not UTF-8": (GgufBytes(keys=[string(b"\xff") + u32(1), *SOUND]), "not UTF-8"),
    "key empty": (GgufBytes(keys=[string("") + u32(1), *SOUND]), "is empty"),
    "key twice": (GgufBytes(keys=[SOUND[0], *SOUND]), "'general.architecture' stands twice"),
    "value type": (GgufBytes(keys=[string("x") + struct.pack("<I", 13), *SOUND]), "value type 13"),
    "string length": (GgufBytes(keys=[string("x") + struct.pack("<IQ", 8, HUGE), *SOUND]), "the value of 'x'"),
    "array of arrays": (GgufBytes(keys=[string("x") + struct.pack("<IIQ", 9, 9, 1), *SOUND]), "value type 9"),
    "array length": (GgufBytes(keys=[string("x") + struct.pack("<IIQ", 9, 4, HUGE), *SOUND]), "'x' claims"),
    "array past the end": (GgufBytes(keys=[string("x") + struct.pack("<IIQ", 9, 4, 1 << 29), *SOUND]), "'x' at byte"),
    "strings length": (GgufBytes(keys=[string("x") + struct.pack("<IIQ", 9, 8, 1 << 30), *SOUND]), "'x' claims"),
    "string in array": (GgufBytes(keys=[string("x") + struct.pack("<IIQQ", 9, 8, 1, HUGE), *SOUND]), "'x' at byte"),
    "text in all": (GgufBytes(keys=[string(f"{i}") + text(b"x" * (1 << 20)) for i in range(9)]), "over 8388608 bytes"),
    "tensor name": (GgufBytes(tensors=[tensor("n" * 64, (64,), 0, 0)]), "64 bytes, but at most 63"),
    "tensor twice": (GgufBytes(tensors=[tensor("a", (64,), 0, 0), tensor("a", (64,), 0, 256)]), "'a' stands twice"),
    "no dimensions": (GgufBytes(tensors=[tensor("a", (), 0, 0)]), "0 dimensions"),
    "5 dimensions": (GgufBytes(tensors=[tensor("a", (1,) * 5, 0, 0)]), "5 dimensions"),
    "dimension 0": (GgufBytes(tensors=[tensor("a", (64, 0), 0, 0)]), r"shape \(64, 0\)"),
    "overflow": (GgufBytes(tensors=[tensor("a", (1 << 32, 1 << 32), 0, 0)]), "product"),
    "ggml type": (GgufBytes(tensors=[tensor("a", (64,), 4, 0)]), "ggml type 4"),
    "partial block": (GgufBytes(tensors=[tensor("a", (48,), 2, 0)]), "rows of 48 values, but Q4_0"),
    "first offset": (GgufBytes(tensors=[tensor("a", (64,), 0, 32)]), "offset 32"),
    "offset past the end": (
        GgufBytes(tensors=[tensor("a", (64,), 0, 0), tensor("b", (64,), 0, 1 << 60)]),
        "the one before it ends at 256",
    ),
    "vector of blocks": (
        GgufBytes(tensors=[tensor("a", (64,), 2, 0)]),
        "Q4_0 in 1 dimensions, but",
    ),
    "matrix of integers": (GgufBytes(tensors=[tensor("a", (64, 3), 26, 0)]), "I32 in 2 dimensions"),
    "held values": (
        GgufBytes(keys=[*SOUND, *(string(f"{i}") + u32s(*range(512)) for i in range(129))]),
        "short arrays up to '128' have over 65536 values",
    ),
    "tensor past the end": (GgufBytes(tensors=[tensor("a", (64, 1 << 40), 0, 0)]), "'a' at byte .* needs"),
}


@pytest.mark.parametrize(("file", "message"), DAMAGED.values(), ids=DAMAGED)
def test_damage(read: Read, file: GgufBytes, message: str) -> None:
    with pytest.raises(InvalidModelError, match=message):
        read(file.build())


INCONSISTENT = {
    "no architecture": ({"general__architecture": None}, "general.architecture' is None"),
    "architecture number": ({"general__architecture": u32(1)}, "general.architecture' is 1"),
    "other architecture": ({"general__architecture": text("qwen2")}, "'qwen2.block_count' is missing"),
    "no layers": ({"llama__block_count": u32(0)}, "'llama.block_count' is 0, .* from 1 to 512"),
    "many layers": ({"llama__block_count": u32(513)}, "'llama.block_count' is 513"),
    "layers in words": ({"llama__block_count": text("2")}, "whole number"),
    "layers missing": ({"llama__block_count": None}, "'llama.block_count' is missing"),
    "no embedding": ({"llama__embedding_length": u32(0)}, "embedding_length' is 0"),
    "no context": ({"llama__context_length": u32(0)}, "context_length' is 0"),
    "no heads": ({"llama__attention__head_count": u32(0)}, "head_count' is 0"),
    "heads missing": ({"llama__attention__head_count": None}, "head_count' is missing"),
    "no KV heads": ({"llama__attention__head_count_kv": u32(0)}, "head_count_kv' is 0"),
    "odd KV heads": ({"llama__attention__head_count_kv": u32(3)}, "is 3, but must divide the 4 heads"),
    "heads of 3 layers": ({"llama__attention__head_count": u32s(4, 4, 4)}, "3 elements, .* 2 layers"),
    "odd embedding": ({"llama__embedding_length": u32(66)}, "is 66, but must be a multiple of the 4 heads"),
    "no key": ({"llama__attention__key_length": u32(0)}, "key_length' is 0"),
    "no value": ({"llama__attention__value_length": u32(0)}, "value_length' is 0"),
    "odd rope": ({"llama__rope__dimension_count": u32(15)}, "is 15, but must be even"),
    "wide rope of windows": (
        {"llama__rope__dimension_count_swa": u32(18)},
        "count_swa' is 18, but a head has 16 values",
    ),
    "small heads of windows": (
        {"llama__attention__key_length_swa": u32(8)},
        "count_swa' is 16, but a head has 8 values",
    ),
    "sections below 0": ({"llama__rope__dimension_sections": i32s(8, -8, 4, 0)}, "whole numbers of at least 0"),
    "wide sections": ({"llama__rope__dimension_sections": i32s(8, 8, 4, 0)}, "20 pairs, but a head has 16 values"),
    "rope scaling": ({"llama__rope__scaling__type": text("linfar")}, "is 'linfar', but must be one of"),
    "experts used": ({"llama__expert_used_count": u32(2)}, "is 2 of 0"),
    "no experts used": ({"llama__expert_count": u32(2)}, "is 0 of 2"),
    "alignment": ({"general__alignment": u32(48)}, "alignment' is 48, .* power of 2"),
    "alignment 0": ({"general__alignment": u32(0)}, "alignment' is 0"),
    "heads by the layer": ({"llama__attention__head_count": u32s(4, 1 << 17)}, "numbers of 32 bits from 0 to 65536"),
    "heads in words": ({"llama__attention__head_count": strings("4", "4")}, "numbers of 32 bits"),
    "odd KV heads of a layer": ({"llama__attention__head_count_kv": i32s(2, 3)}, "layer 1 has 3 KV heads.* 4 heads"),
    "context by the layer": ({"llama__context_length": u32s(1, 2)}, "is an array, but must be one number"),
    "wide feed-forward": ({"llama__feed_forward_length": u32(1 << 30)}, "feed_forward_length' is 1073741824"),
    "wide rope": ({"llama__rope__dimension_count": u32(18)}, "is 18, but a head has 16 values"),
    "epsilon NaN": ({"llama__attention__layer_norm_rms_epsilon": f32(math.nan)}, "epsilon' is nan, but must be finite"),
    "epsilon below 0": ({"llama__attention__layer_norm_rms_epsilon": f32(-1.0)}, "epsilon' is -1.0, .* at least 0"),
    "rope base": ({"llama__rope__freq_base": f32(math.inf)}, "freq_base' is inf"),
    "few tokens": ({"tokenizer__ggml__tokens": strings("a")}, "has 1 tokens, but at least 256"),
    "tokens missing": ({"tokenizer__ggml__tokens": None}, "missing or no array of strings"),
    "tokens are numbers": ({"tokenizer__ggml__tokens": u32s(*range(300))}, "missing or no array of strings"),
    "a byte missing": ({"tokenizer__ggml__tokens": strings("a", "b", *BYTE_TOKENS[:255])}, "tokens for 255 bytes"),
    "scores too few": ({"tokenizer__ggml__scores": i32s(1, 2)}, "scores' has 2 elements, but there are 259 tokens"),
    "scores in words": ({"tokenizer__ggml__scores": strings("a")}, "of type string, but must have f32 or i32"),
    "types too few": ({"tokenizer__ggml__token_type": i32s(1)}, "token_type' has 1 elements"),
    "types unsigned": ({"tokenizer__ggml__token_type": u32s(1)}, "of type u32, but must have i32"),
    "merges": ({"tokenizer__ggml__merges": text("a b")}, "merges' is 'a b', but must be an array"),
    "token twice": ({"tokenizer__ggml__tokens": strings("a", "b", "a")}, "same token twice"),
}


@pytest.mark.parametrize(("changes", "message"), INCONSISTENT.values(), ids=INCONSISTENT)
def test_inconsistent_metadata(read: Read, changes: dict[str, bytes | None], message: str) -> None:
    with pytest.raises(InvalidModelError, match=message):
        read(with_metadata(**changes))


def test_empty_tokens_may_repeat(read: Read) -> None:
    assert read(with_metadata(tokenizer__ggml__tokens=strings("", "", *BYTE_TOKENS))).vocab_size == 258


def test_a_byte_may_stand_for_itself(read: Read) -> None:
    assert (
        read(with_metadata(tokenizer__ggml__tokens=strings("A", *BYTE_TOKENS[:65], *BYTE_TOKENS[66:]))).vocab_size
        == 256
    )


def test_a_key_length_frees_the_embedding(read: Read) -> None:
    changes = {"llama__embedding_length": u32(66), "llama__attention__key_length": u32(32)}
    assert read(with_metadata(**changes)).n_embd == 66


UNSUPPORTED = {
    "split": ({"split__count": u32(3)}, "'llama' model is split into 3 files.*merge"),
    "no tokenizer": ({"tokenizer__ggml__model": None}, "'llama' file has no tokenizer"),
    "other tokenizer": ({"tokenizer__ggml__model": text("t5")}, "tokenizer 't5', which is not supported yet"),
    "other pre-tokenizer": ({"tokenizer__ggml__pre": text("whitespace")}, "'whitespace', which cannot read blanks"),
    "no_vocab": ({"tokenizer__ggml__model": text("no_vocab")}, "'no_vocab'"),
}


@pytest.mark.parametrize(("changes", "message"), UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_unsupported(read: Read, changes: dict[str, bytes | None], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        read(with_metadata(**changes))


def test_one_split_is_whole(read: Read) -> None:
    assert read(with_metadata(split__count=u32(1))).n_layer == 2


def test_flipped_bits_never_raise_anything_else(read: Read) -> None:
    data = GgufBytes().build()
    n_header_bits = 8 * (len(data) - 804)
    rng = random.Random(0)
    messages = []
    for _ in range(300):
        damaged = bytearray(data)
        for bit in rng.sample(range(n_header_bits), k=rng.randint(1, 3)):
            damaged[bit // 8] ^= 1 << bit % 8
        try:
            read(bytes(damaged))
        except ModelError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert max(map(len, messages)) < 1_000, "a message that quotes what was read must stay short"


def test_the_types_agree_with_gguf() -> None:
    gguf = pytest.importorskip("gguf")
    # Q8_1 never stands in a file; the package counts two floats where ggml has two halves.
    for number, ours in GGML_TYPES.items():
        theirs = next((t for t in gguf.GGMLQuantizationType if t == number), None)
        if theirs is not None and ours.name != "Q8_1":
            assert ours.name == theirs.name
            assert (ours.block_values, ours.block_bytes) == gguf.GGML_QUANT_SIZES[theirs]


def test_norms_by_group_must_be_f32(tmp_path):
    """A Mamba-2 model multiplies by a norm of two dimensions; ggml would abort the process."""
    path = make_family(tmp_path / "model.gguf", "mamba2")
    raw = bytearray(path.read_bytes())
    name = b"blk.0.ssm_norm.weight"
    type_at = raw.index(name) + len(name) + 4 + 2 * 8  # dimensions, and two of them
    raw[type_at : type_at + 4] = (1).to_bytes(4, "little")  # F16
    path.write_bytes(raw)
    with pytest.raises(InvalidModelError, match="vectors and norms must be F32"):
        read_header(path)


@pytest.mark.parametrize("architecture", ["llama", pytest.param("qwen2", marks=pytest.mark.nightly)])
def test_weights_of_an_embedding_that_is_stored_twice_count_once(tmp_path: Path, architecture: str) -> None:
    model = next(model for model in SUGGESTED if model.architecture == architecture)
    n_weights = []
    for tied in (True, False):
        path = tmp_path / f"{tied}.gguf"
        write_outline(path, dataclasses.replace(model, tied=tied))
        sizes = {tensor.name: math.prod(tensor.shape) for tensor in read_header(path).tensors}
        n_weights.append(sum(sizes.values()) - (0 if tied else sizes["token_embd.weight"]))
    assert n_weights[0] == n_weights[1]
    assert n_weights[0] == pytest.approx(1e6 * model.parameters, rel=0.02)


@pytest.mark.parametrize(
    "model", {model.architecture: model for model in SUGGESTED}.values(), ids=lambda it: it.file_name
)
def test_a_cache_of_4_bits_suits_models_without_biases_on_keys(tmp_path: Path, model: SuggestedModel) -> None:
    few_words = Tokenizer(model.tokenizer.pre, 2_000, 500)
    write_outline(tmp_path / "outline.gguf", dataclasses.replace(model, tokenizer=few_words))
    header = read_header(tmp_path / "outline.gguf")
    assert header.suits_cache("f16")
    assert header.suits_cache("q8_0")
    assert header.suits_cache("q4_0") == (model.architecture != "qwen2")
