"""POST /v1/responses and /v1/responses/input_tokens: OpenAI's Responses, in text."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from edgekv.prompt.text import PARAGRAPH

from .api_errors import unsupported
from .body import Body, Whole
from .endpoint import Endpoint, Query, QueryWork, token_count
from .message_parts import (
    call_of,
    function_of,
    in_turn,
    is_of_other_tools,
    left_out,
    missing,
    text_of_file,
    unreadable,
)
from .openai_common import GenerationParams
from .reply_request import LONG_CHARS, ReplyRequest
from .response_events import ResponseEvents
from .server_settings import Settings

# the remedy for each field of the API that this server has not
SEND_ALL = "nothing is kept under a name here; send the whole conversation as input, whose beginning is not read again"
NOT_HERE = {
    "previous_response_id": SEND_ALL,
    "conversation": SEND_ALL,
    "background": "replies are made while the client waits",
    "prompt": "there are no stored prompts here; send the text as input",
}

# required fields of items, by type
ITEM_FIELDS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name"),
    "function_call_output": ("call_id", "output"),
}

LOGPROBS = "message.output_text.logprobs"  # a value of `include`

# the field with the text of a part, by type
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
    text: str | None = None
    refusal: str | None = None
    file_data: str | None = None


class Item(Body):
    """An item of the input: a message, a tool call or its output."""

    type: str | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: str | list[Part] | None = None
    call_id: str | None = None
    namespace: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[Part] | None = None


class Format(Body):
    """The form of a reply's text."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(max_length=64)] | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None

    def reply_schema(self) -> Mapping[str, Any] | None:
        """Return the JSON schema of the reply; None = any text. Raises ApiError for a missing schema."""
        if self.type == "json_schema" and self.schema_ is None:
            raise missing("text.format.schema")
        return {"text": None, "json_object": {"type": "object"}, "json_schema": self.schema_}[self.type]


class TextConfig(Body):
    """The field `text`."""

    format: Format | None = None


class Function(Body):
    """A tool, or a namespace of tools."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    tools: list[Function] | None = None


Label = Annotated[str, Field(max_length=512)]


class ResponsesBody(GenerationParams):
    """The body of a request."""

    never: ClassVar = frozenset(NOT_HERE)

    input: str | Annotated[list[Item], Field(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Annotated[Whole, Field(ge=-1)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    text: TextConfig | None = None
    tools: list[Function] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[Whole, Field(ge=0, le=20)] | None = None
    metadata: Annotated[dict[Annotated[str, Field(max_length=64)], Label], Field(max_length=16)] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    background: bool | None = None
    prompt: dict[str, Any] | None = None


def parse(body: ResponsesBody, settings: Settings) -> ReplyRequest:
    """Return the request of a body. Raises ApiError for a field that cannot be honoured."""
    for name, remedy in NOT_HERE.items():
        if getattr(body, name):
            raise unsupported(name, remedy)
    wants_logprobs = body.top_logprobs or LOGPROBS in (body.include or ())
    schema = body.text.format.reply_schema() if body.text is not None and body.text.format is not None else None
    reply_request = ReplyRequest(
        messages=in_turn(_messages(body)),
        n_logprobs=(body.top_logprobs or 0) if wants_logprobs else None,
        tools=_tools(body),
        tool_choice=_choice(body.tool_choice),
        parallel_tool_calls=body.parallel_tool_calls is not False,
        **body.arguments(settings, body.max_output_tokens, own_form="text.format", schema=schema),
    )
    return replace(reply_request, on_overflow="error") if body.truncation == "disabled" else reply_request


def count_tokens(body: ResponsesBody) -> QueryWork:
    """Return the request to count a conversation's tokens. Raises ApiError for a message that cannot be read."""
    return token_count(in_turn(_messages(body)), _tools(body), object="response.input_tokens")


def _tools(body: ResponsesBody) -> tuple[dict[str, Any], ...]:
    """Return the functions of a body, a namespace's under its name. Raises ApiError for a missing name."""
    return tuple(
        function_of(_named(space, name), tool.description, tool.parameters) for space, name, tool in _functions(body)
    )


def _functions(body: ResponsesBody) -> Iterator[tuple[str | None, str, Function]]:
    """Yield the namespace (None = in none), the name and the tool of each function."""
    for i, tool in enumerate(body.tools or ()):
        inner = tool.tools or () if tool.type == "namespace" else ()
        within = [(f"tools.{i}.tools.{j}", it, tool.name) for j, it in enumerate(inner)]
        for param, it, space in ((f"tools.{i}", tool, None), *within):
            if it.type in ("function", "namespace") and it.name is None:
                raise missing(f"{param}.name")
            if it.type == "function":
                yield space, str(it.name), it


def _named(namespace: str | None, name: str) -> str:
    """Return the one name that the model knows a function by."""
    return name if namespace is None else f"{namespace}.{name}"


def not_applied(body: ResponsesBody) -> list[str]:
    """Return the names of a body's parts that no model is told of: tools that are no functions, and their calls."""
    tools = [it for tool in body.tools or () for it in (tool, *(tool.tools or ()))]
    kinds = [tool.type for tool in tools if tool.type not in ("function", "namespace")]
    items = [] if isinstance(body.input, str) else [item.type or "" for item in body.input]
    others = [kind for kind in items if kind not in ITEM_FIELDS and is_of_other_tools(kind)]
    return [*left_out("tools", kinds), *left_out("input", others)]


def _choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any]:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": _named(choice.get("namespace"), str(choice.get("name")))}}
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        given = choice.get("tools")
        tools = [{"type": "function", "function": tool} for tool in (given if isinstance(given, list) else ())]
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}
    return "auto" if choice is None else choice


def _told_choice(choice: str | dict[str, Any] | None) -> str | dict[str, Any]:
    """Return the field `tool_choice` of the response, as far as the request holds it."""
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "name": choice.get("name")}
    return choice or "auto"


def _messages(body: ResponsesBody) -> Iterator[dict[str, Any]]:
    if body.instructions:
        yield {"role": "system", "content": body.instructions}
    if isinstance(body.input, str):
        yield {"role": "user", "content": body.input}
        return
    for i, item in enumerate(body.input):
        if item.type == "reasoning" or (item.type not in ITEM_FIELDS and is_of_other_tools(item.type or "")):
            continue  # reasoning is not read again
        yield _message(item, f"input.{i}")


def _message(item: Item, param: str) -> dict[str, Any]:
    kind = item.type or "message"
    if kind not in ITEM_FIELDS:
        raise unreadable(f"{param}.type", kind, f"items of type {', '.join(map(repr, ITEM_FIELDS))}")
    for field in ITEM_FIELDS[kind]:
        if getattr(item, field) is None:
            raise missing(f"{param}.{field}")
    if kind == "function_call":
        call = call_of(str(item.call_id), _named(item.namespace, str(item.name)), item.arguments or "")
        return {"role": "assistant", "content": "", "tool_calls": (call,)}
    if kind == "function_call_output":
        output = _text(item.output or "", f"{param}.output", PARAGRAPH)
        return {"role": "tool", "tool_call_id": item.call_id, "content": output}
    role = "system" if item.role == "developer" else item.role
    between = "" if role == "assistant" else PARAGRAPH  # a reply is given back as it was said
    return {"role": role, "content": _text(item.content or "", f"{param}.content", between)}


def _text(content: str | list[Part], param: str, between: str) -> str:
    """Return the text of a content. Raises ApiError for parts that are no text."""
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


def response_of(body: ResponsesBody, reply_request: ReplyRequest, model: str) -> dict[str, Any]:
    """Return a response whose reply has not begun.

    It waits with the request. So it holds nothing long that the request does not hold. Long instructions are not
    repeated.
    """
    return {
        "id": f"resp_{secrets.token_hex(16)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions if len(body.instructions or "") <= LONG_CHARS else None,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": reply_request.parallel_tool_calls,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "store": False,
        "temperature": reply_request.sampling.temperature,
        "text": {"format": _format(body)},
        "tool_choice": _told_choice(body.tool_choice),
        "tools": [{"type": "function", "strict": True} | tool["function"] for tool in reply_request.tools],
        "top_logprobs": reply_request.n_logprobs or 0,
        "top_p": reply_request.sampling.top_p,
        "truncation": "disabled" if reply_request.on_overflow == "error" else "auto",
        "usage": None,
        "user": body.user,
    }


def _format(body: ResponsesBody) -> dict[str, Any]:
    if body.text is None or body.text.format is None:
        return {"type": "text"}
    told = {"type": body.text.format.type, "name": body.text.format.name, "schema": body.text.format.schema_}
    return {name: value for name, value in told.items() if value is not None}


def render(body: ResponsesBody, reply_request: ReplyRequest, model: str) -> ResponseEvents:
    """Return the renderer of a reply."""
    names = {_named(space, name): (space, name) for space, name, _ in _functions(body) if space is not None}
    return ResponseEvents(response_of(body, reply_request, model), names, not_applied(body))


endpoint = Endpoint("/v1/responses", ResponsesBody, parse, render)
counting = Query("/v1/responses/input_tokens", ResponsesBody, count_tokens)
