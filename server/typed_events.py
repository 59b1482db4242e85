"""Replies of the APIs whose streams are typed events: one and the same events make a stream, or are put together."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

from .answer import Answer, Failed, as_json, server_sent
from .failures import Failure
from .job import Event
from .jobs import Running


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
    if not stream:
        return Answer(running, _put_together(running, events), failed)
    return Answer(
        running,
        _streamed(running, events),
        failed,
        ping=ping,
        ping_s=ping_s,
        late=lambda failure: _sent(events.fail(failure)),
    )


async def _streamed(running: AsyncIterator[Event], events: TypedEvents) -> AsyncIterator[bytes]:
    async for event in running:
        if sent := _sent(events.push(event)):
            yield sent


async def _put_together(running: AsyncIterator[Event], events: TypedEvents) -> AsyncIterator[bytes]:
    async for event in running:
        for _ in events.push(event):
            pass
    yield as_json(events.whole)


def _sent(events: Iterator[dict[str, Any]]) -> bytes:
    return b"".join(server_sent(event, event["type"]) for event in events)
