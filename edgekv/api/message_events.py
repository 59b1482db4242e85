"""Replies as the Messages API tells them: events, from which clients build the message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

from .api_errors import ApiError
from .endpoint import TypedRenderer
from .message_parts import values_of
from .openai_common import edgekv_of
from .reply_request import Ended, Event, Piece, PromptProgress, ToolCall, Usage

# reasoning that a client is given: all of it, a block without its text, or no block
Thoughts: TypeAlias = Literal["whole", "omitted"] | None

# why a reply ended -> the stop reason
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}

# types of errors, by HTTP status
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of an error, which is an event as well."""
    kind = _ERRORS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": error.message}}


class MessageEvents(TypedRenderer):
    """The events of one reply, in the order in which clients await them.

    The message begins with the first event of its request, when it is known how much there is to read.
    """

    def __init__(self, message: dict[str, Any], *, thoughts: Thoughts, not_applied: Sequence[str] = ()) -> None:
        """message: its fields that are known before the reply; see `messages.message_of`

        not_applied: names of the request's parts that were left out
        """
        super().__init__(message)
        self._not_applied = not_applied
        self._thoughts = thoughts
        self._has_begun = False
        self._block: dict[str, Any] | None = None  # the block that is open
        self._pieces: list[str] = []

    def push(self, event: Event) -> Iterator[dict[str, Any]]:
        """Translate an event of a reply for clients."""
        if not self._has_begun:
            self._has_begun = True
            if isinstance(event, PromptProgress):
                self.reply["usage"]["input_tokens"] = event.total
            yield {"type": "message_start", "message": self.reply | {"content": []}}
        if isinstance(event, Piece):
            yield from self._thought(event.text) if event.reasoning else self._text(event.text)
        elif isinstance(event, ToolCall):
            yield from self._call(event)
        elif isinstance(event, Ended):
            yield from self._end(event)

    def failed(self, error: ApiError) -> Iterator[dict[str, Any]]:
        """Yield the last event of a message that cannot go on."""
        yield error_body(error)

    def _thought(self, text: str) -> Iterator[dict[str, Any]]:
        if self._thoughts is None:
            return
        yield from self._open("thinking", {"thinking": "", "signature": ""})
        yield from self._delta("thinking_delta", "thinking", text if self._thoughts == "whole" else "")

    def _text(self, text: str) -> Iterator[dict[str, Any]]:
        yield from self._open("text", {"text": ""})
        yield from self._delta("text_delta", "text", text)

    def _call(self, call: ToolCall) -> Iterator[dict[str, Any]]:
        yield from self._close()
        yield from self._open("tool_use", {"id": call.id, "name": call.name, "input": {}})
        yield from self._delta("input_json_delta", "partial_json", call.arguments)
        yield from self._close()

    def _end(self, ended: Ended) -> Iterator[dict[str, Any]]:
        if self._block is None and not self.reply["content"]:
            yield from self._text("")  # clients look for the text of the first block
        yield from self._close()
        stop = {"stop_reason": _STOP_REASONS.get(ended.reason, "end_turn"), "stop_sequence": None}
        if ended.stop_text is not None:
            stop = {"stop_reason": "stop_sequence", "stop_sequence": ended.stop_text}
        usage, edgekv = _usage(ended.usage), edgekv_of(ended.usage, ended.reason, self._not_applied)
        self.reply.update(stop, usage=usage, edgekv=edgekv)
        yield {"type": "message_delta", "delta": stop, "usage": usage, "edgekv": edgekv}
        yield {"type": "message_stop"}

    def _open(self, kind: str, fields: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Begin a block, unless one of that kind is open."""
        if self._block is not None and self._block["type"] == kind:
            return
        yield from self._close()
        self._block = {"type": kind, **fields}
        yield {"type": "content_block_start", "index": self._index, "content_block": {**self._block}}

    def _delta(self, kind: str, field: str, text: str) -> Iterator[dict[str, Any]]:
        self._pieces.append(text)
        if text:
            yield {"type": "content_block_delta", "index": self._index, "delta": {"type": kind, field: text}}

    def _close(self) -> Iterator[dict[str, Any]]:
        """End the block that is open, if one is."""
        block, text = self._block, "".join(self._pieces)
        self._block, self._pieces = None, []
        if block is None:
            return
        yield {"type": "content_block_stop", "index": self._index}
        if block["type"] == "tool_use":
            block["input"] = values_of(text)
        else:
            block[block["type"]] = text  # a block of thoughts has the key "thinking", a block of text "text"
        self.reply["content"].append(block)

    @property
    def _index(self) -> int:
        """The index of the open block, or of the next one."""
        return len(self.reply["content"])


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_read_input_tokens": usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
    }
