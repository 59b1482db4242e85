"""The pieces of a reply, for who waits in a thread; the events of it, for who cannot."""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from .clients import Answered


class Blocks(enum.Enum):
    """An event: the next one may take a while, because a pipe is copied first, perhaps."""

    NOW = enum.auto()


# pieces; the box of an answer that is waited for next; a warning of other waits
Events: TypeAlias = Generator[str | Answered | Blocks, None, None]


class ReplyPieces(Generator[str, None, None]):
    """Yields the pieces among the events of a reply, each of which waits for what comes before.

    begin: makes the events for a client; None = the thread that iterates
    """

    def __init__(self, begin: Callable[[int | None], Events]) -> None:
        self.begin = begin
        self._events = begin(None)

    def send(self, _: None) -> str:
        """Return the next piece."""
        for event in self._events:
            if isinstance(event, str):
                return event
        raise StopIteration

    def throw(self, *error: Any) -> str:
        """End the reply with an error."""
        self._events.throw(*error)
        raise StopIteration
