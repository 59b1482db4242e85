"""Replies of the APIs whose streams are typed events: one and the same events make a stream, or are put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import Any, Protocol

from .answer import Answer, Failed, server_sent
from .failures import Failure
from .job import Event
from .jobs import Running
from .written import Parts, written


class TypedEvents(Protocol):
    """The events of one reply in an API's own words. `whole` is the whole reply after the last one."""

    whole: dict[str, Any]

    def push(self, event: Event) -> Iterator[dict[str, Any]]:
        """What a job's event is to clients."""

    def fail(self, failure: Failure) -> Iterator[dict[str, Any]]:
        """The last events of a reply that cannot go on."""


def answer(
    running: Running, events: TypedEvents, failed: Failed, *, stream: bool, ping: bytes, ping_s: float
) -> Answer:
    """The reply to a request, in pieces or as a whole."""
    return Answer(
        running,
        _streamed(running, events) if stream else _put_together(running, events),
        failed,
        ping=ping if stream else None,
        ping_s=ping_s,
        late=lambda failure: _sent(events.fail(failure)),
    )


async def _streamed(running: AsyncIterator[Event], events: TypedEvents) -> AsyncIterator[Parts]:
    async for event in running:
        yield _sent(events.push(event))


async def _put_together(running: AsyncIterator[Event], events: TypedEvents) -> AsyncIterator[Parts]:
    async for event in running:
        for _ in events.push(event):
            pass
    yield written(events.whole)


def _sent(events: Iterator[dict[str, Any]]) -> Parts:
    return chain.from_iterable(server_sent(event, event["type"]) for event in events)
