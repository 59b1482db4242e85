"""Bodies of requests: read within a limit and a time, and checked."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TypeVar

import anyio
from starlette.requests import ClientDisconnect, Request

from edgekv.api.api_errors import ApiError
from edgekv.api.body import Body, parsed
from edgekv.api.server_settings import Settings

from .admission import MemoryBudget

B = TypeVar("B", bound=Body)


async def read_body(request: Request, kind: type[B], settings: Settings, memory: MemoryBudget) -> B:
    """Read and check the body of a request. Raises ApiError."""
    kind_sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Some clients name no type. A page of the web always does, or has an origin, which was checked.
    if kind_sent != "application/json" and (kind_sent or "origin" in request.headers):
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
