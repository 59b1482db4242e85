"""Ways to make a GGUF file wrong. Each takes a random source and a file, and returns the bytes of a damaged one."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable

from gguf_file import FORMATS, STRING, GgufFile, Key, parse
from hostile_values import (
    ARCHITECTURES,
    CACHE_KEYS,
    CACHE_PATTERNS,
    COUNTS,
    FLAGS,
    FLOATS,
    GGML_TYPES,
    INTEGERS,
    PRE_TOKENIZERS,
    TEMPLATES,
    TOKENIZERS,
    TOKENS,
)

Mutation = Callable[[random.Random, bytes], bytes]


def flipped_header_bits(rng: random.Random, raw: bytes) -> bytes:
    return _flip(rng, raw, len(raw) - len(parse(raw).data))


def flipped_bits(rng: random.Random, raw: bytes) -> bytes:
    return _flip(rng, raw, len(raw))


def truncated(rng: random.Random, raw: bytes) -> bytes:
    header = len(raw) - len(parse(raw).data)
    return raw[: rng.randrange(rng.choice((header, len(raw))))]


def moved_bytes(rng: random.Random, raw: bytes) -> bytes:
    """A run of bytes is cut out, doubled, or put over another."""
    header = len(raw) - len(parse(raw).data)
    start, other, n = rng.randrange(header), rng.randrange(header), rng.choice((1, 4, 8, 64, 1000))
    run = raw[start : start + n]
    return rng.choice(
        (raw[:start] + raw[start + n :], raw[:other] + run + raw[other:], raw[:other] + run + raw[other + n :])
    )


def huge_counts(rng: random.Random, raw: bytes) -> bytes:
    """The length of anything: the file's counts, or a length or a count somewhere in the header."""
    file = parse(raw)
    if rng.random() < 0.3:
        setattr(file, rng.choice(("n_keys", "n_tensors")), rng.choice(COUNTS))
        return file.build()
    part = rng.choice([*file.keys, *file.tensors]).build()
    place = raw.index(part) + (0 if rng.random() < 0.4 else rng.randrange(len(part)))
    return raw[:place] + struct.pack("<Q", rng.choice(COUNTS)) + raw[place + 8 :]


def integers(rng: random.Random, raw: bytes) -> bytes:
    """One or two whole numbers of the metadata get another value."""
    file = parse(raw)
    numbers = [key for key in file.keys if not key.is_array and FORMATS.get(key.element_type, "f") not in "fd"]
    for key in rng.sample(numbers, k=rng.choice((1, 1, 2))):
        (value,) = key.values
        key.values = [rng.choice((*INTEGERS, int(value) + 1, int(value) * 2, int(value) // 2))]
    return file.build()


def floats(rng: random.Random, raw: bytes) -> bytes:
    """A number that is no number, or not possible; also where the file names none."""
    file = parse(raw)
    architecture = bytes(file.key(b"general.architecture").values[0])
    names = (
        *(b"attention.layer_norm_rms_epsilon", b"rope.freq_base", b"rope.scaling.factor", b"rope.scaling.attn_factor"),
        *(b"attention.scale", b"logit_scale", b"residual_scale", b"attention.max_alibi_bias", b"attention.clamp_kqv"),
    )
    name = architecture + b"." + rng.choice(names)
    file.keys = [key for key in file.keys if key.name != name]
    file.keys.append(Key(name, 6, [rng.choice(FLOATS)], is_array=False))
    return file.build()


def value_types(rng: random.Random, raw: bytes) -> bytes:
    """A key has another type, with a value of that type."""
    file = parse(raw)
    key = rng.choice(file.keys)
    key.element_type = rng.choice((*FORMATS, STRING))
    key.is_array = rng.random() < 0.3
    n = rng.choice((0, 1, 2, 300, 2000)) if key.is_array else 1
    key.values = [b"text" if key.element_type == STRING else rng.choice((0, 1, 2, 300))] * n
    return file.build()


def keys(rng: random.Random, raw: bytes) -> bytes:
    """A key is missing, there twice, misspelt, or somewhere else."""
    file = parse(raw)
    i = rng.randrange(len(file.keys))
    key = file.keys.pop(i)
    what = rng.randrange(4)
    if what == 1:
        file.keys += [key, key]
    elif what == 2:
        file.keys.insert(i, Key(key.name + b"x", key.element_type, key.values, key.is_array))
    elif what == 3:
        file.keys.insert(rng.randrange(len(file.keys)), key)
    return file.build()


def per_layer(rng: random.Random, raw: bytes) -> bytes:
    """A dimension is given layer by layer."""
    file = parse(raw)
    names = (b"head_count", b"head_count_kv", b"feed_forward_length", b"key_length", b"expert_used_count")
    name = rng.choice(names)
    architecture = bytes(file.key(b"general.architecture").values[0])
    whole = architecture + (b"." if name in (b"feed_forward_length", b"expert_used_count") else b".attention.") + name
    file.keys = [key for key in file.keys if key.name != whole]
    n = rng.choice((0, 1, 1, 1, 1, 2, 512, 513))
    element_type = rng.choice((4, 5, 5, 6, 7, STRING))
    sound = {b"feed_forward_length": 128, b"head_count": 4, b"head_count_kv": 2}.get(name, 1)
    values = [_element(rng, element_type) if rng.random() < 0.5 or element_type == STRING else sound for _ in range(n)]
    file.keys.append(Key(whole, element_type, values, is_array=True))
    return file.build()


def caches(rng: random.Random, raw: bytes) -> bytes:
    """Another window, state, rank or pattern of layers; also where the file names none."""
    file = parse(raw)
    architecture = bytes(file.key(b"general.architecture").values[0])
    for name in rng.sample(CACHE_KEYS, k=rng.choice((1, 1, 2, 4))):
        whole = architecture + b"." + name
        file.keys = [key for key in file.keys if key.name != whole]
        if name in CACHE_PATTERNS and rng.random() < 0.8:
            n, element_type = rng.choice((0, 1, 3, 4, 6, 8, 9, 513)), rng.choice((5, 5, 7, 7, STRING))
            values = [_element(rng, element_type) if rng.random() < 0.1 else rng.randrange(2) for _ in range(n)]
            values = [b"x"] * n if element_type == STRING else values
            file.keys.append(Key(whole, element_type, values, is_array=True))
        else:
            file.keys.append(Key(whole, 4, [rng.choice(INTEGERS) % (1 << 32)], is_array=False))
    return file.build()


def free_layers(rng: random.Random, raw: bytes) -> bytes:
    """Layers lack attention or the feed-forward part; the tensors are those that remain, or those of before."""
    file = parse(raw)
    old = bytes(file.key(b"general.architecture").values[0])
    n_layer = int(file.key(b".block_count").values[0])
    kinds = [rng.choice(((4, 2), (4, 2), (4, 0), (0, 0), (0, 2))) for _ in range(n_layer)]
    widths = [rng.choice((128, 128, 128, 0)) for _ in range(n_layer)]
    arrays = {
        b".attention.head_count": [n_head for n_head, _ in kinds],
        b".attention.head_count_kv": [n_head_kv for _, n_head_kv in kinds],
        b".feed_forward_length": widths,
    }
    for name in rng.sample(sorted(arrays), k=rng.choice((1, 2, 3, 3))):
        file.keys = [key for key in file.keys if key.name != old + name]
        file.keys.append(Key(old + name, 4, arrays[name], is_array=True))
    if rng.random() < 0.7:
        missing = set()
        for layer, ((n_head, n_head_kv), n_ff) in enumerate(zip(kinds, widths, strict=True)):
            names = [b"attn_q.", b"attn_k.", b"attn_v."] if not n_head_kv else []
            names += [b"attn_norm.", b"attn_output."] if not n_head else []
            names += [b"ffn_"] if not n_ff else []
            missing |= {
                t.name for t in file.tensors for name in names if t.name.startswith(b"blk.%d.%b" % (layer, name))
            }
        if rng.random() < 0.3:  # the projections of a layer in one, where only that of queries remains
            for tensor in file.tensors:
                if tensor.name in missing and b"attn_q." in tensor.name:
                    missing.discard(tensor.name)
                    tensor.name = tensor.name.replace(b"attn_q.", b"attn_qkv.")
        file.tensors = [tensor for tensor in file.tensors if tensor.name not in missing]
    if rng.random() < 0.5:
        _rename(file, old, b"deci" if rng.random() < 0.7 else rng.choice(ARCHITECTURES))
    return _laid_out(file)


def token_arrays(rng: random.Random, raw: bytes) -> bytes:
    """Arrays of the tokenizer are shorter, longer, of another type, or hold other values."""
    file = parse(raw)
    key = rng.choice([key for key in file.keys if key.is_array])
    what = rng.randrange(4)
    if what == 0:
        key.values = key.values[: rng.randrange(len(key.values))]
    elif what == 1:
        key.values = key.values + key.values[: rng.randrange(1, 50)]
    elif what == 2:
        key.element_type = rng.choice((*FORMATS, STRING))
        key.values = [_element(rng, key.element_type) for _ in key.values]
    else:
        for i in rng.sample(range(len(key.values)), k=min(len(key.values), rng.choice((1, 5, 300)))):
            key.values[i] = _element(rng, key.element_type)
    return file.build()


def tokens(rng: random.Random, raw: bytes) -> bytes:
    """Texts of tokens, their types, and the numbers of the special ones."""
    file = parse(raw)
    texts, types = file.key(b"tokenizer.ggml.tokens"), file.key(b"tokenizer.ggml.token_type")
    n = rng.choice((1, 3, 40, len(texts.values)))
    for i in rng.sample(range(len(texts.values)), k=n):
        # Of many, none should stand twice, or that alone would be noticed.
        text = rng.choice((*TOKENS, rng.randbytes(rng.randrange(1, 9))))
        texts.values[i] = text + (b"" if n < 40 else b"%d" % i)
        types.values[i] = rng.randrange(-1, 9)
    if rng.random() < 0.5:
        names = (b"bos", b"eos", b"eot", b"eom", b"unknown", b"seperator", b"padding", b"mask", b"fim_pre", b"prefix")
        for name in rng.sample(names, k=3):
            whole = b"tokenizer.ggml." + name + b"_token_id"
            file.keys = [key for key in file.keys if key.name != whole]
            file.keys.append(Key(whole, 4, [rng.choice((0, 1, len(texts.values) - 1, len(texts.values), -1))], False))
    return file.build()


def small_vocabularies(rng: random.Random, raw: bytes) -> bytes:
    """A vocabulary of few tokens, with an embedding to match."""
    file = parse(raw)
    n = rng.choice((1, 3, 12, 255, 256, 300))
    n_tokens = len(file.key(b"tokenizer.ggml.tokens").values)
    for key in file.keys:
        if key.is_array and len(key.values) == n_tokens:  # merges are others, and so is what there is one of a layer
            key.values = rng.sample(key.values, k=n) if rng.random() < 0.5 else key.values[:n]
    if rng.random() < 0.5:
        file.keys = [key for key in file.keys if not key.name.endswith((b"bos_token_id", b"eos_token_id"))]
        file.keys.append(Key(b"tokenizer.ggml.add_eos_token", 7, [1], is_array=False))
    for tensor in file.tensors:
        if tensor.name in (b"token_embd.weight", b"output.weight"):
            tensor.shape[1] = n
    return _laid_out(file)


def tokenizers(rng: random.Random, raw: bytes) -> bytes:
    """A tokenizer of another kind than the vocabulary was made for."""
    file = parse(raw)
    file.key(b"tokenizer.ggml.model").values = [rng.choice(TOKENIZERS)]
    for name in FLAGS:
        if rng.random() < 0.4:
            whole = b"tokenizer.ggml." + name
            file.keys = [key for key in file.keys if key.name != whole]
            file.keys.append(Key(whole, 7, [rng.randrange(2)], is_array=False))
    if rng.random() < 0.5:
        pre = rng.choice(PRE_TOKENIZERS)
        file.keys = [key for key in file.keys if key.name != b"tokenizer.ggml.pre"]
        file.keys.append(Key(b"tokenizer.ggml.pre", STRING, [pre], is_array=False))
    if rng.random() < 0.3:
        blob = struct.pack("<I", rng.choice((0, 4, 8, 60, 1 << 31))) + rng.randbytes(64)
        file.keys.append(Key(b"tokenizer.ggml.precompiled_charsmap", 0, list(blob), is_array=True))
    return file.build()


def architectures(rng: random.Random, raw: bytes) -> bytes:
    """Return the tensors under the name of another architecture."""
    file = parse(raw)
    _rename(file, bytes(file.key(b"general.architecture").values[0]), rng.choice(ARCHITECTURES))
    return file.build()


def tensors(rng: random.Random, raw: bytes) -> bytes:
    """Entries of tensors: shape, type, offset, name, order."""
    file = parse(raw)
    tensor = rng.choice(file.tensors)
    what = rng.randrange(6)
    if what == 0:
        tensor.shape[rng.randrange(len(tensor.shape))] = rng.choice((*COUNTS, 32, 63, 64, 96))
    elif what == 1:
        tensor.shape = rng.choice(
            ([], tensor.shape[::-1], [*tensor.shape, 1], [*tensor.shape, 0], [1] * 5, [1 << 32] * 2)
        )
    elif what == 2:
        tensor.ggml_type = rng.choice(GGML_TYPES)
    elif what == 3:
        tensor.offset = rng.choice((*COUNTS, tensor.offset + 32, rng.choice(file.tensors).offset))
    elif what == 4:
        tensor.name = rng.choice(
            (b"", b"x" * 63, b"x" * 64, tensor.name + b"x", rng.choice(file.tensors).name, b"\xff")
        )
    else:
        rng.shuffle(file.tensors)
    return _laid_out(file) if rng.random() < 0.5 else file.build()


def retyped_tensors(rng: random.Random, raw: bytes) -> bytes:
    """One tensor, or all of a kind, in another ggml type, with data enough and right offsets."""
    file = parse(raw)
    chosen = rng.choice(file.tensors)
    ending = chosen.name if rng.random() < 0.5 else chosen.name.rsplit(b".", 2)[-2] + b".weight"
    ggml_type = rng.choice(GGML_TYPES[:43])
    for tensor in file.tensors:
        if tensor.name.endswith(ending):
            tensor.ggml_type = ggml_type
    return _laid_out(file)


def weights(rng: random.Random, raw: bytes) -> bytes:
    """Weights that are no numbers, or very large ones."""
    file = parse(raw)
    word = rng.choice((struct.pack("<f", rng.choice(FLOATS)), b"\xff" * 4, b"\x00\x7c" * 2, rng.randbytes(4)))
    start = rng.randrange(len(file.data)) // 4 * 4
    n_bytes = min(len(file.data) - start, rng.choice((4, 4096, len(file.data))))
    file.data = file.data[:start] + (word * (n_bytes // 4 + 1))[:n_bytes] + file.data[start + n_bytes :]
    return file.build()


def templates(rng: random.Random, raw: bytes) -> bytes:
    file = parse(raw)
    file.key(b"tokenizer.chat_template").values = [rng.choice(TEMPLATES)]
    return file.build()


KINDS: tuple[Mutation, ...] = (
    *(flipped_header_bits, flipped_bits, truncated, moved_bytes, huge_counts, integers, floats, value_types, keys),
    *(per_layer, token_arrays, tokens, small_vocabularies, tokenizers, architectures, tensors, retyped_tensors),
    *(weights, templates, free_layers, caches),
)


def _flip(rng: random.Random, raw: bytes, n_bytes: int) -> bytes:
    damaged = bytearray(raw)
    for _ in range(rng.choice((1, 1, 2, 5))):
        damaged[rng.randrange(n_bytes)] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def _rename(file: GgufFile, old: bytes, new: bytes) -> None:
    """Give a file another architecture."""
    for key in file.keys:
        key.name = key.name.replace(old + b".", new + b".", 1)
    file.key(b"general.architecture").values = [new]


def _element(rng: random.Random, element_type: int) -> int | float | bytes:
    if element_type == STRING:
        return rng.choice(TOKENS)
    return rng.choice(FLOATS if FORMATS[element_type] in "fd" else INTEGERS)


def _laid_out(file: GgufFile) -> bytes:
    """The file with offsets that fit its tensors, and data enough for them; none where they are beyond reason."""
    from edgekv.models.ggml_types import GGML_TYPES as SIZES

    offset = 0
    for tensor in file.tensors:
        tensor.offset = offset
        size = SIZES.get(tensor.ggml_type)
        n_bytes = size.n_bytes(math.prod(tensor.shape)) if size else 0
        offset += n_bytes + -n_bytes % 32
        if offset > 1 << 24:
            return file.build()
    file.data = (file.data * (offset // max(1, len(file.data)) + 1))[:offset]
    return file.build()
