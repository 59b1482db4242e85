"""The random tensors of a synthetic model, drawn so that it behaves like a trained one in tests.

Attention scores spread by about 2, so that attention is far from uniform, and each attention and
feed-forward layer adds at least about as much to the residual stream as the embedding, so that the output
depends on the whole prompt. The logits spread by about 3.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .model_spec import BLOCK_VALUES, ModelSpec

# Spreads of a matrix's output for an input of unit spread.
QUERY_KEY_GAIN = 1.5
RESIDUAL_GAIN = 1.5
LOGIT_GAIN = 3.0
_NORM_NOISE = 0.1
BIAS_SPREAD = 0.5

# A larger tensor repeats its quantised blocks, picked at random, because quantising takes the time.
POOL_BLOCKS = 16_384
_CHUNK_BLOCKS = 1 << 19


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """A tensor of normal values, or of `values` if given.

    shape      (n_rows, row length), (n_matrices, n_rows, row length) or (length,)
    is_matrix  it takes the quantization of the model; everything else stays F32
    """

    name: str
    shape: tuple[int, ...]
    mean: float = 0.0
    spread: float = 0.0
    values: tuple[float, ...] = ()
    is_matrix: bool = False


def plan_tensors(spec: ModelSpec) -> Iterator[TensorPlan]:
    """Return the tensors of `spec`, in the order of the file."""
    yield matrix("token_embd", spec.vocab_size, spec.n_embd, LOGIT_GAIN)
    yield norm("output_norm", spec.n_embd)
    if not spec.tied:
        yield matrix("output", spec.vocab_size, spec.n_embd, LOGIT_GAIN)
    if spec.rope_factors:
        yield TensorPlan("rope_freqs.weight", (len(spec.rope_factors),), values=spec.rope_factors)
    if spec.longrope_factors:
        n_pairs = len(spec.longrope_factors)
        yield TensorPlan("rope_factors_long.weight", (n_pairs,), values=spec.longrope_factors)
        yield TensorPlan("rope_factors_short.weight", (n_pairs,), values=n_pairs * (1.0,))
    for layer in range(spec.n_layer):
        yield from _plan_layer(spec, layer)


def _plan_layer(spec: ModelSpec, layer: int) -> Iterator[TensorPlan]:
    prefix = f"blk.{layer}."
    # qwen3 normalises queries and keys, so its gain sits in those norms.
    has_head_norms = spec.architecture == "qwen3"
    gain = 1.0 if has_head_norms else QUERY_KEY_GAIN
    # gemma multiplies the embedding by sqrt(n_embd). Its layers must keep up, or the last token would win every time.
    residual_gain = RESIDUAL_GAIN * (math.sqrt(spec.n_embd) if spec.architecture == "gemma" else 1.0)
    n_embd_q, n_embd_kv = (n * spec.n_embd_head for n in spec.heads(layer))
    if n_embd_q:
        yield norm(f"{prefix}attn_norm", spec.n_embd)
    if n_embd_kv:
        yield matrix(f"{prefix}attn_q", n_embd_q, spec.n_embd, gain)
        yield matrix(f"{prefix}attn_k", n_embd_kv, spec.n_embd, gain)
        yield matrix(f"{prefix}attn_v", n_embd_kv, spec.n_embd, 1.0)
    if spec.architecture == "qwen2":
        for name, length in (("attn_q", n_embd_q), ("attn_k", n_embd_kv), ("attn_v", n_embd_kv)):
            yield TensorPlan(f"{prefix}{name}.bias", (length,), spread=BIAS_SPREAD)
    if has_head_norms:
        yield norm(f"{prefix}attn_q_norm", spec.n_embd_head, QUERY_KEY_GAIN)
        yield norm(f"{prefix}attn_k_norm", spec.n_embd_head, QUERY_KEY_GAIN)
    if n_embd_q:
        yield matrix(f"{prefix}attn_output", spec.n_embd, n_embd_q if n_embd_kv else spec.n_embd, residual_gain)
    if n_ff := spec.ff(layer):
        yield norm(f"{prefix}ffn_norm", spec.n_embd)
        yield matrix(f"{prefix}ffn_gate", n_ff, spec.n_embd, 1.0)
        yield matrix(f"{prefix}ffn_up", n_ff, spec.n_embd, 1.0)
        yield matrix(f"{prefix}ffn_down", spec.n_embd, n_ff, residual_gain)


def matrix(name: str, n_rows: int, row_length: int, gain: float, n_matrices: int = 0) -> TensorPlan:
    """Return a matrix whose output has the spread `gain` for unit input, or `n_matrices` of them in one tensor."""
    shape = (n_matrices, n_rows, row_length) if n_matrices else (n_rows, row_length)
    return TensorPlan(f"{name}.weight", shape, spread=gain / math.sqrt(row_length), is_matrix=True)


def norm(name: str, length: int, mean: float = 1.0) -> TensorPlan:
    """Return the weights of a norm."""
    return TensorPlan(f"{name}.weight", (length,), mean=mean, spread=_NORM_NOISE)


def draw(plan: TensorPlan, ggml_type: Any, rng: np.random.Generator) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes of the tensor in `ggml_type`, a gguf.GGMLQuantizationType, in pieces of at most 64 MiB."""
    from gguf.quants import quantize

    def normal(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        values = rng.standard_normal(shape, dtype=np.float32)
        values *= plan.spread
        values += plan.mean
        return values

    n_blocks = math.prod(plan.shape) // BLOCK_VALUES
    if plan.values:
        yield _as_bytes(np.array(plan.values, dtype="<f4"))
    elif not plan.is_matrix or n_blocks <= POOL_BLOCKS:
        yield _as_bytes(quantize(normal(plan.shape), ggml_type))
    else:
        pool = _as_bytes(quantize(normal((POOL_BLOCKS, BLOCK_VALUES)), ggml_type)).reshape(POOL_BLOCKS, -1)
        for start in range(0, n_blocks, _CHUNK_BLOCKS):
            yield pool[rng.integers(POOL_BLOCKS, size=min(_CHUNK_BLOCKS, n_blocks - start))].reshape(-1)


def _as_bytes(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(values).view(np.uint8).reshape(-1)
