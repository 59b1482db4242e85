"""Methods of a session, made from a method that yields pieces: the whole reply, and both for asyncio."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from edgekv.generation.reply import Reply
from edgekv.generation.stats import Stats

from .reply_pieces import Events, ReplyPieces


class Answers(Protocol):
    """A session."""

    def cancel(self) -> None:
        """End the running reply."""

    def events(self, reply: Iterator[str]) -> Events:
        """Return the events of a reply that was not begun."""


P = ParamSpec("P")
S = TypeVar("S", bound=Answers)
T = TypeVar("T")
Method = Callable[Concatenate[S, P], T]


def whole(method: Method[S, P, Iterator[str]]) -> Method[S, P, Reply]:
    """Return the method `reply`, whose reply has the pieces of `method`."""

    @functools.wraps(method)
    def reply(session: S, /, *args: P.args, **kwargs: P.kwargs) -> Reply:
        return Reply.of(cast(ReplyPieces, method(session, *args, **kwargs)))

    return _named(reply, "reply")


def whole_in_asyncio(method: Method[S, P, Iterator[str]]) -> Method[S, P, Coroutine[Any, Any, Reply]]:
    """Return the method `reply_async`, whose reply has the pieces of `method`. It ends with its task."""

    @functools.wraps(method)
    async def reply(session: S, /, *args: P.args, **kwargs: P.kwargs) -> Reply:
        stats: list[Stats] = []

        def begin() -> Events:
            stats.append((yield from session.events(method(session, *args, **kwargs))))
            return stats[0]

        async with aclosing(_async_pieces(session, begin)) as pieces:
            said = [piece async for piece in pieces]
        return Reply.made_of(said, stats[0])

    return _named(reply, "reply_async")


def in_asyncio(method: Method[S, P, Iterator[str]]) -> Method[S, P, AsyncGenerator[str, None]]:
    """Return a method that yields the pieces of `method` without blocking the event loop. It ends with its task."""

    @functools.wraps(method)
    def pieces(session: S, /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[str, None]:
        return _async_pieces(session, lambda: session.events(method(session, *args, **kwargs)))

    return _named(pieces, f"{method.__name__}_async")


def _async_pieces(session: Answers, begin: Callable[[], Events]) -> AsyncGenerator[str, None]:
    from .async_replies import async_pieces  # its imports take memory, and few programs need them

    return async_pieces(begin, session.cancel)


def _named(method: Callable[P, T], name: str) -> Callable[P, T]:
    """Give a method that was made of another one its own name."""
    method.__qualname__ = f"{method.__qualname__.rpartition('.')[0]}.{name}"
    method.__name__ = name
    return method
