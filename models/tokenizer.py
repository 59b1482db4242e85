"""Checks of the tokenizer in a model's metadata, because llama.cpp aborts while it tokenises with some wrong ones."""

from __future__ import annotations

from edgekv.errors import UnsupportedModelError

from .metadata import TOKENS_KEY, Metadata, damaged

# sentencepiece, byte-level BPE, and sentencepiece's tokens under BPE
_MODELS = ("llama", "gpt2", "gemma4")
_ASSERTS = "whitespace"  # a pre-tokenizer of embedding models, which aborts at two blanks
# The fewest tokens that can spell every text; real vocabularies have thousands.
_MIN_TOKENS = 256
# Key behind "tokenizer.ggml.": the types its elements may have, and whether each token needs one.
_ARRAYS = {
    "scores": (("f32", "i32"), True),
    "token_type": (("i32",), True),
    "merges": (("string",), False),
}


def check_tokenizer(architecture: str, metadata: Metadata) -> None:
    """Raise UnsupportedModelError for a tokenizer of another kind, and InvalidModelError for an incomplete one."""
    model = metadata.scalars.get("tokenizer.ggml.model")
    if model in (None, "no_vocab", "none"):
        raise UnsupportedModelError(
            f"this {architecture!r} file has no tokenizer (tokenizer.ggml.model is {model!r}), "
            "so it is not a language model that reads text; choose the file of the language model itself"
        )
    if model not in _MODELS:
        raise UnsupportedModelError(
            f"this {architecture!r} file has the tokenizer {model!r}, which is not supported yet; choose a model whose "
            f"tokenizer is one of {_MODELS}"
        )
    if metadata.scalars.get("tokenizer.ggml.pre") == _ASSERTS:
        raise UnsupportedModelError(
            f"this {architecture!r} file has the pre-tokenizer {_ASSERTS!r}, which cannot read blanks; choose another "
            "model"
        )
    tokens = metadata.arrays.get(TOKENS_KEY)
    if tokens is None or tokens.element_type != "string":
        raise damaged(f"the vocabulary {TOKENS_KEY!r} is missing or no array of strings")
    if tokens.length < _MIN_TOKENS:
        raise damaged(f"the vocabulary has {tokens.length} tokens, but at least {_MIN_TOKENS} spell every text")
    if model != "gpt2" and metadata.n_byte_tokens < 256:
        raise damaged(f"the vocabulary has tokens for {metadata.n_byte_tokens} bytes, but needs one for each of 256")
    for name, (types, is_per_token) in _ARRAYS.items():
        _check_array(f"tokenizer.ggml.{name}", metadata, types, tokens.length if is_per_token else 0)


def _check_array(key: str, metadata: Metadata, types: tuple[str, ...], least: int) -> None:
    if key in metadata.scalars:
        raise damaged(f"{key!r} is {metadata.scalars[key]!r}, but must be an array")
    array = metadata.arrays.get(key)
    if array is not None and array.element_type not in types:
        raise damaged(f"{key!r} has elements of type {array.element_type}, but must have {' or '.join(types)}")
    if array is not None and array.length < least:
        raise damaged(f"{key!r} has {array.length} elements, but there are {least} tokens")
