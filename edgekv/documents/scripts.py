"""Raised and lowered text in a line: a raised 6 after 10 is written ^6, so that it is no digit of the number."""

from __future__ import annotations

import re

RAISED, LOWERED = "^", "_"
SLASHES = frozenset("/\u2044")

# raised letters after a number that only say how it is spoken
_ORDINALS = frozenset({"st", "nd", "rd", "th", "er", "re", "\u00e8re", "\u00e8me", "eme", "me", "os", "as", "ste"})
_SINGLE = re.compile(r"[+\-\u2212]?\w+(?:[.,]\d+)?")


def written(mark: str, text: str, before: str, after: str) -> str:
    """Return raised or lowered text as it stands in a line.

    mark: RAISED or LOWERED
    before, after: the characters around it; "" = none
    """
    if not any(map(str.isalnum, text)):
        return text  # such as * and ™
    if _is_plain(mark, text, before, after):
        return text
    if mark == RAISED and text.isdigit() and after in SLASHES:
        return f" {text}" if before.isdigit() else text
    return mark + grouped(text) + " " * after.isdigit()


def _is_plain(mark: str, text: str, before: str, after: str) -> bool:
    """Return True for text that reads the same without a mark: 1st, H2O, [2], and the lower part of 3/4."""
    if text.startswith("["):
        return True
    if mark == RAISED:
        return before.isdigit() and text.casefold() in _ORDINALS
    return before in SLASHES or (before.isalpha() and text.isalnum() and not after.isdigit())


def fraction(above: str, below: str) -> str:
    """Return a fraction in a line."""
    return f"{grouped(above)}/{grouped(below)}"


def grouped(text: str) -> str:
    """Return text in parentheses, if it is more than a word or a number."""
    return text if _SINGLE.fullmatch(text) else f"({text})"
