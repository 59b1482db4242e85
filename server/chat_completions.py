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

from .answer import PING, Answer, as_json, progress, server_sent
from .body import Body, Text, read_body
from .failures import Failure, unsupported
from .job import Ended, Event, Job, Piece, Reading
from .openai_shape import DONE, FINISH_REASONS, Wishes, edgekv_of, failed, failed_late, usage_of
from .settings import Settings
from .state import state_of


class Part(Body):
    """A part of a message."""

    type: str
    text: Text | None = None


class Message(Body):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[Part]


class ChatBody(Wishes):
    """The body of a request."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None


def job_of(body: ChatBody, settings: Settings) -> Job:
    """The job that a body asks for. Raises Failure for what cannot be done here."""
    if body.response_format is not None and body.response_format.get("type") != "text":
        raise unsupported("response_format", "only replies of type 'text' can be had from this server")
    if body.tools and body.tool_choice != "none":
        raise unsupported("tools", "this server calls no tools")
    if body.logprobs or body.top_logprobs:
        raise unsupported("logprobs", "this server tells no log probabilities")
    messages = tuple(
        {"role": "system" if it.role == "developer" else it.role, "content": text_of(it.content, f"messages.{i}")}
        for i, it in enumerate(body.messages)
    )
    return Job(messages=messages, **body.arguments(settings, body.max_completion_tokens))


def text_of(content: str | list[Part], param: str) -> str:
    """The text of a message that may come in parts. Raises Failure for parts that are no text."""
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise Failure(
                400,
                "unsupported_value",
                f"{param}.content.{i} is of type {part.type[:40]!r}; this server reads parts of type 'text'",
                param=f"{param}.content.{i}.type",
            )
    return "".join(part.text or "" for part in content)


async def chat_completions(request: Request) -> Response:
    state = state_of(request)
    body = await read_body(request, ChatBody, state.settings, state.room)
    running = state.jobs.run(job_of(body, state.settings))
    about = {
        "id": f"chatcmpl-{secrets.token_hex(12)}",
        "object": "chat.completion.chunk" if body.stream else "chat.completion",
        "created": int(time.time()),
        "model": state.model_name,
    }
    if not body.stream:
        return Answer(running, _whole(running, about), failed)
    parts = _streamed(running, about, with_usage=body.wants_usage)
    return Answer(running, parts, failed, ping=PING, ping_s=state.settings.ping_s, late=failed_late)


async def _whole(events: AsyncIterator[Event], about: dict[str, Any]) -> AsyncIterator[bytes]:
    said: list[str] = []
    thought: list[str] = []
    async for event in events:
        if isinstance(event, Piece):
            (thought if event.reasoning else said).append(event.text)
        elif isinstance(event, Ended):
            message: dict[str, Any] = {"role": "assistant", "content": "".join(said)}
            if thought:
                message["reasoning_content"] = "".join(thought)
            choice = {"index": 0, "message": message, "finish_reason": FINISH_REASONS[event.reason], "logprobs": None}
            told = {"usage": usage_of(event.usage), "edgekv": edgekv_of(event.usage, event.reason)}
            yield as_json(about | {"choices": [choice]} | told)


async def _streamed(events: AsyncIterator[Event], about: dict[str, Any], *, with_usage: bool) -> AsyncIterator[bytes]:
    """Chunks: the role comes first, as soon as it is certain that there will be a reply."""

    def chunk(delta: dict[str, Any], finish_reason: str | None = None, **further: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
        return server_sent(about | {"choices": [choice]} | further)

    nothing_yet = {"usage": None} if with_usage else {}
    begun = False
    async for event in events:
        if not begun:
            begun = True
            yield chunk({"role": "assistant", "content": ""}, **nothing_yet)
        if isinstance(event, Reading):
            yield progress(event)
        elif isinstance(event, Piece):
            yield chunk({"reasoning_content" if event.reasoning else "content": event.text}, **nothing_yet)
        elif isinstance(event, Ended):
            yield chunk({}, FINISH_REASONS[event.reason], **nothing_yet)
            for part in event.shades or ():
                yield server_sent(about | {"choices": [], "edgekv": {"shades": part}})
            if with_usage:
                told = {"usage": usage_of(event.usage), "edgekv": edgekv_of(event.usage, event.reason)}
                yield server_sent(about | {"choices": []} | told)
            yield DONE


routes = [Route("/v1/chat/completions", chat_completions, methods=["POST"])]
