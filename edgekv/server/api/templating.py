"""POST /apply-template: the text that a conversation is read as."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from edgekv.server.admission import request_bytes
from edgekv.server.reply_request import ReplyRequest

from .body import Body
from .chat_completions import Message, message_of
from .endpoint import Query, Work

COPIES = 3  # copies of a text while it is rendered and sent


class TemplateBody(Body):
    """A conversation, and tools that the template describes."""

    messages: Annotated[list[Message], Field(min_length=1)]
    tools: list[dict[str, Any]] | None = None


def apply_template(body: TemplateBody) -> Work:
    """Return the rendering of a conversation. Raises ApiError for what cannot be read here."""
    messages = tuple(message_of(message, f"messages.{i}") for i, message in enumerate(body.messages))
    tools = tuple(body.tools or ())
    n_bytes = COPIES * request_bytes(ReplyRequest(messages=messages, tools=tools))
    return Work(n_bytes, lambda runtime: {"prompt": runtime.prompt_text(messages, tools=tools)})


applying = Query("/apply-template", TemplateBody, apply_template)
