"""POST /v1/responses: OpenAI's Responses, in text."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edgekv.prompt.turns import PARAGRAPH

from .answer import PING
from .body import Body, Text, read_body
from .conversation import in_turn, missing, text_of_file, unreadable
from .failures import unsupported
from .job import Job
from .openai_shape import Wishes, failed
from .response_events import ResponseEvents
from .settings import Settings
from .state import state_of
from .typed_events import answer

# what the API has, and this server has not: the remedy
SEND_ALL = "nothing is kept under a name here; send the whole conversation as input, whose beginning is not read again"
NOT_HERE = {
    "previous_response_id": SEND_ALL,
    "conversation": SEND_ALL,
    "background": "replies are made while the client waits",
    "prompt": "there are no stored prompts here; send the text as input",
}

# where parts have their text, by type
TEXT_FIELDS = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "refusal": "refusal",
    "input_file": "file_data",
}


class Part(Body):
    """A part of a content."""

    type: str
    text: Text | None = None
    refusal: Text | None = None
    file_data: Text | None = None


class Item(Body):
    """A message, or something else that a conversation has."""

    type: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: Text | list[Part] | None = None


class Format(Body):
    """What the text of a reply must be."""

    type: str


class TextWishes(Body):
    """How the text of a reply is to be."""

    format: Format | None = None


class ResponsesBody(Wishes):
    """The body of a request."""

    input: Text | Annotated[list[Item], Field(min_length=1)]
    instructions: Text | None = None
    max_output_tokens: Annotated[int, Field(ge=1)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    text: TextWishes | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    metadata: dict[str, str] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    prompt: dict[str, Any] | None = None


def job_of(body: ResponsesBody, settings: Settings) -> Job:
    """The job that a body asks for. Raises Failure for what cannot be done here."""
    for name, remedy in NOT_HERE.items():
        if getattr(body, name):
            raise unsupported(name, remedy)
    if body.text is not None and body.text.format is not None and body.text.format.type != "text":
        raise unsupported("text.format", "only replies of type 'text' can be had from this server")
    if body.tools and body.tool_choice != "none":
        raise unsupported("tools", "this server calls no tools")
    if body.top_logprobs or "message.output_text.logprobs" in (body.include or ()):
        raise unsupported("top_logprobs", "this server tells no log probabilities")
    job = Job(messages=in_turn(_messages(body)), **body.arguments(settings, body.max_output_tokens))
    return replace(job, on_overflow="error") if body.truncation == "disabled" else job


def _messages(body: ResponsesBody) -> Iterator[dict[str, str]]:
    if body.instructions:
        yield {"role": "system", "content": body.instructions}
    if isinstance(body.input, str):
        yield {"role": "user", "content": body.input}
        return
    for i, item in enumerate(body.input):
        param = f"input.{i}"
        if item.type == "reasoning":
            continue  # what was thought is not read again
        if item.type not in (None, "message"):
            raise unreadable(f"{param}.type", item.type, "items of type 'message'")
        if item.role is None:
            raise missing(f"{param}.role")
        if item.content is None:
            raise missing(f"{param}.content")
        role = "system" if item.role == "developer" else item.role
        between = "" if role == "assistant" else PARAGRAPH  # a reply is given back as it was said
        yield {"role": role, "content": _text(item.content, f"{param}.content", between)}


def _text(content: str | list[Part], param: str, between: str) -> str:
    """The text of a content. Raises Failure for parts that are no text."""
    if isinstance(content, str):
        return content
    return between.join(_text_of_part(part, f"{param}.{i}") for i, part in enumerate(content))


def _text_of_part(part: Part, param: str) -> str:
    field = TEXT_FIELDS.get(part.type)
    if field is None:
        raise unreadable(f"{param}.type", part.type, "parts of type 'input_text', and texts of type 'input_file'")
    text: str | None = getattr(part, field)
    if text is None:
        raise missing(f"{param}.{field}")
    return text_of_file(text, f"{param}.{field}") if field == "file_data" else text


def response_of(body: ResponsesBody, job: Job, model: str) -> dict[str, Any]:
    """A response before anything of its reply is there."""
    return {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": False,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": job.sampling.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": "none",
        "tools": [],
        "top_logprobs": 0,
        "top_p": job.sampling.top_p,
        "truncation": "disabled" if job.on_overflow == "error" else "auto",
        "usage": None,
        "user": body.user,
    }


async def responses(request: Request) -> Response:
    state = state_of(request)
    body = await read_body(request, ResponsesBody, state.settings, state.room)
    job = job_of(body, state.settings)
    running = state.jobs.run(job)
    events = ResponseEvents(response_of(body, job, state.model_name))
    return answer(running, events, failed, stream=bool(body.stream), ping=PING, ping_s=state.settings.ping_s)


routes = [Route("/v1/responses", responses, methods=["POST"])]
