"""Replies over HTTP, as a whole or in pieces: what they say comes from a job, which ends when the client leaves."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from .failures import Failure
from .job import Reading
from .jobs import Running

PING = b": ping\n\n"  # a comment, which clients leave out

Failed = Callable[[Failure], dict[str, Any]]


class Refused(JSONResponse):
    """A failure, as an API shows it. failed: makes the body"""

    def __init__(self, failure: Failure, failed: Failed) -> None:
        retry = {} if failure.retry_after_s is None else {"Retry-After": str(failure.retry_after_s)}
        super().__init__(failed(failure), failure.status, retry)


class Answer(Response):
    """What comes of a job. Nothing is sent before the first part is there, so a job that fails early has its status.

    running: the job, which is cancelled when the client leaves
    parts: what is sent; iterates `running`
    failed: makes the body of a failure; in a stream that has begun, `late` makes the last part of it
    ping: what a stream says after `ping_s` seconds of silence; None = it is no stream, and `parts` has one part
    """

    def __init__(
        self,
        running: Running,
        parts: AsyncIterator[bytes],
        failed: Failed,
        *,
        ping: bytes | None = None,
        ping_s: float = 5.0,
        late: Callable[[Failure], bytes] | None = None,
    ) -> None:
        is_stream = ping is not None
        media_type = "text/event-stream" if is_stream else "application/json"
        headers = {"Cache-Control": "no-store", **({"X-Accel-Buffering": "no"} if is_stream else {})}
        super().__init__(None, 200, headers, media_type)
        if "content-length" in self.headers:
            del self.headers["content-length"]
        self._running = running
        self._parts = parts
        self._failed = failed
        self._ping = ping
        self._ping_s = ping_s
        self._late = late
        self._sending = anyio.Lock()
        self._begun = False
        self._spoke = False  # since the last ping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch, receive, tasks.cancel_scope)
                if self._ping is not None:
                    tasks.start_soon(self._keep_alive, send, self._ping)
                await self._send_parts(scope, receive, send)
                tasks.cancel_scope.cancel()
        finally:
            await self._running.aclose()

    async def _send_parts(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for part in self._parts:
                await self._send(send, part)
            await send({"type": "http.response.body", "body": b""})
        except Failure as failure:
            if not self._begun:
                await Refused(failure, self._failed)(scope, receive, send)
                return
            await self._send(send, b"" if self._late is None else self._late(failure))
            await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, part: bytes) -> None:
        self._spoke = True
        async with self._sending:
            if not self._begun:
                self._begun = True
                if self._ping is None:
                    self.headers["Content-Length"] = str(len(part))
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send({"type": "http.response.body", "body": part, "more_body": True})

    async def _keep_alive(self, send: Send, ping: bytes) -> None:
        """Speak where nothing else was said for a while, so that nobody on the way gives up."""
        while True:
            self._spoke = False
            await anyio.sleep(self._ping_s)
            if not self._spoke:
                await self._send(send, ping)

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        """Wait until the client has left, and end everything then."""
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()


def as_json(value: object) -> bytes:
    """JSON without blanks."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def progress(reading: Reading) -> bytes:
    """A comment of a stream: how much of the prompt has been read."""
    return f": reading {reading.seen} of {reading.total}\n\n".encode()


def server_sent(value: object, event: str | None = None) -> bytes:
    """A server-sent event with a JSON value, and a name if the protocol gives it one."""
    named = b"" if event is None else b"event: " + event.encode() + b"\n"
    return named + b"data: " + as_json(value) + b"\n\n"
