"""Writer of synthetic models as GGUF files, tensor by tensor."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from edgekv.errors import ConfigError
from edgekv.extras import needed

from .model_spec import QUANTIZATIONS, ModelSpec, RopeScaling
from .tensors import TensorPlan, draw, plan_tensors
from .vocabulary import CHAT_TEMPLATE, Vocabulary


def write_model(
    path: str | os.PathLike[str], spec: ModelSpec, vocabulary: Vocabulary, *, quantization: str, seed: int
) -> Path:
    """Write a model of random weights to `path`, as `write_tensors` does."""
    return write_tensors(
        path,
        spec.architecture,
        lambda gguf, writer: _add_dimensions(gguf, writer, spec),
        list(plan_tensors(spec)),
        vocabulary,
        quantization=quantization,
        seed=seed,
    )


def write_tensors(
    path: str | os.PathLike[str],
    architecture: str,
    add_keys: Callable[[Any, Any], None],
    plans: Sequence[TensorPlan],
    vocabulary: Vocabulary,
    *,
    quantization: str,
    seed: int,
) -> Path:
    """Write a model of random weights to `path`, whole or not at all; the same arguments give the same bytes.

    add_keys      adds the architecture's metadata; called with the gguf module and a gguf.GGUFWriter
    quantization  of the matrices, one of QUANTIZATIONS; norms and biases stay F32

    Raises ConfigError for an unknown quantization and if the `gguf` package is missing, and OSError
    if the file cannot be written.
    """
    if quantization not in QUANTIZATIONS:
        raise ConfigError(f"quantization={quantization!r} is unknown; choose one of {QUANTIZATIONS}")
    gguf = needed("gguf", "make")
    path = Path(path)
    types = [gguf.GGMLQuantizationType[quantization if plan.is_matrix else "F32"] for plan in plans]
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        writer = gguf.GGUFWriter(unfinished, architecture)
        try:
            add_keys(gguf, writer)
            add_vocabulary(writer, vocabulary)
            _write_header(gguf, writer, quantization, list(zip(plans, types, strict=True)))
        finally:
            writer.close()
        rng = np.random.default_rng(seed)
        with unfinished.open("ab") as file:
            for plan, ggml_type in zip(plans, types, strict=True):
                _pad(file, gguf.GGUF_DEFAULT_ALIGNMENT)
                for piece in draw(plan, ggml_type, rng):
                    file.write(piece.data)
            _pad(file, gguf.GGUF_DEFAULT_ALIGNMENT)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _write_header(gguf: Any, writer: Any, quantization: str, tensors: list[tuple[TensorPlan, Any]]) -> None:
    """Write the header, up to the tensor data."""
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_file_type(gguf.LlamaFileType["ALL_F32" if quantization == "F32" else f"MOSTLY_{quantization}"])
    for plan, ggml_type in tensors:
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[ggml_type]
        n_bytes = math.prod(plan.shape) // block_values * block_bytes
        writer.add_tensor_info(plan.name, plan.shape, np.dtype(np.float32), n_bytes, raw_dtype=ggml_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()


def _add_dimensions(gguf: Any, writer: Any, spec: ModelSpec) -> None:
    writer.add_name(spec.name)
    writer.add_block_count(spec.n_layer)
    writer.add_context_length(spec.n_ctx_train)
    writer.add_embedding_length(spec.n_embd)
    writer.add_feed_forward_length(list(spec.layer_ff) or spec.n_ff)
    writer.add_head_count([n_head for n_head, _ in spec.layer_heads] or spec.n_head)
    writer.add_head_count_kv([n_head_kv for _, n_head_kv in spec.layer_heads] or spec.n_head_kv)
    if spec.head_dim is not None:
        writer.add_key_length(spec.head_dim)
        writer.add_value_length(spec.head_dim)
    writer.add_rope_dimension_count(spec.n_embd_head)
    writer.add_rope_freq_base(spec.rope_base)
    if spec.rope_scaling is not None:
        _add_rope_scaling(gguf, writer, spec.rope_scaling)
    writer.add_layer_norm_rms_eps(spec.norm_epsilon)


def _add_rope_scaling(gguf: Any, writer: Any, scaling: RopeScaling) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType(scaling.kind))
    writer.add_rope_scaling_orig_ctx_len(scaling.n_ctx_original)
    if scaling.kind != "longrope":
        writer.add_rope_scaling_factor(scaling.factor)


def add_vocabulary(writer: Any, vocabulary: Vocabulary) -> None:
    """Add the vocabulary and its chat templates to a gguf.GGUFWriter."""
    writer.add_tokenizer_model(vocabulary.model)
    if vocabulary.merges:
        writer.add_tokenizer_pre(vocabulary.pre)
        writer.add_token_merges(vocabulary.merges)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
    writer.add_bos_token_id(vocabulary.bos)
    writer.add_eos_token_id(vocabulary.eos)
    if vocabulary.add_bos is not None:
        writer.add_add_bos_token(vocabulary.add_bos)
    if vocabulary.add_eos is not None:
        writer.add_add_eos_token(vocabulary.add_eos)
    templates = {"": CHAT_TEMPLATE} if vocabulary.templates is None else vocabulary.templates
    for name, template in templates.items():
        writer.add_string(f"tokenizer.chat_template{'.' if name else ''}{name}", template)


def _pad(file: Any, alignment: int) -> None:
    file.write(bytes(-file.tell() % alignment))
