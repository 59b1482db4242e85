"""Replies of the APIs whose streams are typed events: one and the same events make a stream, or are put together."""

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
        """What a request's event is to clients."""

    def fail(self, error: ApiError) -> Iterator[dict[str, Any]]:
        """The last events of a reply that cannot go on."""


def typed_response(
    running: Running, events: TypedEvents, render_error: RenderError, *, stream: bool, ping: bytes, ping_s: float
) -> ReplyResponse:
    """The reply to a request, in pieces or as a whole."""
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
