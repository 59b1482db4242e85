"""Conversations as clients send them, made into turns as models know them."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from edgekv.prompt.text import PARAGRAPH

from .api_errors import ApiError

# ends of types that tell of calls of tools which a service, or the client by itself, carries out, and of their results
_OF_OTHER_TOOLS = ("_call", "_output", "_tool_use", "_tool_result")


def in_turn(messages: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Join messages of one role in a row into one, as paragraphs. Outputs of tools stay messages of their own."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        last = turns[-1] if turns else None
        if last is None or last["role"] != message["role"] or message["role"] == "tool":
            turns.append(dict(message))
            continue
        last["content"] = PARAGRAPH.join(text for text in (last["content"], message["content"]) if text)
        if "tool_calls" in message:
            last["tool_calls"] = (*last.get("tool_calls", ()), *message["tool_calls"])
    return tuple(turns)


def function_of(name: str, description: str | None, parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """A tool, as a `ReplyRequest` has it."""
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def values_of(arguments: str) -> Any:
    """Return the values of a call's arguments, for an API that tells them as JSON within its own.

    JSON has no infinity, so a number beyond the range of a float becomes the largest float. An integer of thousands of
    digits, which Python does not parse, becomes that as well.
    """
    return json.loads(arguments, parse_float=_finite, parse_int=lambda it: int(it) if len(it) < 4300 else _finite(it))


def _finite(written: str) -> float:
    return min(max(float(written), -sys.float_info.max), sys.float_info.max)


def call_of(call_id: str, name: str, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
    """A call in a message of the assistant, as a `ReplyRequest` has it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def is_of_other_tools(kind: str) -> bool:
    """Return True for a type of items or blocks about tools that are no functions. No model is told of these."""
    return kind.endswith(_OF_OTHER_TOOLS) or kind.startswith("mcp_")


def left_out(field: str, kinds: Iterable[str]) -> list[str]:
    """Return how a reply names the types of items of a field that are left out, each once."""
    return [f"{field}.{kind[:64]}" for kind in dict.fromkeys(kinds)]


def text_of_file(data: str, param: str) -> str:
    """Return the text of a file that comes as a data URL (RFC 2397). Raises ApiError for a file that is not text."""
    about, _, encoded = data.partition(",")
    if not about.startswith("data:") or not about.endswith(";base64"):
        raise _refused(param, "is no data URL in base64; give data:text/plain;base64,...")
    try:
        text = base64.b64decode(encoded, validate=True).decode()
    except ValueError:
        raise _refused(param, "is no text in UTF-8, in base64; convert the file to text") from None
    if "\0" in text:
        raise _refused(param, "holds a NUL, so it is no text; convert the file to text")
    return text


def _refused(param: str, why: str) -> ApiError:
    return ApiError(400, "unsupported_value", f"{param} {why}", param=param)


def missing(param: str) -> ApiError:
    """Return the error for a missing field that another field needs."""
    return ApiError(400, "missing_required_parameter", f"{param} is missing", param=param)


def unreadable(param: str, kind: str, readable: str) -> ApiError:
    """Return the error for a part of a conversation that cannot be read here."""
    return _refused(param, f"is {kind[:40]!r}; this server reads {readable}")
