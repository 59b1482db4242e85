"""Replies of the APIs whose streams are typed events. The same events make a stream or a whole reply."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import Any, Protocol

from .errors import ApiError
from .json_stream import Parts, json_parts
from .request import Event
from .scheduler import Running
from .streaming import RenderError, ReplyResponse, sse_event


class TypedEvents(Protocol):
    """The events of one reply in an API's own words. `whole` is the whole reply after the last one."""

    whole: dict[str, Any]

    def push(self, event: Event) -> Iterator[dict[str, Any]]:
        """Translate an event of a reply for clients."""

    def fail(self, error: ApiError) -> Iterator[dict[str, Any]]:
        """Yield the last events of a reply that cannot go on."""


def typed_response(
    running: Running, events: TypedEvents, render_error: RenderError, *, stream: bool, ping: bytes, ping_s: float
) -> ReplyResponse:
    """Return the reply to a request, as a stream or whole."""
    return ReplyResponse(
        running,
        _streamed(running, events) if stream else _put_together(running, events),
        render_error,
        ping=ping if stream else None,
        ping_s=ping_s,
        late=lambda error: _sent(events.fail(error)),
    )


async def _streamed(running: AsyncIterator[Event], events: TypedEvents) -> AsyncIterator[Parts]:
    async for event in running:
        yield _sent(events.push(event))


async def _put_together(running: AsyncIterator[Event], events: TypedEvents) -> AsyncIterator[Parts]:
    async for event in running:
        for _ in events.push(event):
            pass
    yield json_parts(events.whole)


def _sent(events: Iterator[dict[str, Any]]) -> Parts:
    return chain.from_iterable(sse_event(event, event["type"]) for event in events)
