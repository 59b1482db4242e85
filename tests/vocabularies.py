"""Tiny models whose vocabularies differ from those that `make_tiny` writes."""

from __future__ import annotations

from dataclasses import replace

from edgekv.testing.models.model_spec import ModelSpec
from edgekv.testing.models.vocabulary import make_vocabulary
from edgekv.testing.models.writer import write_model

CONTROL, USER_DEFINED = 3, 4  # numbers of `enum llama_token_type`
SIZES = {"n_layer": 2, "n_embd": 64, "n_head": 1, "n_head_kv": 1, "n_ff": 64, "vocab_size": 640, "n_ctx_train": 2048}


def write_vocabulary(path, tokenizer="bpe", *, named=None, **changes):
    """Write a tiny model with a changed vocabulary.

    named: types of tokens by their names; unknown names take the places of the last tokens
    changes: of the fields of `edgekv.testing.models.vocabulary.Vocabulary`
    """
    vocabulary = make_vocabulary(tokenizer, SIZES["vocab_size"])
    tokens, types = [*vocabulary.tokens], [*vocabulary.types]
    for place, (name, kind) in enumerate((named or {}).items(), 1):
        at = tokens.index(name) if name in tokens else -place
        tokens[at], types[at] = name, kind
    vocabulary = replace(vocabulary, tokens=tokens, types=types, **changes)
    spec = ModelSpec(name="tiny", architecture="llama", **SIZES)
    return write_model(path, spec, vocabulary, quantization="F32", seed=0)
