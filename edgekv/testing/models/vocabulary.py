"""Small but valid vocabularies, filled up with words to any size.

Both know the ChatML markers, all bytes and some frequent pieces of English, so that any text can be
tokenized and given back whole.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count, islice

from edgekv.errors import ConfigError

TOKENIZERS = ("bpe", "code", "spm")
FILLS_GAPS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|file_sep|>")  # models of code have them

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Numbers of `enum llama_token_type`.
_NORMAL, _UNKNOWN, _CONTROL, _BYTE = 1, 2, 3, 6

# Pairs that merge, the frequent ones first; "_" stands for the space before a word.
_MERGES = (
    "_ t|h e|i n|_ a|e r|o n|r e|_ s|_t he|a t|e n|o r|_ w|i s|e s|_ o|_ b|a n|_ c|i t|_ in|_ m|_ f|e d|o u|"
    "_ p|_ h|in g|a l|_ d|_a n|_o f|_an d|l l|a r|a s|_t o|l e|i c|o m|_ is|v e|_ l|_ n|s t|e l|_ e|l y"
)
_PAIRS = tuple((left, right) for left, right in (pair.split(" ") for pair in _MERGES.split("|")))


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens with their types (and scores for "llama"), merges for "gpt2", and the tokens that begin and end a text.

    add_bos, add_eos: these tokens stand around a text; None = the file does not say so
    pre: pre-tokenizer of "gpt2"
    templates: chat templates by name, where "" is the one for all messages; None = CHAT_TEMPLATE alone
    """

    model: str
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    bos: int
    eos: int
    add_bos: bool | None
    add_eos: bool | None = None
    pre: str = "gpt-2"
    templates: Mapping[str, str] | None = None


def make_vocabulary(tokenizer: str, vocab_size: int) -> Vocabulary:
    """Make a vocabulary of exactly `vocab_size` tokens.

    tokenizer: "bpe" (byte-level), "code" (the same, with tokens that fill gaps) or "spm" (sentencepiece)

    Raises ConfigError for another tokenizer, or if `vocab_size` has no room for the bytes and markers.
    """
    if tokenizer in ("bpe", "code"):
        return _make_bpe(vocab_size, FILLS_GAPS if tokenizer == "code" else ())
    if tokenizer == "spm":
        return _make_spm(vocab_size)
    raise ConfigError(f"tokenizer={tokenizer!r} is unknown; choose one of {TOKENIZERS}")


def _make_bpe(vocab_size: int, further: tuple[str, ...]) -> Vocabulary:
    space = _byte_characters()[ord(" ")]
    markers = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *further]
    base = markers + _byte_characters()
    _check_room("bpe", len(base), vocab_size)
    merges = [(left.replace("_", space), right) for left, right in _PAIRS][: vocab_size - len(base)]
    tokens = _fill(base + [left + right for left, right in merges], f"{space}w", vocab_size)
    return Vocabulary(
        model="gpt2",
        tokens=tokens,
        types=[_CONTROL] * len(markers) + [_NORMAL] * (vocab_size - len(markers)),
        scores=[],
        # llama.cpp does not load a model without merges; a pair that forms no token never merges.
        merges=[f"{left} {right}" for left, right in merges] or [f"{space} {space}"],
        bos=0,
        eos=2,
        add_bos=False,
    )


def _make_spm(vocab_size: int) -> Vocabulary:
    space = "\u2581"
    markers = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    n_fixed = len(markers) + len(byte_tokens)
    # The mark of a space must be a piece: as bytes, it would not be turned back into a space.
    _check_room("spm", n_fixed + 1, vocab_size)
    words = [(left + right).replace("_", space) for left, right in _PAIRS]
    letters = [*string.ascii_letters, *string.digits, *string.punctuation]
    pieces = [space, *words, *letters][: vocab_size - n_fixed]
    return Vocabulary(
        model="llama",
        tokens=_fill(markers + byte_tokens + pieces, f"{space}w", vocab_size),
        types=[_UNKNOWN, *[_CONTROL] * 4, *[_BYTE] * 256, *[_NORMAL] * (vocab_size - n_fixed)],
        # sentencepiece takes the merge with the higher score.
        scores=[0.0] * n_fixed + [-float(rank) for rank in range(vocab_size - n_fixed)],
        merges=[],
        bos=1,
        eos=2,
        add_bos=True,
    )


def _byte_characters() -> list[str]:
    """Return the printable character of each of the 256 bytes in a byte-level vocabulary, as in GPT-2.

    Bytes that are printable in Latin-1 stand for themselves; the others take the code points from 256 on.
    """
    substitutes = count(256)
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    return [chr(byte if byte in printable else next(substitutes)) for byte in range(256)]


def _fill(tokens: list[str], stem: str, vocab_size: int) -> list[str]:
    """Return `tokens`, filled up with made-up words; no token may stand twice."""
    words = (f"{stem}{number}" for number in count())
    return tokens + list(islice(words, vocab_size - len(tokens)))


def _check_room(tokenizer: str, n_needed: int, vocab_size: int) -> None:
    if vocab_size < n_needed:
        raise ConfigError(f"vocab_size={vocab_size}, but a {tokenizer!r} vocabulary needs at least {n_needed} tokens")
