"""Fields of OpenAI's APIs: response formats, tool calls, log probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from edgekv.generation.logprobs import Packed, Token, TokenLogprob, unpacked

from .api_errors import ApiError
from .body import Body
from .json_stream import LazyList
from .reply_request import ToolCall

NEVER = -9999.0  # stands for minus infinity, for which JSON has no number


class JsonSchema(Body):
    """A schema under a name."""

    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None


class ResponseFormat(Body):
    """The field `response_format`. schema_: llama.cpp's place for a schema, beside the type"""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[dict[str, Any] | None, Field(alias="schema")] = None

    def reply_schema(self) -> Mapping[str, Any] | None:
        """Return the JSON schema of the reply; None = any text. Raises ApiError for a missing schema."""
        if self.type == "text":
            return None
        if self.schema_ is not None:
            return self.schema_
        if self.type == "json_object":
            return {"type": "object"}
        if self.json_schema is None or self.json_schema.schema_ is None:
            param = "response_format.json_schema.schema"
            raise ApiError(400, "missing_required_parameter", f"{param} is missing; give a JSON schema", param=param)
        return self.json_schema.schema_


def token_logprobs(packed: Packed) -> LazyList | list[Any]:
    """Return tokens with their log probabilities, as a list of OpenAI's objects."""
    return LazyList(lambda: map(_told_token, unpacked(packed))) if packed else []


def chat_logprobs(packed: Packed) -> dict[str, Any] | None:
    """Return the object `logprobs` of a chat completion; None if nothing was noted."""
    return {"content": token_logprobs(packed), "refusal": None} if packed else None


def text_logprobs(packed: Packed, offset: int = 0) -> dict[str, Any] | None:
    """Return the object `logprobs` of a text completion. offset: characters of the reply before the first token"""
    if not packed:
        return None

    def each(told: Callable[[Token], Any]) -> LazyList:
        return LazyList(lambda: map(told, unpacked(packed)))

    def offsets() -> Iterator[int]:
        n_before = offset
        for token in unpacked(packed):
            yield n_before
            n_before += len(_text(token))

    return {
        "tokens": each(_text),
        "token_logprobs": each(lambda token: _number(token.logprob)),
        "top_logprobs": each(_told_top),
        "text_offset": LazyList(offsets),
    }


def _told_top(token: Token) -> dict[str, float | None] | None:
    """Return the alternatives by their text; None for a token that nothing comes before."""
    return None if math.isnan(token.logprob) else {_text(other): _number(other.logprob) for other in token.top}


def _told_token(token: Token) -> dict[str, Any]:
    return told(token) | {"top_logprobs": [told(other) for other in token.top]}


def told(token: Token | TokenLogprob) -> dict[str, Any]:
    """Return a token, or an alternative to one, as OpenAI's object without its alternatives."""
    return {"token": _text(token), "logprob": _number(token.logprob), "bytes": list(token.piece)}


def _text(token: Token | TokenLogprob) -> str:
    return token.piece.decode(errors="replace")


def _number(logprob: float) -> float | None:
    """Return a log probability as JSON has it; None for that of a token that nothing comes before."""
    if math.isnan(logprob):
        return None
    return logprob if math.isfinite(logprob) else NEVER


def tool_call_field(call: ToolCall) -> dict[str, Any]:
    """Return a tool call, as a message of the assistant has it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
