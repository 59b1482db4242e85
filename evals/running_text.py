"""Texts of a given number of tokens, where it does not matter what they say."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from edgekv.errors import InputError
from edgekv.model import Model
from edgekv.text import tokenize_pieces

_WORDS = """
the of and to in a that it was he for on with as his at by she had not but from they which one all were there would her
so when an been their out if up more no into what about then them could some over very little time house river old man
woman child year day night road town letter horse table window garden winter morning water came went saw said thought
found told left gave took knew looked heard stood walked began turned opened
""".split()  # noqa: SIM905


def made_up(seed: int = 0) -> Iterator[str]:
    """Sentences of common words, drawn at random, without end; the same for the same seed."""
    rng = random.Random(seed)
    while True:
        words = rng.choices(_WORDS, k=rng.randint(6, 18))
        yield " ".join(words).capitalize() + ". "


def beginnings(model: Model, pieces: Iterable[str], lengths: Sequence[int]) -> dict[int, str]:
    """By length in tokens, the begin of a text that comes in pieces; no more of it is read than the longest needs.

    Tokens of such a begin, read anew, may be one more or fewer. Raises InputError where the text is too short.
    """
    tokens = list(islice(tokenize_pieces(model, pieces), max(lengths)))
    if len(tokens) < max(lengths):
        raise InputError(
            f"the text has {len(tokens):,} tokens, but {max(lengths):,} are needed; name a longer text or fewer"
        )
    return {n: b"".join(map(model.piece, tokens[:n])).decode("utf-8", "ignore") for n in lengths}
