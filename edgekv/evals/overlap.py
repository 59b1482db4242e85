"""Overlap of a reply with an answer, in words without case, punctuation and articles (SQuAD, arXiv:1606.05250)."""

from __future__ import annotations

import string
import unicodedata
from collections import Counter

_ARTICLES = frozenset({"a", "an", "the"})


def words(text: str) -> list[str]:
    """Return the words of a text that count."""
    plain = (char for char in text.lower() if char not in string.punctuation and unicodedata.category(char)[0] != "P")
    return [word for word in "".join(plain).split() if word not in _ARTICLES]


def holds(reply: str, answer: str) -> bool:
    """Return True if a reply says an answer: its words, next to each other."""
    said, wanted = (f" {' '.join(words(text))} " for text in (reply, answer))
    return wanted in said


def f1(reply: str, answer: str) -> float:
    """Return the harmonic mean of precision and recall of the reply's words."""
    said, wanted = Counter(words(reply)), Counter(words(answer))
    n_common = sum((said & wanted).values())
    return 2 * n_common / (sum(said.values()) + sum(wanted.values())) if n_common else 0.0
