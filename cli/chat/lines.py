"""Lines that a user types: one message or command at a time. Three quotes around it allow several lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

QUOTES = '"""'


@dataclass(frozen=True, slots=True)
class Typed:
    """A typed text, and the long texts that were pasted into it."""

    text: str
    pastes: tuple[str, ...] = ()


def is_open(text: str) -> bool:
    """Return True if a typed text begins with three quotes, and three more are still to come."""
    return text.lstrip().startswith(QUOTES) and text.count(QUOTES) == 1


def unquoted(text: str) -> str:
    """Return a text without the three quotes around it."""
    inner = text.strip()
    if not inner.startswith(QUOTES):
        return text
    return inner.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")


def lines(read: Callable[[], Typed], interrupted: Callable[[], bool]) -> Iterator[Typed]:
    """Yield the user's lines, until the input ends. `interrupted` is called after Ctrl-C; True ends the input."""
    while True:
        try:
            typed = read()
        except EOFError:
            return
        except KeyboardInterrupt:
            if interrupted():
                return
        else:
            if typed.text.strip() or typed.pastes:
                yield typed
