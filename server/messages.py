"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages, in text."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from anyio import to_thread
from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edgekv.prompt.turns import PARAGRAPH

from .body import Body, Text, read_body
from .conversation import in_turn, missing, unreadable
from .failures import Failure, unsupported
from .job import Job
from .message_events import MessageEvents, Thoughts, failed
from .openai_shape import Stop, Wishes
from .settings import Settings
from .state import state_of
from .typed_events import answer

PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class Source(Body):
    """Where a document comes from."""

    type: str
    data: Text | None = None


class Block(Body):
    """A part of a content."""

    type: str
    text: Text | None = None
    source: Source | None = None
    title: Text | None = None


class Message(Body):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: Text | list[Block]


class Thinking(Body):
    """Whether thoughts are shown. How long a model thinks is its own matter, and part of max_tokens."""

    type: Literal["enabled", "adaptive", "disabled"]
    display: Literal["summarized", "omitted"] | None = None

    @property
    def shown(self) -> Thoughts:
        """What a client is given of them."""
        if self.type == "disabled":
            return None
        return "omitted" if self.display == "omitted" else "whole"


class Conversation(Body):
    """The part of a body that the model reads."""

    messages: Annotated[list[Message], Field(min_length=1)]
    system: Text | list[Block] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None


class MessagesBody(Wishes, Conversation):
    """The body of a request."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[list[Stop], Field(max_length=16)] | None = None
    thinking: Thinking = Thinking(type="disabled")


def job_of(body: MessagesBody, settings: Settings) -> Job:
    """The job that a body asks for. Raises Failure for what cannot be done here."""
    arguments = body.arguments(settings) | {"stop": tuple(body.stop_sequences or ())}
    return Job(messages=messages_of(body), **arguments)


def messages_of(body: Conversation) -> tuple[dict[str, Any], ...]:
    """The conversation of a body. Raises Failure for what cannot be read here."""
    if body.tools and (body.tool_choice or {}).get("type") != "none":
        raise unsupported("tools", "this server calls no tools")
    if body.messages[-1].role == "assistant":
        last = f"messages.{len(body.messages) - 1}"
        what = f"{last} is the beginning of a reply, which the model begins itself; end with a message of the user"
        raise Failure(400, "unsupported_value", what, param=f"{last}.role")
    return in_turn(_messages(body))


def _messages(body: Conversation) -> Iterator[dict[str, Any]]:
    if body.system:
        yield {"role": "system", "content": _text(body.system, "system", PARAGRAPH)}
    for i, message in enumerate(body.messages):
        between = "" if message.role == "assistant" else PARAGRAPH
        yield {"role": message.role, "content": _text(message.content, f"messages.{i}.content", between)}


def _text(content: str | list[Block], param: str, between: str) -> str:
    """The text of a content, without thoughts: they are not read again. Raises Failure for blocks that are no text."""
    if isinstance(content, str):
        return content
    said = ((f"{param}.{i}", block) for i, block in enumerate(content) if "thinking" not in block.type)
    return between.join(_text_of_block(block, where) for where, block in said)


def _text_of_block(block: Block, param: str) -> str:
    if block.type == "text":
        if block.text is None:
            raise missing(f"{param}.text")
        return block.text
    if block.type != "document":
        raise unreadable(f"{param}.type", block.type, "blocks of type 'text', and texts of type 'document'")
    if block.source is None or block.source.type != "text":
        kind = "" if block.source is None else block.source.type
        raise unreadable(f"{param}.source.type", kind, "documents whose source is of type 'text'")
    if block.source.data is None:
        raise missing(f"{param}.source.data")
    return PARAGRAPH.join(text for text in (block.title, block.source.data) if text)


def message_of(model: str) -> dict[str, Any]:
    """A message before anything of it is there."""
    return {
        "id": f"msg_{secrets.token_hex(16)}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


async def count_tokens(request: Request) -> Response:
    state = state_of(request)
    body = await read_body(request, Conversation, state.settings, state.room)
    n_tokens = await to_thread.run_sync(state.pool.runtime.count_tokens, messages_of(body))
    return JSONResponse({"input_tokens": n_tokens})


async def messages(request: Request) -> Response:
    state = state_of(request)
    body = await read_body(request, MessagesBody, state.settings, state.room)
    running = state.jobs.run(job_of(body, state.settings))
    events = MessageEvents(message_of(state.model_name), thoughts=body.thinking.shown)
    return answer(running, events, failed, stream=bool(body.stream), ping=PING, ping_s=state.settings.ping_s)


routes = [
    Route("/v1/messages", messages, methods=["POST"]),
    Route("/v1/messages/count_tokens", count_tokens, methods=["POST"]),
]
