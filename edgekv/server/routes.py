"""Routes of the endpoints whose bodies are JSON: HTTP around the functions of `edgekv.server.api`."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, TypeVar

import anyio
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from .admission import MemoryBudget
from .api import chat_completions, completions, messages, responses, tokens
from .api.body import Body, parsed
from .api.endpoint import Endpoint, Query
from .errors import ApiError
from .settings import Settings
from .state import state_of
from .streaming import BudgetedResponse, ReplyResponse

B = TypeVar("B", bound=Body)


def _replying(endpoint: Endpoint[Any]) -> Route:
    """Return the route of an endpoint whose replies the model generates."""

    async def answer(request: Request) -> Response:
        state = state_of(request)
        body = await read_body(request, endpoint.body, state.settings, state.memory)
        reply_request = endpoint.parse(body, state.settings)
        running = state.queue.submit(reply_request)
        return ReplyResponse(
            running,
            endpoint.render(body, reply_request, state.model_name),
            endpoint.error_body,
            ping=endpoint.ping if body.stream else None,
            ping_s=state.settings.ping_s,
        )

    return Route(endpoint.path, answer, methods=["POST"])


def _working(query: Query[Any]) -> Route:
    """Return the route of an endpoint that is answered without a reply of the model."""

    async def answer(request: Request) -> Response:
        state = state_of(request)
        work = query.parse(await read_body(request, query.body, state.settings, state.memory))
        with state.memory.reserved(work.n_bytes):
            found = await anyio.to_thread.run_sync(work.run, state.pool.runtime)
        return BudgetedResponse(found, state.memory)

    return Route(query.path, answer, methods=["POST"])


async def read_body(request: Request, kind: type[B], settings: Settings, memory: MemoryBudget) -> B:
    """Read and check the body of a request. Raises ApiError."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ApiError(415, "unsupported_media_type", "send the body as Content-Type: application/json")
    try:
        with anyio.fail_after(settings.body_s), ExitStack() as stack:
            return parsed(kind, await _read(request, settings.max_body, memory, stack))
    except TimeoutError:
        raise ApiError(408, "timeout", f"the body did not come within {settings.body_s:g} s; send it again") from None


async def _read(request: Request, limit: int, memory: MemoryBudget, stack: ExitStack) -> bytearray:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    raw = bytearray()
    try:
        async for piece in request.stream():
            raw += piece
            if len(raw) > limit:
                raise _too_large(limit)
            memory.reserve(len(piece))
            stack.callback(memory.release, len(piece))
    except ClientDisconnect:
        raise ApiError(400, "disconnected", "the body did not come to its end") from None
    return raw


def _too_large(limit: int) -> ApiError:
    return ApiError(413, "request_too_large", f"the body has more than {limit} bytes; send less")


ENDPOINTS: tuple[Endpoint[Any], ...] = (
    chat_completions.endpoint,
    completions.endpoint,
    responses.endpoint,
    messages.endpoint,
)
QUERIES: tuple[Query[Any], ...] = (messages.counting, tokens.tokenizing, tokens.detokenizing)

routes = [*map(_replying, ENDPOINTS), *map(_working, QUERIES)]
