"""OpenAI's endpoints, as `edgekv serve` has them, without a server.

Each line goes through its endpoint twice: once to parse its body, and once to render the events of the reply.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, NamedTuple

from anyio import sleep_forever
from anyio.from_thread import start_blocking_portal
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Message

from edgekv.server import application
from edgekv.server.admission import MemoryBudget
from edgekv.server.errors import ApiError
from edgekv.server.openai_common import error_body
from edgekv.server.request import Event, ReplyRequest
from edgekv.server.settings import Settings
from edgekv.server.streaming import ErrorResponse

from .requests import Request
from .results import digest_of

PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/responses")  # endpoints that batches may use
ROUTES = [route for route in application.ROUTES if route.path in PATHS]
ANY_LENGTH = 1 << 62  # limit of bytes that no body reaches
SEED_DIGITS = 7  # hex digits


class Reply(NamedTuple):
    """A reply of an endpoint: an HTTP status and a body of JSON."""

    status: int
    body: dict[str, Any]


class Endpoints:
    """The endpoints over a model of this name, for many threads. Close it, or use it in `with`.

    Their event loop has a thread of its own, which Ctrl-C does not reach.
    """

    def __init__(self, model_name: str) -> None:
        self._open = ExitStack()
        self._loop = self._open.enter_context(start_blocking_portal())
        self._name = model_name
        self._settings = Settings(name=model_name, max_body=ANY_LENGTH, body_s=math.inf)

    def parse(self, request: Request) -> ReplyRequest | Reply:
        """Return the request to the model; or the reply, for a line that the endpoint refuses.

        A request without a seed gets one that follows from its custom_id, so that the reply is the same whoever makes
        it.
        """
        reply_requests: list[ReplyRequest] = []

        def note(reply_request: ReplyRequest) -> Sequence[Event]:
            reply_requests.append(reply_request)
            raise ApiError(503, "not_now", "it is only noted now")

        reply = self._through(request, note)
        if not reply_requests:
            return reply
        reply_request = reply_requests[0]
        seed = reply_request.sampling.seed
        if seed is None:
            seed = int(digest_of(request.custom_id, digits=SEED_DIGITS), 16)
        return replace(reply_request, sampling=replace(reply_request.sampling, seed=seed))

    def render(self, request: Request, events: Sequence[Event]) -> Reply:
        """Return the reply to a request, made of the events of the model's reply."""
        return self._through(request, lambda _: events)

    def _through(self, request: Request, answer: Callable[[ReplyRequest], Sequence[Event]]) -> Reply:
        """Send a request through its endpoint, over a function that answers requests to the model."""
        error = _mistake(request)
        if error is not None:
            return reply_of(error)
        app = Starlette(routes=ROUTES, exception_handlers={ApiError: _refused, HTTPException: _refused})
        app.state.server = _Desk(self._settings, self._name, answer)
        reply: Reply = self._loop.call(_posted, app, request)
        return reply

    def close(self) -> None:
        """End the thread."""
        self._open.close()

    def __enter__(self) -> Endpoints:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def reply_of(error: ApiError) -> Reply:
    """Return the reply to a request that failed."""
    return Reply(error.status, error_body(error))


class _Desk:
    """Stand-in for `server.state.ServerState`, whose queue answers each request at once."""

    def __init__(self, settings: Settings, model_name: str, answer: Callable[[ReplyRequest], Sequence[Event]]) -> None:
        self.settings = settings
        self.memory = MemoryBudget(ANY_LENGTH)
        self.model_name = model_name
        self.queue = self
        self._answer = answer

    def submit(self, reply_request: ReplyRequest) -> _Events:
        return _Events(self._answer(reply_request))


class _Events:
    """The events of a reply that is complete, as endpoints iterate them."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = iter(events)

    def __aiter__(self) -> _Events:
        return self

    async def __anext__(self) -> Event:
        for event in self._events:
            return event
        raise StopAsyncIteration

    async def aclose(self) -> None:
        pass


def _mistake(request: Request) -> ApiError | None:
    """Return the error of a line apart from its body; None = there is none."""
    if request.method != "POST":
        return ApiError(400, "invalid_method", f"method is {request.method!r}; write 'POST'", param="method")
    if not isinstance(request.url, str) or request.url not in {route.path for route in ROUTES}:
        known = ", ".join(route.path for route in ROUTES)
        return ApiError(400, "invalid_url", f"url is {request.url!r}; possible: {known}", param="url")
    if not isinstance(request.body, dict):
        return ApiError(400, "invalid_value", "body is no JSON object; give what the endpoint takes", param="body")
    if request.body.get("stream"):
        return ApiError(
            400, "unsupported_value", "the answers of a batch are no streams; leave 'stream' out", param="stream"
        )
    return None


async def _posted(app: Starlette, request: Request) -> Reply:
    """POST a request to an application; return its reply."""
    came: list[Message] = [{"type": "http.request", "body": json.dumps(request.body).encode()}]
    status, parts = 0, []

    async def receive() -> Message:
        if not came:
            await sleep_forever()  # the client never leaves
        return came.pop()

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.url,
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
    }
    await app(scope, receive, send)
    return Reply(status, json.loads(b"".join(parts)))


async def _refused(_request: HttpRequest, error: Exception) -> Response:
    """Answer a request that its endpoint refuses."""
    if not isinstance(error, ApiError):
        error = ApiError(getattr(error, "status_code", 500), "invalid_request", str(error))
    return ErrorResponse(error, error_body)
