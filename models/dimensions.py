"""Checks of the dimensions in a model's metadata, before llama.cpp gets the file and aborts on some wrong ones."""

from __future__ import annotations

import math

from edgekv.errors import UnsupportedModelError

from .metadata import Array, Metadata, damaged

# The largest valid value, by the key behind the architecture's name. 512 layers are llama.cpp's own
# limit; the others are far above any real model and keep sizes that are products of them within 64 bits.
_LIMITS = {
    "block_count": 512,
    "embedding_length": 1 << 20,
    "feed_forward_length": 1 << 24,
    "context_length": (1 << 31) - 1,
    "attention.head_count": 1 << 16,
    "attention.head_count_kv": 1 << 16,
    "attention.key_length": 1 << 16,
    "attention.value_length": 1 << 16,
    "rope.dimension_count": 1 << 16,
    "attention.key_length_swa": 1 << 16,
    "attention.value_length_swa": 1 << 16,
    "rope.dimension_count_swa": 1 << 16,
}
_REQUIRED = ("block_count", "embedding_length", "attention.head_count")
_PER_LAYER = ("attention.head_count", "attention.head_count_kv", "feed_forward_length")
# Layers and models without a feed-forward part have 0 there.
_MAY_BE_ZERO = ("feed_forward_length",)
_HEADS = ("attention.head_count", "attention.head_count_kv")
# Architectures whose rotary positions always have sections.
_SECTIONED = ("paddleocr", "qwen2vl", "qwen35", "qwen35moe", "qwen3tts", "qwen3vl", "qwen3vlmoe")
_N_SECTIONS = 4
_ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")
_MAX_EXPERTS = 1_024
# Architectures without attention. Their files say that they have 0 heads.
_RECURRENT = ("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7")
# Architectures whose layers with 0 KV heads keep a recurrent state in llama.cpp.
_HYBRIDS = ("granitehybrid", "jamba", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "plamo2")
# Architectures whose graphs in llama.cpp skip attention in layers with 0 KV heads; others crash on them.
_WITH_FREE_LAYERS = ("deci", *_HYBRIDS)


def check_runnable(architecture: str, metadata: Metadata) -> None:
    """Raise UnsupportedModelError for a file that is sound, but not a whole language model."""
    n_files = metadata.scalars.get("split.count", 1)
    if isinstance(n_files, int) and n_files > 1:
        raise UnsupportedModelError(
            f"this {architecture!r} model is split into {n_files} files, but edgekv reads one; "
            "merge them first with 'llama-gguf-split --merge FIRST_FILE MERGED_FILE'"
        )


def check_dimensions(architecture: str, metadata: Metadata) -> None:
    """Raise InvalidModelError if a dimension is missing, out of range, or at odds with another."""
    sizes = _read_sizes(architecture, metadata)
    _check_heads(architecture, sizes)
    _check_heads_per_layer(architecture, metadata)
    _check_free_layers(architecture, metadata)
    _check_experts(architecture, metadata)
    _check_rope(architecture, metadata, sizes)
    _check_floats(architecture, metadata)


def _read_sizes(architecture: str, metadata: Metadata) -> dict[str, int]:
    """Return the scalar dimensions by their key of _LIMITS; dimensions per layer are left out."""
    sizes: dict[str, int] = {}
    for name, limit in _LIMITS.items():
        key = f"{architecture}.{name}"
        value = metadata.scalars.get(key)
        if value is None:
            if name in _PER_LAYER and key in metadata.arrays:
                _check_per_layer(key, metadata.arrays[key], sizes["block_count"], limit)
            elif key in metadata.arrays:
                raise damaged(f"{key!r} is an array, but must be one number")
            elif name in _REQUIRED:
                raise damaged(f"the metadata key {key!r} is missing")
            continue
        least = 0 if name in _MAY_BE_ZERO or (name in _HEADS and architecture in _RECURRENT) else 1
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= limit:
            raise damaged(f"{key!r} is {value!r}, but must be a whole number from {least} to {limit}")
        sizes[name] = value
    return sizes


def _check_per_layer(key: str, array: Array, n_layer: int, limit: int) -> None:
    if array.length != n_layer:
        raise damaged(f"the array {key!r} has {array.length} elements, but the model has {n_layer} layers")
    if array.element_type not in ("i32", "u32") or not all(0 <= value <= limit for value in array.values or ()):
        raise damaged(f"the array {key!r} must hold whole numbers of 32 bits from 0 to {limit}")


def _check_heads(architecture: str, sizes: dict[str, int]) -> None:
    n_head = sizes.get("attention.head_count")
    if not n_head:
        return
    n_head_kv = sizes.get("attention.head_count_kv", n_head)
    if not n_head_kv or n_head % n_head_kv:
        raise damaged(
            f"'{architecture}.attention.head_count_kv' is {n_head_kv}, "
            f"but must divide the {n_head} heads of 'attention.head_count'"
        )
    n_embd = sizes["embedding_length"]
    if "attention.key_length" not in sizes and n_embd % n_head:
        raise damaged(
            f"'{architecture}.embedding_length' is {n_embd}, but must be a multiple of the {n_head} heads "
            "of 'attention.head_count' where 'attention.key_length' is missing"
        )


def _check_heads_per_layer(architecture: str, metadata: Metadata) -> None:
    """Check that in each layer the KV heads divide the heads, if a file gives them by layer."""
    keys = [f"{architecture}.attention.{name}" for name in ("head_count", "head_count_kv")]
    arrays = [metadata.arrays.get(key) for key in keys]
    n_layer = max((array.length for array in arrays if array), default=0)
    heads, kv_heads = (
        array.values or () if array else [metadata.scalars.get(key, 0)] * n_layer
        for key, array in zip(keys, arrays, strict=True)
    )
    for il, (n_head, n_head_kv) in enumerate(zip(heads, kv_heads, strict=True)):
        if n_head_kv and (not n_head or int(n_head) % int(n_head_kv)):
            raise damaged(f"layer {il} has {n_head_kv} KV heads, but they must divide its {n_head} heads")


def _check_free_layers(architecture: str, metadata: Metadata) -> None:
    """Check that llama.cpp knows layers without attention in this architecture, if the file has any."""
    arrays = layer_arrays(architecture, metadata)
    heads = arrays.get(f"{architecture}.attention.head_count")
    kv_heads = arrays.get(f"{architecture}.attention.head_count_kv", heads)
    free = [il for il, n in enumerate(kv_heads or ()) if not n]
    if free and architecture not in _WITH_FREE_LAYERS:
        raise _unsupported(architecture, f"no attention in layer {free[0]}, as only deci models and some hybrids may")
    if free and len(free) == len(kv_heads or ()):
        raise _unsupported(architecture, "no attention in any layer")
    if heads and not heads[0] and f"{architecture}.attention.key_length" not in metadata.scalars:
        raise _unsupported(architecture, "no query heads in layer 0, which the size of a head is taken from")
    width_key = f"{architecture}.feed_forward_length"
    widths = arrays.get(width_key) or (metadata.scalars.get(width_key, 0),)
    if architecture == "deci" and not widths[-1]:
        raise _unsupported(architecture, "no feed-forward part in the last layer, without which there are no logits")


def layer_arrays(architecture: str, metadata: Metadata) -> dict[str, tuple[int, ...]]:
    """Return the dimensions that are given layer by layer, by key."""
    keys = (f"{architecture}.{name}" for name in _PER_LAYER)
    return {key: tuple(map(int, array.values or ())) for key in keys if (array := metadata.arrays.get(key))}


def _check_rope(architecture: str, metadata: Metadata, sizes: dict[str, int]) -> None:
    head_dim = sizes.get("attention.key_length")
    if head_dim is None and sizes.get("attention.head_count"):
        head_dim = sizes["embedding_length"] // sizes["attention.head_count"]
    n_rot = sizes.get("rope.dimension_count", 0)
    head_dim_swa = sizes.get("attention.key_length_swa")
    n_rot_swa = sizes.get("rope.dimension_count_swa", (n_rot or head_dim or 0) if head_dim_swa else n_rot)
    of_windows = ("dimension_count_swa", n_rot_swa, head_dim_swa or head_dim)
    for key, n, width in (("dimension_count", n_rot, head_dim), of_windows):
        if n % 2:
            raise damaged(f"'{architecture}.rope.{key}' is {n}, but must be even")
        if width is not None and n > width:
            raise damaged(f"'{architecture}.rope.{key}' is {n}, but a head has {width} values")
    scaling = metadata.scalars.get(f"{architecture}.rope.scaling.type", "none")
    if scaling not in _ROPE_SCALINGS:
        raise damaged(f"'{architecture}.rope.scaling.type' is {scaling!r}, but must be one of {_ROPE_SCALINGS}")
    _check_sections(architecture, metadata, head_dim)


def _check_sections(architecture: str, metadata: Metadata, head_dim: int | None) -> None:
    """Check the sections of RoPE. ggml divides by their pairs, and aborts the process for none or too many."""
    key = f"{architecture}.rope.dimension_sections"
    array = metadata.arrays.get(key)
    given = metadata.scalars.get(key)
    sections = (given,) * _N_SECTIONS if given is not None else tuple(array.values or ()) if array else ()
    if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in sections):
        raise damaged(f"{key!r} is {sections}, but must hold whole numbers of at least 0")
    if architecture in _SECTIONED and not any(sections[: _N_SECTIONS - 1]):
        raise damaged(f"{key!r} is {sections}, but one of the first three sections must have pairs")
    if head_dim is not None and sum(map(int, sections)) > head_dim:
        raise damaged(f"{key!r} is {sections}, {sum(map(int, sections))} pairs, but a head has {head_dim} values")


def _check_floats(architecture: str, metadata: Metadata) -> None:
    """Check numbers. ggml aborts the process on an epsilon below 0 or NaN; other values that are not finite spoil
    every logit."""
    for key, value in metadata.scalars.items():
        if not key.startswith(f"{architecture}.") or not isinstance(value, float):
            continue
        if not math.isfinite(value):
            raise damaged(f"{key!r} is {value}, but must be finite")
        if value < 0 and key.endswith("epsilon"):
            raise damaged(f"{key!r} is {value}, but must be at least 0")


def _check_experts(architecture: str, metadata: Metadata) -> None:
    n_expert = metadata.scalars.get(f"{architecture}.expert_count", 0)
    n_used = metadata.scalars.get(f"{architecture}.expert_used_count", 0)
    if f"{architecture}.expert_used_count" in metadata.arrays:
        return
    if not (isinstance(n_expert, int) and isinstance(n_used, int) and 0 <= n_used <= n_expert <= _MAX_EXPERTS):
        raise damaged(
            f"'{architecture}.expert_used_count' is {n_used!r} of {n_expert!r} in 'expert_count', "
            f"but must be at most that, and that at most {_MAX_EXPERTS}"
        )
    if n_expert and not n_used:
        raise damaged(f"'{architecture}.expert_used_count' is 0 of {n_expert} experts, but must be at least 1")


def _unsupported(architecture: str, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"architecture {architecture!r} uses {reason}, which is not supported yet; choose a model of another family"
    )
