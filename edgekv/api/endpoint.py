"""An endpoint of an API, as plain functions: a body becomes a request, and the request's events become a reply."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import edgekv

from .api_errors import ApiError
from .body import Body
from .json_stream import PING, Parts, sse_event
from .openai_common import error_body
from .reply_request import Event, ReplyRequest
from .request_bytes import request_bytes
from .server_settings import Settings

B = TypeVar("B", bound=Body)


class Renderer(Protocol):
    """The rendering of one reply. Each event goes to `stream`; or each to `add`, and then comes `whole`."""

    def stream(self, event: Event) -> Parts:
        """Return the part of a stream that tells an event."""

    def fail(self, error: ApiError) -> Parts:
        """Return the end of a stream that cannot go on."""

    def add(self, event: Event) -> None:
        """Take the next event of a reply that is sent whole."""

    def whole(self) -> dict[str, Any]:
        """Return the whole reply, after its last event."""


SSE = "text/event-stream; charset=utf-8"


def _unknown(_body: Body, _model: str) -> dict[str, Any] | None:
    return None


def _no_others(_body: Body, _first: ReplyRequest) -> Iterable[ReplyRequest]:
    return ()


@dataclass(frozen=True)
class Endpoint(Generic[B]):
    """An endpoint whose replies the model generates.

    body: type of its bodies
    parse: makes the request of a body; raises ApiError for a field that cannot be honoured
    render: makes the renderer of a reply, of the body, its request and the model's name
    others: makes the further requests of a body that asks for several replies
    error_body: makes the body of an error
    ping: part of a stream that only says that the server is alive; None = there is none
    known: answers a body that needs no reply of the model, from the body and the model's name; None = it needs one
    stream_type: media type of a stream
    """

    path: str
    body: type[B]
    parse: Callable[[B, Settings], ReplyRequest]
    render: Callable[[B, ReplyRequest, str], Renderer]
    others: Callable[[B, ReplyRequest], Iterable[ReplyRequest]] = _no_others
    error_body: Callable[[ApiError], dict[str, Any]] = error_body
    ping: bytes | None = PING
    known: Callable[[B, str], dict[str, Any] | None] = _unknown
    stream_type: str = SSE


class QueryWork(NamedTuple):
    """Work that needs the vocabulary alone. n_bytes: memory that it takes; run: does it, and returns the reply"""

    n_bytes: int
    run: Callable[[edgekv.Runtime], dict[str, Any]]


@dataclass(frozen=True)
class Query(Generic[B]):
    """An endpoint that is answered without a reply of the model. parse: as of `Endpoint`"""

    path: str
    body: type[B]
    parse: Callable[[B], QueryWork]


def token_count(messages: tuple[Mapping[str, Any], ...], tools: tuple[dict[str, Any], ...], **about: str) -> QueryWork:
    """Return the counting of a conversation's tokens, with its tools. about: further fields of the answer"""
    n_bytes = request_bytes(ReplyRequest(messages=messages, tools=tools))
    return QueryWork(n_bytes, lambda runtime: about | {"input_tokens": runtime.count_tokens(messages, tools=tools)})


class TypedRenderer(ABC):
    """A `Renderer` for an API whose streams are typed events. The same events make a stream or a whole reply."""

    def __init__(self, reply: dict[str, Any]) -> None:
        """reply: its fields that are known before it begins; it is whole after the last event"""
        self.reply = reply

    @abstractmethod
    def push(self, event: Event) -> Iterator[dict[str, Any]]:
        """Translate an event of a reply for clients."""

    @abstractmethod
    def failed(self, error: ApiError) -> Iterator[dict[str, Any]]:
        """Yield the last events of a reply that cannot go on."""

    def stream(self, event: Event) -> Parts:
        """Return the part of a stream that tells an event."""
        return _sent(self.push(event))

    def fail(self, error: ApiError) -> Parts:
        """Return the end of a stream that cannot go on."""
        return _sent(self.failed(error))

    def add(self, event: Event) -> None:
        """Take the next event of a reply that is sent whole."""
        for _ in self.push(event):
            pass

    def whole(self) -> dict[str, Any]:
        """Return the whole reply, after its last event."""
        return self.reply


def _sent(events: Iterator[dict[str, Any]]) -> Parts:
    return chain.from_iterable(sse_event(event, event["type"]) for event in events)
