"""POST /apply-template and /v1/chat/completions/input_tokens: how a conversation is read, and its length."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from edgekv.server.admission import request_bytes
from edgekv.server.reply_request import ReplyRequest

from .body import Body
from .chat_completions import Message, message_of
from .endpoint import Query, Work, token_count

COPIES = 3  # copies of a text while it is rendered and sent


class TemplateBody(Body):
    """A conversation, and tools that the template describes."""

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[dict[str, Any]] | None = None


def _read(body: TemplateBody) -> tuple[tuple[Mapping[str, Any], ...], tuple[dict[str, Any], ...]]:
    messages = tuple(message_of(message, f"messages.{i}") for i, message in enumerate(body.messages))
    return messages, tuple(body.tools or ())


def apply_template(body: TemplateBody) -> Work:
    """Return the rendering of a conversation. Raises ApiError for what cannot be read here."""
    messages, tools = _read(body)
    n_bytes = COPIES * request_bytes(ReplyRequest(messages=messages, tools=tools))
    return Work(n_bytes, lambda runtime: {"prompt": runtime.prompt_text(messages, tools=tools)})


def count_tokens(body: TemplateBody) -> Work:
    """Return the counting of a conversation's tokens. Raises ApiError for what cannot be read here."""
    return token_count(*_read(body))


applying = Query("/apply-template", TemplateBody, apply_template)
counting = Query("/v1/chat/completions/input_tokens", TemplateBody, count_tokens)
