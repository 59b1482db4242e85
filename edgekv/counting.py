"""Numbers of things, in words."""

from __future__ import annotations


def counted(n: int, noun: str) -> str:
    """Return a number with its noun, which has an s unless the number is one: "1 text", "2,000 texts"."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"
