"""The pieces of a reply, for who waits in a thread; its events, for who cannot wait in one."""

from __future__ import annotations

import enum
from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from edgekv.generation.stats import Stats
from edgekv.other_names import PIECES, OtherNames

from .loop_channel import Mailbox


class Blocks(enum.Enum):
    """An event: the next one may take a while, because a pipe is copied first, perhaps."""

    NOW = enum.auto()


# pieces; the box of an answer that is waited for next; a warning of other waits. They return the figures of the reply
Events: TypeAlias = Generator[str | Mailbox | Blocks, None, Stats]


class ReplyPieces(Generator[str, None, Stats], OtherNames):
    """Yields the pieces of a reply, and the messages that they wait for; returns its figures.

    begin: makes the events for a client; None = the thread that iterates, for which all are pieces
    """

    _meant: ClassVar[Mapping[str, str]] = PIECES

    def __init__(self, begin: Callable[[int | None], Events]) -> None:
        self.begin = begin
        self._pieces = cast(Generator[str, None, Stats], begin(None))

    def __iter__(self) -> Generator[str, None, Stats]:
        return self._pieces  # no step of its own between a loop and the pieces

    def __repr__(self) -> str:
        return "<a reply: for piece in it, or session.reply(prompt) for the whole>"

    if not TYPE_CHECKING:

        def __getitem__(self, key):
            raise TypeError(f"'ReplyPieces' object has no key {key!r}; {PIECES['text']}")

    def __next__(self) -> str:
        return next(self._pieces)

    def send(self, value: None) -> str:
        """Return the next piece."""
        return self._pieces.send(value)

    def throw(self, *error: Any) -> str:
        """End the reply with an error."""
        return self._pieces.throw(*error)
