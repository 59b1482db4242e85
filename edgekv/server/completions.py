"""POST /v1/completions: a text goes on as it stands, without a chat template."""

from __future__ import annotations

import secrets
import time
from array import array
from collections.abc import AsyncIterator
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgekv.generation.logprobs import Packed

from .body import Text, read_body
from .errors import unsupported
from .json_stream import Parts, json_parts
from .openai_common import DONE, FINISH_REASONS, GenerationParams, error_body, error_event, usage_fields
from .openai_fields import text_logprobs
from .request import Ended, Event, Piece, ReplyRequest
from .settings import Settings
from .state import state_of
from .streaming import PING, ReplyResponse, sse_event

Ids = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1)]
Prompt = Annotated[Text, Field(min_length=1)]


class CompletionBody(GenerationParams):
    """The body of a request."""

    prompt: Prompt | Ids | Annotated[list[Prompt] | list[Ids], Field(min_length=1)]
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None


def request_of(body: CompletionBody, settings: Settings) -> ReplyRequest:
    """Return the request of a body. Raises ApiError for what cannot be done here."""
    if body.echo:
        raise unsupported("echo", "the prompt is not repeated in the reply")
    if body.suffix:
        raise unsupported("suffix", "a text is only gone on with at its end")
    if body.best_of is not None and body.best_of > 1:
        raise unsupported("best_of", f"best_of={body.best_of} replies cannot be had: this server makes one")
    prompt: Any = body.prompt
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        if len(prompt) > 1:
            raise unsupported("prompt", f"{len(prompt)} prompts cannot be answered by one request; send one prompt")
        prompt = prompt[0]
    if isinstance(prompt, list):
        prompt = array("i", prompt)  # 4 bytes each, while they wait
    return ReplyRequest(prompt=prompt, n_logprobs=body.logprobs, **body.arguments(settings))


async def completions(request: Request) -> Response:
    state = state_of(request)
    body = await read_body(request, CompletionBody, state.settings, state.memory)
    running = state.queue.submit(request_of(body, state.settings))
    about = {
        "id": f"cmpl-{secrets.token_hex(12)}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": state.model_name,
    }
    said = _streamed(running, about, with_usage=body.wants_usage) if body.stream else _whole(running, about)
    ping = PING if body.stream else None
    return ReplyResponse(running, said, error_body, ping=ping, ping_s=state.settings.ping_s, late=error_event)


def _choice(text: str, finish_reason: str | None = None, tokens: Packed = b"", offset: int = 0) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": text_logprobs(tokens, offset)}


async def _whole(events: AsyncIterator[Event], about: dict[str, Any]) -> AsyncIterator[Parts]:
    said: list[str] = []
    tokens = bytearray()
    async for event in events:
        if isinstance(event, Piece):
            said.append(event.text)
            tokens += event.logprobs
        elif isinstance(event, Ended):
            choice = _choice("".join(said), FINISH_REASONS[event.reason], tokens)
            yield json_parts(about | {"choices": [choice]} | usage_fields(event))


async def _streamed(events: AsyncIterator[Event], about: dict[str, Any], *, with_usage: bool) -> AsyncIterator[Parts]:
    nothing_yet = {"usage": None} if with_usage else {}
    offset = 0
    async for event in events:
        if isinstance(event, Piece):
            choice = _choice(event.text, None, event.logprobs, offset)
            offset += len(event.text)
            yield sse_event(about | {"choices": [choice]} | nothing_yet)
        elif isinstance(event, Ended):
            yield sse_event(about | {"choices": [_choice("", FINISH_REASONS[event.reason])]} | nothing_yet)
            if with_usage:
                yield sse_event(about | {"choices": []} | usage_fields(event))
            yield DONE


routes = [Route("/v1/completions", completions, methods=["POST"])]
