"""Tiny models of architectures that edgekv refuses: llama.cpp loads them whole, and nothing ever runs them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

from edgekv.testing.models.vocabulary import make_vocabulary
from edgekv.testing.models.writer import add_vocabulary

VOCAB_SIZE, N_CTX_TRAIN, N_LAYER = 512, 256, 2
N_EMBD, N_FF, N_HEAD, HEAD_DIM = 64, 96, 2, 32


@dataclass(frozen=True)
class Architecture:
    """Particular metadata and tensors of an architecture.

    keys     metadata behind the architecture's name: int, float, bool, or a list with an int for each layer
    tensors  those beside the layers and the embedding, by name, with their numpy shape
    layers   tensors of each layer, by their name behind "blk.N.", with their numpy shape
    """

    keys: dict
    layers: tuple[dict, ...]
    tensors: dict


def norms(*names, biases=False):
    """Norm weights over the embedding, with biases or without."""
    return {f"{name}.{kind}": (N_EMBD,) for name in names for kind in (("weight", "bias") if biases else ("weight",))}


ATTENTION_KEYS = {"attention.head_count": N_HEAD, "attention.head_count_kv": N_HEAD}

ATTENTION = {f"attn_{name}.weight": (N_EMBD, N_EMBD) for name in ("q", "k", "v", "output")}
ATTENTION_BIASES = {f"attn_{name}.bias": (N_EMBD,) for name in ("q", "k", "v")}
FEED_FORWARD = {
    "ffn_gate.weight": (N_FF, N_EMBD),
    "ffn_up.weight": (N_FF, N_EMBD),
    "ffn_down.weight": (N_EMBD, N_FF),
}
TRANSFORMER = norms("attn_norm", "ffn_norm") | ATTENTION | FEED_FORWARD

OUTPUT_NORM = norms("output_norm")

ARCHITECTURES = {
    "bloom": Architecture(
        ATTENTION_KEYS,
        N_LAYER
        * (
            norms("attn_norm", "attn_output", "ffn_norm", "ffn_down", biases=True)
            | {
                "attn_qkv.weight": (3 * N_EMBD, N_EMBD),
                "attn_qkv.bias": (3 * N_EMBD,),
                "attn_output.weight": (N_EMBD, N_EMBD),
                "ffn_up.weight": (N_FF, N_EMBD),
                "ffn_up.bias": (N_FF,),
                "ffn_down.weight": (N_EMBD, N_FF),
            },
        ),
        norms("token_embd_norm", "output_norm", biases=True),
    ),
    "bert": Architecture(
        ATTENTION_KEYS | {"attention.causal": False},
        N_LAYER
        * (
            norms("attn_output_norm", "layer_output_norm", biases=True)
            | ATTENTION
            | {"ffn_up.weight": (N_FF, N_EMBD), "ffn_down.weight": (N_EMBD, N_FF)},
        ),
        norms("token_embd_norm", biases=True)
        | {"token_types.weight": (2, N_EMBD), "position_embd.weight": (N_CTX_TRAIN, N_EMBD)},
    ),
}


def make_unsupported(path: Path, architecture: str, **changes) -> Path:
    """Write a model of ARCHITECTURES with weights of zero; `changes` replace keys, "__" standing for "."."""
    return make_zeros(path, architecture, ARCHITECTURES[architecture], **changes)


def make_zeros(path: Path, architecture: str, wanted: Architecture, **changes) -> Path:
    """Write a model with weights of zero, `changes` as of make_unsupported."""
    keys = {
        "block_count": N_LAYER,
        "context_length": N_CTX_TRAIN,
        "embedding_length": N_EMBD,
        "feed_forward_length": N_FF,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.layer_norm_epsilon": 1e-5,
        **wanted.keys,
        **{name.replace("__", "."): value for name, value in changes.items()},
    }
    tensors = {"token_embd.weight": (VOCAB_SIZE, N_EMBD), **wanted.tensors}
    for il, layer in enumerate(wanted.layers):
        tensors |= {f"blk.{il}.{name}": shape for name, shape in layer.items()}

    writer = gguf.GGUFWriter(path, architecture)
    add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
    for name, value in keys.items():
        add[type(value)](f"{architecture}.{name}", value)
    add_vocabulary(writer, make_vocabulary("bpe", VOCAB_SIZE))
    writer.add_token_type_count(2)
    for name, shape in tensors.items():
        writer.add_tensor(name, np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
