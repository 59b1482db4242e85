"""POST /v1/chat/completions: a reply to a conversation."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgekv.generation.logprobs import Packed

from .body import Body, Text, read_body
from .errors import ApiError
from .json_stream import Parts, json_parts
from .openai_common import DONE, FINISH_REASONS, GenerationParams, error_body, error_event, usage_fields
from .openai_fields import ResponseFormat, chat_logprobs, n_logprobs, tool_call_field
from .request import Ended, Event, Piece, PromptProgress, ReplyRequest, ToolCall
from .settings import Settings
from .state import state_of
from .streaming import PING, ReplyResponse, progress, sse_event


class Part(Body):
    """A part of a message."""

    type: str
    text: Text | None = None


class Message(Body):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[Part] | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatBody(GenerationParams):
    """The body of a request."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


def request_of(body: ChatBody, settings: Settings) -> ReplyRequest:
    """Return the request of a body. Raises ApiError for what cannot be done here."""
    return ReplyRequest(
        messages=tuple(_message(message, f"messages.{i}") for i, message in enumerate(body.messages)),
        n_logprobs=n_logprobs(body.logprobs, body.top_logprobs),
        json_schema=None if body.response_format is None else body.response_format.reply_schema(),
        tools=tuple(body.tools or ()),
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        **body.arguments(settings, body.max_completion_tokens),
    )


def _message(message: Message, param: str) -> dict[str, Any]:
    if message.content is None and not message.tool_calls:
        raise ApiError(400, "missing_required_parameter", f"{param}.content is missing", param=f"{param}.content")
    role = "system" if message.role == "developer" else message.role
    content = "" if message.content is None else text_of(message.content, param)
    return {"role": role, "content": content, "tool_calls": message.tool_calls or ()}


def text_of(content: str | list[Part], param: str) -> str:
    """Return the text of a message, which may come in parts. Raises ApiError for parts that are no text."""
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise ApiError(
                400,
                "unsupported_value",
                f"{param}.content.{i} is of type {part.type[:40]!r}; this server reads parts of type 'text'",
                param=f"{param}.content.{i}.type",
            )
    return "".join(part.text or "" for part in content)


async def chat_completions(request: Request) -> Response:
    state = state_of(request)
    body = await read_body(request, ChatBody, state.settings, state.memory)
    running = state.queue.submit(request_of(body, state.settings))
    about = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion.chunk" if body.stream else "chat.completion",
        "created": int(time.time()),
        "model": state.model_name,
    }
    said = _streamed(running, about, with_usage=body.wants_usage) if body.stream else _whole(running, about)
    ping = PING if body.stream else None
    return ReplyResponse(running, said, error_body, ping=ping, ping_s=state.settings.ping_s, late=error_event)


async def _whole(events: AsyncIterator[Event], about: dict[str, Any]) -> AsyncIterator[Parts]:
    said: list[str] = []
    thought: list[str] = []
    tokens = bytearray()
    calls: list[ToolCall] = []
    async for event in events:
        if isinstance(event, Piece):
            (thought if event.reasoning else said).append(event.text)
            tokens += event.logprobs
        elif isinstance(event, ToolCall):
            calls.append(event)
        elif isinstance(event, Ended):
            message: dict[str, Any] = {"role": "assistant", "content": "".join(said)}
            if thought:
                message["reasoning_content"] = "".join(thought)
            if calls:
                message["content"] = message["content"] or None
                message["tool_calls"] = [tool_call_field(call) for call in calls]
            choice = {
                "index": 0,
                "message": message,
                "finish_reason": FINISH_REASONS[event.reason],
                "logprobs": chat_logprobs(tokens),
            }
            yield json_parts(about | {"choices": [choice]} | usage_fields(event))


async def _streamed(events: AsyncIterator[Event], about: dict[str, Any], *, with_usage: bool) -> AsyncIterator[Parts]:
    """Yield chunks. The role comes first, as soon as a reply is certain."""

    def chunk(delta: dict[str, Any], finish_reason: str | None = None, tokens: Packed = b"", **further: Any) -> Parts:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": chat_logprobs(tokens)}
        return sse_event(about | {"choices": [choice]} | further)

    nothing_yet: dict[str, Any] = {"usage": None} if with_usage else {}
    begun, n_calls = False, 0
    async for event in events:
        if not begun:
            begun = True
            yield chunk({"role": "assistant", "content": ""}, **nothing_yet)
        if isinstance(event, PromptProgress):
            yield progress(event)
        elif isinstance(event, Piece):
            delta = {"reasoning_content" if event.reasoning else "content": event.text}
            yield chunk(delta, tokens=event.logprobs, **nothing_yet)
        elif isinstance(event, ToolCall):
            yield chunk({"tool_calls": [{"index": n_calls} | tool_call_field(event)]}, **nothing_yet)
            n_calls += 1
        elif isinstance(event, Ended):
            yield chunk({}, FINISH_REASONS[event.reason], **nothing_yet)
            for part in event.shades or ():
                yield sse_event(about | {"choices": [], "edgekv": {"shades": part}})
            if with_usage:
                yield sse_event(about | {"choices": []} | usage_fields(event))
            yield DONE


routes = [Route("/v1/chat/completions", chat_completions, methods=["POST"])]
