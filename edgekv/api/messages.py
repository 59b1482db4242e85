"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages, in text."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field

from edgekv.prompt.text import PARAGRAPH

from .body import Body, Whole
from .endpoint import Endpoint, Query, QueryWork, token_count
from .message_events import MessageEvents, Thoughts, error_body
from .message_parts import call_of, function_of, in_turn, is_of_other_tools, left_out, missing, unreadable
from .openai_common import GenerationParams, Stops, stop_texts
from .reply_request import ReplyRequest
from .server_settings import Settings

# types of blocks that are read elsewhere, or not again
NO_TEXT = ("tool_use", "tool_result", "thinking", "redacted_thinking")

BILLING = "x-anthropic-billing-header:"
CLIENT_TOOLS = (None, "custom")  # types of tools that have an input_schema

PING = b'event: ping\ndata: {"type":"ping"}\n\n'


class Source(Body):
    """The source of a document."""

    type: str
    data: str | None = None


class Block(Body):
    """A part of a content."""

    type: str
    text: str | None = None
    source: Source | None = None
    title: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[Block] | None = None


class Message(Body):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Thinking(Body):
    """The field `thinking`: it shows or hides reasoning. Its budget is not read: reasoning counts in max_tokens."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    display: Literal["summarized", "updates", "omitted"] | None = None

    @property
    def shown(self) -> Thoughts:
        """The reasoning that a client is given."""
        if self.type == "disabled":
            return None
        return "omitted" if self.display == "omitted" else "whole"


class Tool(Body):
    """A tool that the client runs."""

    type: str | None = None
    name: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None


class Choice(Body):
    """The field `tool_choice`."""

    type: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    disable_parallel_tool_use: bool = False


class Format(Body):
    """The form of a reply's text."""

    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Body):
    """The field `output_config`."""

    format: Format | None = None

    @property
    def reply_schema(self) -> dict[str, Any] | None:
        """The JSON schema of the reply; None = any text."""
        return None if self.format is None else self.format.schema_


class Conversation(Body):
    """The part of a body that the model reads."""

    messages: Annotated[list[Message], Field(min_length=1)]
    system: str | list[Block] | None = None
    tools: list[Tool] | None = None
    tool_choice: Choice | None = None


class MessagesBody(Conversation, GenerationParams):
    """The body of a request."""

    max_tokens: Annotated[Whole, Field(ge=-1)]
    stop_sequences: Stops = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None


def parse(body: MessagesBody, settings: Settings) -> ReplyRequest:
    """Return the request of a body. Raises ApiError for a field that cannot be honoured."""
    schema = None if body.output_config is None else body.output_config.reply_schema
    arguments = body.arguments(settings, own_form="output_config.format", schema=schema)
    arguments |= {"stop": stop_texts(body.stop_sequences)}
    choice = body.tool_choice or Choice()
    return ReplyRequest(
        messages=messages_of(body),
        tools=tools_of(body),
        tool_choice=_choice(choice),
        parallel_tool_calls=not choice.disable_parallel_tool_use,
        **arguments,
    )


def tools_of(body: Conversation) -> tuple[dict[str, Any], ...]:
    """Return the tools of a body that the client carries out by their input_schema. Raises ApiError without a name."""
    found = []
    for i, tool in enumerate(body.tools or ()):
        if tool.type in CLIENT_TOOLS:
            if tool.name is None:
                raise missing(f"tools.{i}.name")
            found.append(function_of(tool.name, tool.description, tool.input_schema))
    return tuple(found)


def not_applied(body: Conversation) -> list[str]:
    """Return the names of a body's parts that no model is told of: Anthropic's own tools, and their calls."""
    tools = [str(tool.type) for tool in body.tools or () if tool.type not in CLIENT_TOOLS]
    contents = [message.content for message in body.messages if not isinstance(message.content, str)]
    blocks = [block.type for content in contents for block in content if not _is_read(block)]
    return [*left_out("tools", tools), *left_out("messages", blocks)]


def _is_read(block: Block) -> bool:
    return block.type in NO_TEXT or not is_of_other_tools(block.type)


def _choice(choice: Choice) -> str | dict[str, Any]:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return "required" if choice.type == "any" else choice.type


def messages_of(body: Conversation) -> tuple[dict[str, Any], ...]:
    """Return the conversation of a body. Raises ApiError for a message that cannot be read.

    System messages before the first reply stand before the question, so that conversations which differ in that share
    them. They are one message after that of `system`, so that conversations which differ in them share that, and
    the tools, which most templates tell with it.
    """
    n_begun = next((i for i, message in enumerate(body.messages) if message.role == "assistant"), len(body.messages))
    early = [_text(it.content, "messages", PARAGRAPH) for it in body.messages[:n_begun] if it.role == "system"]
    rules = (_without_billing(_text(body.system or "", "system", PARAGRAPH)), PARAGRAPH.join(filter(None, early)))
    return (*({"role": "system", "content": text} for text in rules if text), *in_turn(_messages(body, n_begun)))


def _messages(body: Conversation, n_begun: int) -> Iterator[dict[str, Any]]:
    """Yield the messages but the system messages among the first n_begun."""
    for i, message in enumerate(body.messages):
        if message.role == "system" and i < n_begun:
            continue
        param = f"messages.{i}.content"
        blocks = [] if isinstance(message.content, str) else list(enumerate(message.content))
        for j, block in blocks:
            if block.type == "tool_result":
                yield _result(block, f"{param}.{j}")
        calls = tuple(_call(block, f"{param}.{j}") for j, block in blocks if block.type == "tool_use")
        between = "" if message.role == "assistant" else PARAGRAPH  # a reply is given back as it was said
        text = _text(message.content, param, between)
        if text or calls or not blocks:
            yield {"role": message.role, "content": text} | ({"tool_calls": calls} if calls else {})


def _without_billing(system: str) -> str:
    """Return a system text without the line for Anthropic's accounts that Claude Code puts first.

    It differs in each conversation. So nothing after it, tools among it, would be a beginning that conversations share.
    """
    first, _, rest = system.partition("\n")
    return rest.lstrip("\n") if first.lower().startswith(BILLING) else system


def _call(block: Block, param: str) -> dict[str, Any]:
    """Return a tool call of the model."""
    if block.name is None:
        raise missing(f"{param}.name")
    return call_of(block.id or "", block.name, block.input or {})


def _result(block: Block, param: str) -> dict[str, Any]:
    """Return the message with the result of a tool call."""
    return {
        "role": "tool",
        "tool_call_id": block.tool_use_id,
        "content": _text(block.content or "", f"{param}.content", PARAGRAPH),
    }


def _text(content: str | list[Block], param: str, between: str) -> str:
    """Return the text of a content. Raises ApiError for blocks that are no text."""
    if isinstance(content, str):
        return content
    return between.join(
        _text_of_block(block, f"{param}.{i}")
        for i, block in enumerate(content)
        if block.type not in NO_TEXT and _is_read(block)
    )


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
    """Return a message whose reply has not begun."""
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


def render(body: MessagesBody, _request: ReplyRequest, model: str) -> MessageEvents:
    """Return the renderer of a reply."""
    thoughts = None if body.thinking is None else body.thinking.shown
    return MessageEvents(message_of(model), thoughts=thoughts, not_applied=not_applied(body))


def count_tokens(body: Conversation) -> QueryWork:
    """Return the request to count a conversation's tokens. Raises ApiError for a message that cannot be read."""
    return token_count(messages_of(body), tools_of(body))


endpoint = Endpoint("/v1/messages", MessagesBody, parse, render, error_body=error_body, ping=PING)
counting = Query("/v1/messages/count_tokens", Conversation, count_tokens)
