"""Replies over HTTP, whole or as a stream. A request is cancelled when its client leaves.

Bodies go out in parts, each when the client has read the one before: no body waits whole in a buffer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import anyio
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgekv.api import message_events, ollama_lines, openai_common
from edgekv.api.api_errors import ApiError
from edgekv.api.endpoint import Renderer
from edgekv.api.json_stream import PART_BYTES, Parts, json_parts

from .admission import MemoryBudget
from .series import Series

NO_STORE = (b"cache-control", b"no-store")
WHOLE_HEADERS = [NO_STORE, (b"content-type", b"application/json")]
STREAM_HEADERS = [
    NO_STORE,
    (b"x-accel-buffering", b"no"),  # a proxy passes each part on at once
]

RenderError = Callable[[ApiError], dict[str, Any]]


def path_of(scope: Scope) -> str:
    """Return the path of a request, below that of a host that has mounted this application."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def error_renderer(scope: Scope) -> RenderError:
    """Return the function that renders errors of a request. Anthropic's and Ollama's have shapes of their own."""
    path = path_of(scope)
    if path.startswith("/api/"):
        return ollama_lines.error_body
    return message_events.error_body if path.removeprefix("/v1").startswith("/messages") else openai_common.error_body


class ErrorResponse(JSONResponse):
    """An error, as an API shows it. render_error: makes the body"""

    def __init__(self, error: ApiError, render_error: RenderError) -> None:
        retry = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
        super().__init__(render_error(error), error.status, retry)


class ReplyResponse:
    """The reply to a request. Nothing is sent before the first part is there, so an early error sets the HTTP status.

    running: the events of the reply; closed when the client leaves
    renderer: makes the parts to send; those of an event are sent without a ping between
    render_error: makes the body of an error that comes before the first part
    stream_type: media type of a stream; None = the reply is one body
    ping: sent in a stream after `ping_s` seconds of silence; None = nothing is
    """

    def __init__(
        self,
        running: Series,
        renderer: Renderer,
        render_error: RenderError,
        *,
        stream_type: str | None = None,
        ping: bytes | None = None,
        ping_s: float = 5.0,
    ) -> None:
        self._running = running
        self._renderer = renderer
        self._render_error = render_error
        self._stream_type = stream_type
        self._ping = ping
        self._ping_s = ping_s
        self._sending = anyio.Lock()
        self._begun = False
        self._spoke = False  # True = something was sent since the last ping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, receive, tasks.cancel_scope)
                if self._ping is not None and self._stream_type is not None:
                    tasks.start_soon(self._keep_alive, send, self._ping)
                await self._send_all(scope, receive, send)
                tasks.cancel_scope.cancel()
        finally:
            await self._running.aclose()

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for event in self._running:
                if self._stream_type is None:
                    self._renderer.add(event)
                else:
                    await self._send(send, self._renderer.stream(event))
            if self._stream_type is None:
                await self._send(send, json_parts(self._renderer.whole()))
        except ApiError as error:
            if not self._begun:
                await ErrorResponse(error, self._render_error)(scope, receive, send)
                return
            await self._send(send, self._renderer.fail(error))
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, parts: Parts) -> None:
        async with self._sending:
            for part in parts if self._begun else await self._begin(send, iter(parts)):
                self._spoke = True
                await send({"type": "http.response.body", "body": part, "more_body": True})

    async def _begin(self, send: Send, parts: Iterator[bytes]) -> Iterable[bytes]:
        """Send the head, with the length of a body that has one part; return all parts."""
        first = list(islice(parts, 2))
        if self._stream_type is not None:
            headers = [*STREAM_HEADERS, (b"content-type", self._stream_type.encode())]
        elif len(first) == 1:
            headers = [*WHOLE_HEADERS, (b"content-length", str(len(first[0])).encode())]
        else:
            headers = WHOLE_HEADERS
        self._begun = True
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        return chain(first, parts)

    async def _keep_alive(self, send: Send, ping: bytes) -> None:
        """Send pings while nothing else is sent, so that no proxy gives up."""
        while True:
            self._spoke = False
            await anyio.sleep(self._ping_s)
            if not self._spoke:
                await self._send(send, [ping])

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        """Wait until the client leaves, then cancel the reply."""
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()


class ChunkedBodies:
    """ASGI middleware that cuts bodies into parts."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_parts(message: Message) -> None:
            if message["type"] == "http.response.body":
                body = message.get("body", b"")
                last = max(0, len(body) - 1) // PART_BYTES * PART_BYTES
                for at in range(0, last, PART_BYTES):
                    part = body[at : at + PART_BYTES]
                    await send({"type": "http.response.body", "body": part, "more_body": True})
                message = {**message, "body": body[last:]}
            await send(message)

        await self._app(scope, receive, send_parts)


class BudgetedResponse(JSONResponse):
    """JSON that may be long. The memory budget counts it until the client has it. Raises ApiError if that is full."""

    def __init__(self, content: Any, memory: MemoryBudget) -> None:
        super().__init__(content)
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._memory.reserved(len(self.body)):
            await super().__call__(scope, receive, send)
