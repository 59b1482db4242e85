"""Keys and values that a running model's cache holds, and W_O of its layers; which models and policies allow it."""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt

import edgekv
from edgekv.binding.cache import Cache
from edgekv.errors import ConfigError
from edgekv.extras import needed
from edgekv.options import KV_TYPES
from edgekv.policies import Head, Policy

Projection = npt.NDArray[np.float64]  # W_O of a layer, (n_head_kv, G, d_v, n_embd)


def stored_head(cache: Cache, layer: int, g: int) -> Head:
    """Return the cells of a head, without queries. Raises ConfigError for cells that are not plain f16."""
    keys, values = (stored_rows(cache, layer, g, values=values) for values in (False, True))
    return Head(keys=keys, values=values, positions=cache.positions(layer, g), layer=layer, head=g)


def stored_rows(cache: Cache, layer: int, g: int, *, values: bool) -> npt.NDArray[np.float32]:
    """Keys or values of a head, (n, d). Raises ConfigError for cells that are not plain f16."""
    data, rows = cache.rows(layer, g, values=values)
    if rows.type != KV_TYPES["f16"] or rows.rotation:
        raise ConfigError("keys and values are read as plain f16, which these cells are not; use kv_type=f16")
    return data.view(np.float16).astype(np.float32)


def output_projections(runtime: edgekv.Runtime) -> list[Projection]:
    """W_O of every layer with attention, from the model's file.

    Raises ConfigError without the extra "make", and for a model without attention, or whose attention is not the plain
    one that is recomputed here: with sliding windows, softcapping, sinks or latents.
    """
    if not runtime.block_loop.cache.shape.n_layer:
        architecture = runtime.model.header.architecture
        raise ConfigError(f"{architecture!r} has no attention to measure; choose a model with attention")
    check_attention(runtime)
    reader, dequantize = needed("gguf", "make").GGUFReader(runtime.model.path), needed("gguf.quants", "make").dequantize
    kv_heads, head_dim_v = runtime.model.header.kv_heads, runtime.block_loop.cache.shape.head_dim_v
    found = {}
    for tensor in reader.tensors:
        match = re.fullmatch(r"blk\.(\d+)\.attn_output\.weight", tensor.name)
        if match and (n_head_kv := kv_heads[int(match[1])]):  # 0: a matrix in place of attention
            matrix = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)  # (n_embd, n_head * d_v)
            found[int(match[1])] = matrix.T.reshape(n_head_kv, -1, head_dim_v, len(matrix))
    if len(found) != runtime.block_loop.cache.shape.n_layer:
        raise _not_recomputed(runtime, "has sliding windows")
    return [found[layer] for layer in sorted(found)]


def check_base(policy: Policy) -> None:
    """Raise ConfigError for a policy that reads keys in another form than they are stored in."""
    if policy.base.before_rope:
        raise ConfigError(
            f"{policy.base.spec} turns keys before it scores, and this measurement captures them as they "
            "are stored; choose another policy"
        )


def check_attention(runtime: edgekv.Runtime) -> None:
    """Raise ConfigError unless the attention to the cells is a plain softmax of scaled products."""
    header = runtime.model.header
    if runtime.block_loop.cache.shape.latent_dim_v:
        raise _not_recomputed(runtime, "reads latents")
    if f"{header.architecture}.attn_logit_softcapping" in header.metadata:
        raise _not_recomputed(runtime, "is softcapped")
    if any(tensor.name.endswith("attn_sinks.weight") for tensor in header.tensors):
        raise _not_recomputed(runtime, "has learnt sinks")


def _not_recomputed(runtime: edgekv.Runtime, what: str) -> ConfigError:
    return ConfigError(
        f"the attention of {runtime.model.header.architecture!r} {what}, which this measurement does not recompute; "
        "choose a model with plain attention"
    )
