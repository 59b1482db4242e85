"""Numbers of items in lists: 3, c, C, iii or III."""

from __future__ import annotations

import string
from collections.abc import Callable

_ROMAN = (
    *((1000, "m"), (900, "cm"), (500, "d"), (400, "cd"), (100, "c"), (90, "xc"), (50, "l"), (40, "xl")),
    *((10, "x"), (9, "ix"), (5, "v"), (4, "iv"), (1, "i")),
)
_MOST_ROMAN = 3999


def number(n: int, kind: str) -> str:
    """Return a number as the items of a list show it. kind: "1", "a", "A", "i" or "I", as in HTML"""
    return _KINDS.get(kind, str)(n)


def _letters(n: int) -> str:
    letters = ""
    while n > 0:
        n, at = divmod(n - 1, 26)
        letters = string.ascii_lowercase[at] + letters
    return letters or str(n)


def _roman(n: int) -> str:
    if not 0 < n <= _MOST_ROMAN:
        return str(n)
    written = ""
    for value, letters in _ROMAN:
        count, n = divmod(n, value)
        written += letters * count
    return written


_KINDS: dict[str, Callable[[int], str]] = {
    "a": _letters,
    "A": lambda n: _letters(n).upper(),
    "i": _roman,
    "I": lambda n: _roman(n).upper(),
}
