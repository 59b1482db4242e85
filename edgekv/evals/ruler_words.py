"""RULER's aggregation tasks: which words of a list are common, which words of a coded text are frequent."""

from __future__ import annotations

import itertools
import math
import random
from bisect import bisect_right
from collections.abc import Callable

from edgekv.binding.model import Model
from edgekv.errors import InputError

from . import english
from .document import Document, Question

COMMON_PREFACE = "Below is a list of numbered words, some of them more frequent than the rest. Keep those in mind.\n\n"
N_COMMON = 10
LEAST_COMMON = 2
SHORT = 4096  # tokens of a text; shorter ones repeat their words less
COMMON_TIMES, OTHER_TIMES = 30, 3
SHORT_COMMON_TIMES, SHORT_OTHER_TIMES = 6, 1
COMMON_MAX_TOKENS = 120

FREQUENT_PREFACE = "Below is a text in code. Keep count of its words and find the three that come most often.\n\n"
N_FREQUENT = 3
CODED_LETTERS = 6
TOKENS_PER_CODED_WORD = 50  # length of a text over the size of its vocabulary
ZETA_2 = math.pi**2 / 6
DOTS = "..."
FREQUENT_MAX_TOKENS = 50


def common_words(rng: random.Random, model: Model, n_tokens: int) -> Document:
    """A numbered list in which some words are common; which ones is asked.

    There are ten of them, or as many as take half of the list. Other words fill it; if all words do not, every
    word comes twice as often, or three times, and so on. Raises InputError if n_tokens are too few.
    """
    words = rng.sample(english.WORDS, len(english.WORDS))
    common, other = words[:N_COMMON], words[N_COMMON:]
    times = (COMMON_TIMES, OTHER_TIMES) if n_tokens >= SHORT else (SHORT_COMMON_TIMES, SHORT_OTHER_TIMES)
    order = rng.getrandbits(64)

    def text(n_common: int, n_other: int, factor: int = 1) -> str:
        entries = (common[:n_common] * times[0] + other[:n_other] * times[1]) * factor
        random.Random(order).shuffle(entries)
        return COMMON_PREFACE + " ".join(f"{i}. {word}" for i, word in enumerate(entries, 1))

    n_common = _largest(model, n_tokens // 2, range(LEAST_COMMON, N_COMMON + 1), lambda n: text(n, 0))
    most = n_tokens // len(model.tokenize(text(n_common, len(other))))
    fits = _largest(model, n_tokens, range(most + 1), lambda factor: text(n_common, len(other), factor))
    n_other = _largest(model, n_tokens, range(len(other) + 1), lambda n: text(n_common, n, fits + 1))
    question = f"Which {n_common} words come most often in the list? Answer with these words only, separated by commas."
    answers = tuple(common[:n_common])
    return Document(text(n_common, n_other, fits + 1), (Question(question, answers, COMMON_MAX_TOKENS),))


def frequent_words(rng: random.Random, model: Model, n_tokens: int) -> Document:
    """Return a text of words without a meaning. Word k is as frequent as 1 / k^2. The first word is dots. The question
    asks for the next three. Raises InputError if n_tokens are too few to tell them apart."""
    n_vocabulary = max(n_tokens // TOKENS_PER_CODED_WORD, N_FREQUENT + 2)
    draws = english.distinct(lambda: "".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(CODED_LETTERS)))
    words = [DOTS, *itertools.islice(draws, n_vocabulary - 1)]
    order = rng.getrandbits(64)

    def times(n_words: int, rank: int) -> int:
        return int(n_words / (rank * rank * ZETA_2))

    def text(n_words: int) -> str:
        entries = [word for rank, word in enumerate(words, 1) for _ in range(times(n_words, rank))]
        random.Random(order).shuffle(entries)
        return FREQUENT_PREFACE + " ".join(entries)

    n_words = _largest(model, n_tokens, range(2 * n_tokens), text)
    if times(n_words, N_FREQUENT + 1) == times(n_words, N_FREQUENT + 2):
        raise InputError(f"{n_tokens} tokens hold too few words to tell which are frequent; ask for twice as many")
    question = (
        "Which three words come most often in the coded text? The dots do not count. "
        "Answer with the three words only, separated by commas."
    )
    answers = tuple(words[1 : N_FREQUENT + 1])
    return Document(text(n_words), (Question(question, answers, FREQUENT_MAX_TOKENS),))


def _largest(model: Model, n_tokens: int, sizes: range, text: Callable[[int], str]) -> int:
    """The largest of the sizes whose text has at most n_tokens. Raises InputError if none has."""

    def length(size: int) -> int:
        return len(model.tokenize(text(size)))

    n_fitting = bisect_right(sizes, n_tokens, key=length)
    if not n_fitting:
        raise InputError(f"the text has at least {length(sizes[0])} tokens where {n_tokens} are meant; ask for more")
    return sizes[n_fitting - 1]
