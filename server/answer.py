"""Replies over HTTP, as a whole or in pieces: what they say comes from a job, which ends when the client leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

import anyio
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from .failures import Failure
from .job import Reading
from .jobs import Running
from .written import Parts, written

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
    said: what is sent, each in parts between which nothing else comes; iterates `running`
    failed: makes the body of a failure; in a stream that has begun, `late` makes the end of it
    ping: what a stream says after `ping_s` seconds of silence; None = it is no stream, and `said` is one body
    """

    def __init__(
        self,
        running: Running,
        said: AsyncIterator[Parts],
        failed: Failed,
        *,
        ping: bytes | None = None,
        ping_s: float = 5.0,
        late: Callable[[Failure], Parts] = lambda failure: (),
    ) -> None:
        is_stream = ping is not None
        media_type = "text/event-stream" if is_stream else "application/json"
        headers = {"Cache-Control": "no-store", **({"X-Accel-Buffering": "no"} if is_stream else {})}
        super().__init__(None, 200, headers, media_type)
        if "content-length" in self.headers:
            del self.headers["content-length"]
        self._running = running
        self._said = said
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
                await self._send_all(scope, receive, send)
                tasks.cancel_scope.cancel()
        finally:
            await self._running.aclose()

    async def _send_all(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async for parts in self._said:
                await self._send(send, parts)
        except Failure as failure:
            if not self._begun:
                await Refused(failure, self._failed)(scope, receive, send)
                return
            await self._send(send, self._late(failure))
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, send: Send, parts: Parts) -> None:
        async with self._sending:
            for part in parts if self._begun else await self._begin(send, iter(parts)):
                self._spoke = True
                await send({"type": "http.response.body", "body": part, "more_body": True})

    async def _begin(self, send: Send, parts: Iterator[bytes]) -> Iterable[bytes]:
        """Send the head, with the length of a body that has one part; returns all parts."""
        first = list(islice(parts, 2))
        if self._ping is None and len(first) == 1:
            self.headers["Content-Length"] = str(len(first[0]))
        self._begun = True
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        return chain(first, parts)

    async def _keep_alive(self, send: Send, ping: bytes) -> None:
        """Speak where nothing else was said for a while, so that nobody on the way gives up."""
        while True:
            self._spoke = False
            await anyio.sleep(self._ping_s)
            if not self._spoke:
                await self._send(send, [ping])

    async def _watch(self, receive: Receive, scope: anyio.CancelScope) -> None:
        """Wait until the client has left, and end everything then."""
        while (await receive())["type"] != "http.disconnect":
            pass
        scope.cancel()


def progress(reading: Reading) -> Parts:
    """A comment of a stream: how much of the prompt has been read."""
    return [f": reading {reading.seen} of {reading.total}\n\n".encode()]


def server_sent(value: object, event: str | None = None) -> Parts:
    """A server-sent event with a JSON value, and a name if the protocol gives it one."""
    named = b"" if event is None else b"event: " + event.encode() + b"\n"
    return written(value, named + b"data: ", b"\n\n")
