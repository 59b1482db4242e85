"""What a user types: one message or command at a time, of several lines where it is between three quotes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

QUOTES = '"""'


@dataclass(frozen=True, slots=True)
class Typed:
    """What was typed, and the long texts that were pasted into it."""

    text: str
    pastes: tuple[str, ...] = ()


def is_open(text: str) -> bool:
    """Whether what was typed begins with three quotes and goes on until three more come."""
    return text.lstrip().startswith(QUOTES) and text.count(QUOTES) == 1


def unquoted(text: str) -> str:
    """A text without the three quotes around it."""
    inner = text.strip()
    if not inner.startswith(QUOTES):
        return text
    return inner.removeprefix(QUOTES).removesuffix(QUOTES).strip("\n")


def lines(read: Callable[[], Typed], interrupted: Callable[[], bool]) -> Iterator[Typed]:
    """All that the user types, until the input ends. `interrupted` is told of Ctrl-C, and says whether that ends it."""
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
