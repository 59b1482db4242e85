"""Base of the families: sizes, tensors and metadata that all of them have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..tensors import LOGIT_GAIN, TensorPlan, matrix, norm

VOCAB_SIZE, N_CTX_TRAIN = 512, 2048

# A string, a number, or one of them for each layer.
Value = bool | int | float | str | list[bool] | list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The dimensions of a transformer, by the names of llama.cpp."""

    n_layer: int
    n_embd: int = 128
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    n_ff: int = 192
    vocab_size: int = VOCAB_SIZE
    n_ctx_train: int = N_CTX_TRAIN
    rope_base: float = 10_000.0

    def keys(self) -> dict[str, Value]:
        """Return the metadata of these sizes."""
        return {
            "block_count": self.n_layer,
            "context_length": self.n_ctx_train,
            "embedding_length": self.n_embd,
            "feed_forward_length": self.n_ff,
            "attention.head_count": self.n_head,
            "attention.head_count_kv": self.n_head_kv,
            "attention.key_length": self.head_dim,
            "attention.value_length": self.head_dim,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.dimension_count": self.head_dim,
            "rope.freq_base": self.rope_base,
        }

    def without_attention(self) -> dict[str, Value]:
        """Return the metadata of a model without attention: 0 heads, and no sizes of heads."""
        named = ("attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.")
        return {k: v for k, v in self.keys().items() if not k.startswith(named)} | {"attention.head_count": 0}

    def kv_heads(self, attends: Iterable[bool]) -> list[int]:
        """KV heads of each layer: those of the model if the layer attends, else none."""
        return [self.n_head_kv if yes else 0 for yes in attends]


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model of an architecture.

    keys        its metadata, behind the architecture's name
    tensors     in the order of the file
    tokenizer   "bpe" or "spm"
    vocab_size  tokens of the vocabulary
    """

    architecture: str
    keys: Mapping[str, Value]
    tensors: tuple[TensorPlan, ...]
    tokenizer: str = "bpe"
    vocab_size: int = VOCAB_SIZE

    def add_keys(self, _gguf: Any, writer: Any) -> None:
        """Add the metadata to a gguf.GGUFWriter."""
        add = {
            bool: writer.add_bool,
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }
        writer.add_name("tiny")  # llama.cpp takes some names for real models, and looks for their tokens
        for name, value in self.keys.items():
            add[type(value)](f"{self.architecture}.{name}", value)


def embeddings(
    sizes: Sizes, *, tied: bool = False, output_norm: str = "output_norm", biased: bool = False
) -> list[TensorPlan]:
    """Return the tensors beside the layers; `tied` if the output matrix is the embedding."""
    tensors = [matrix("token_embd", sizes.vocab_size, sizes.n_embd, LOGIT_GAIN), norm(output_norm, sizes.n_embd)]
    if biased:
        tensors.append(TensorPlan(f"{output_norm}.bias", (sizes.n_embd,), spread=0.1))
    return tensors if tied else [*tensors, matrix("output", sizes.vocab_size, sizes.n_embd, LOGIT_GAIN)]
