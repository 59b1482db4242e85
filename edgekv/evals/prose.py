"""The haystack: passages of a book, or of prose made from a seed, cut to a number of tokens."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from edgekv.binding.model import Model
from edgekv.counting import counted
from edgekv.documents.text_file import read_text
from edgekv.errors import InputError
from edgekv.models.catalog import find_model
from edgekv.options import Options

from . import english

CHARS_PER_TOKEN = 16  # more than any tokeniser's mean on prose


class Tokenizer(Protocol):
    """The tokeniser of a model."""

    def tokenize(self, text: str) -> list[int]:
        """Return the tokens of a text."""

    def piece(self, token: int) -> bytes:
        """Return the bytes of a token."""


def read_book(path: Path) -> str:
    """The running text of a book in UTF-8: paragraphs of one line each, headings and the like left out.

    Raises InputError if there is no such text.
    """
    paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", "".join(read_text(path))))
    return "\n\n".join(text for text in paragraphs if len(text) > 60)


def vocabulary(model: str | None) -> Model:
    """A model's tokeniser, without its weights. Close it, or use it in `with`."""
    return Model(find_model(model), Options(), no_alloc=True)


def first_tokens(model: Tokenizer, text: str, n: int) -> list[int]:
    """The first n tokens of a text. Raises InputError if it has fewer."""
    tokens = model.tokenize(text[: CHARS_PER_TOKEN * n])[:n]
    if len(tokens) < n:
        raise InputError(f"the text has {counted(len(tokens), 'token')}, but {n:,} are needed; give a longer one")
    return tokens


def text_of(model: Tokenizer, tokens: Iterable[int]) -> str:
    """The text that tokens stand for."""
    return b"".join(map(model.piece, tokens)).decode("utf-8", "ignore")


def passage(model: Tokenizer, source: str | None, n_tokens: int, rng: random.Random, *, again: bool = False) -> str:
    """n_tokens from a random place of a book, from the beginning of a sentence on; without a book, prose made by `rng`.

    The place is drawn where enough of the book should follow, or from its first half. If too little follows, the book
    begins `again`, as often as needed; without `again` InputError is raised.
    """
    if source is None:
        return text_of(model, first_tokens(model, _made(rng, CHARS_PER_TOKEN * n_tokens), n_tokens))
    n_starts = len(source) - min(CHARS_PER_TOKEN * n_tokens, len(source) // 2)
    start = source.find(". ", rng.randrange(max(1, n_starts)))
    if start < 0:
        raise InputError(f"the book of {counted(len(source), 'character')} holds too few sentences; give a longer one")
    text = source[start + 2 :]
    try:
        return text_of(model, first_tokens(model, text, n_tokens))
    except InputError:
        if not again:
            raise
    n_times = -(-CHARS_PER_TOKEN * n_tokens // len(source))
    return text_of(model, first_tokens(model, "\n\n".join([text, *[source] * n_times]), n_tokens))


def _made(rng: random.Random, n_chars: int) -> str:
    """Paragraphs of at least n_chars in all."""
    made, length = [], 0
    for paragraph in english.paragraphs(rng):
        made.append(paragraph)
        length += len(paragraph) + 2
        if length > n_chars:
            break
    return "\n\n".join(made)


def plant(text: str, needles: Iterable[tuple[float, str]]) -> str:
    """A text with each sentence (depth, sentence) planted in the gap between two sentences nearest to its depth.

    Depths are shares of the text's length; equal gaps keep the order of the depths. Raises InputError if the text
    has no gap.
    """
    gaps = [match.end() for match in re.finditer(r"[.!?] (?=[A-Z])", text)]
    if not gaps:
        found = counted(len(text), "character")
        raise InputError(f"a text of {found} holds no two sentences to plant one between; ask for more")
    length = len(text)
    for depth, sentence in sorted(needles, reverse=True):
        at = min(gaps, key=lambda gap: abs(gap - depth * length))
        text = f"{text[:at]}{sentence} {text[at:]}"
    return text


def fitting(model: Model, sentences: Iterable[str], n_tokens: int) -> list[str]:
    """The first of the sentences that, joined by spaces, have at most n_tokens."""
    fit = []
    for sentence in sentences:
        n_tokens -= n_tokens_of(model, sentence)
        if n_tokens < 0:
            break
        fit.append(sentence)
    return fit


def n_tokens_of(model: Model, *sentences: str) -> int:
    """Return the number of tokens that sentences take in the midst of a text."""
    return sum(len(model.tokenize(f" {sentence}")) for sentence in sentences)
