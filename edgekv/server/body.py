"""Bodies of requests: read within limits, and checked."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import Any, TypeAlias, TypeVar

import anyio
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request

from .admission import MemoryBudget
from .errors import ApiError
from .settings import Settings


class Body(BaseModel):
    """A body of an API, or a part of one. Fields that it does not name are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


MAX_VALUES = 1 << 16  # each takes far more memory than the byte or two that it may be written in
_STRING_OR_SEPARATORS = re.compile(rb'"[^"]*"?|[,\[{]+')

Text: TypeAlias = str  # any characters: a model may say them, and clients send back what it said

B = TypeVar("B", bound=Body)


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
    too_large = ApiError(413, "request_too_large", f"the body has more than {limit} bytes; send less")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limit:
        raise too_large
    raw = bytearray()
    try:
        async for piece in request.stream():
            raw += piece
            if len(raw) > limit:
                raise too_large
            memory.reserve(len(piece))
            stack.callback(memory.release, len(piece))
    except ClientDisconnect:
        raise ApiError(400, "disconnected", "the body did not come to its end") from None
    return raw


def parsed(kind: type[B], raw: bytes | bytearray) -> B:
    """Parse and check a body. Raises ApiError for JSON with too many values, or nested more than 200 deep."""
    if _has_too_many_values(raw):
        raise ApiError(400, "invalid_json", f"the body holds more than {MAX_VALUES} values; send fewer")
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise _refusal(error) from None


def _has_too_many_values(raw: bytes | bytearray) -> bool:
    """Return True if JSON has more strings, and separators outside of them, than it may."""
    without_escapes = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    n = 0
    for found in _STRING_OR_SEPARATORS.finditer(without_escapes):
        n += 1 if without_escapes[found.start()] == ord('"') else found.end() - found.start()
        if n > MAX_VALUES:
            return True
    return False


def _refusal(error: ValidationError) -> ApiError:
    """Return the error for the first thing that is wrong. It does not repeat what the client sent."""
    first: dict[str, Any] = dict(error.errors(include_url=False, include_context=False, include_input=False)[0])
    if first["type"] == "json_invalid":
        return ApiError(400, "invalid_json", f"the body cannot be read: {first['msg']}")
    param = ".".join(str(part) for part in first["loc"] if _is_field(part)) or None
    code = {"missing": "missing_required_parameter"}.get(first["type"], "invalid_value")
    return ApiError(400, code, f"{param or 'the body'}: {first['msg']}", param=param)


def _is_field(part: int | str) -> bool:
    """Return True if a part of a location is a field or an index, and not the name of one of several types."""
    return isinstance(part, int) or part.isidentifier()
