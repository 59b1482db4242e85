"""Render replies for Ollama's API: lines of JSON, with the figures in the last."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from .api_errors import ApiError
from .json_stream import Parts, json_parts
from .message_parts import values_of
from .openai_common import edgekv_of
from .openai_fields import token_logprobs
from .reply_request import Ended, Event, Piece, Reason, ToolCall

REASONS: dict[Reason, str] = {"length": "length"}  # all others are "stop"

# lines without a text, since clients take no blank ones
CHAT_PING = (
    b'{"model":"","created_at":"1970-01-01T00:00:00Z","message":{"role":"assistant","content":""},"done":false}\n'
)
TEXT_PING = b'{"model":"","created_at":"1970-01-01T00:00:00Z","response":"","done":false}\n'


def error_body(error: ApiError) -> dict[str, Any]:
    """Return the body of an error. Clients show its text as it is."""
    return {"error": error.message}


class Lines:
    """A `Renderer` of both endpoints. A reply that is sent whole has the fields of all its lines.

    is_chat: the text is that of a message; hides_thoughts: reasoning is left out
    not_applied: names of fields that change nothing here, for the last line
    """

    def __init__(self, model: str, *, is_chat: bool, hides_thoughts: bool, not_applied: list[str]) -> None:
        self._is_chat = is_chat
        self._hides_thoughts = hides_thoughts
        self._not_applied = not_applied
        self._model = model
        self._begun = time.monotonic()
        self._texts: dict[bool, list[str]] = {False: [], True: []}  # pieces of the answer, and of reasoning
        self._tokens = bytearray()
        self._calls: list[dict[str, Any]] = []
        self._end: dict[str, Any] = {}

    def stream(self, event: Event) -> Iterator[bytes]:
        """Yield the line that tells an event."""
        if isinstance(event, Piece):
            if event.reasoning and self._hides_thoughts:
                return
            logprobs = {"logprobs": token_logprobs(event.logprobs)} if event.logprobs else {}
            texts = ("", event.text) if event.reasoning else (event.text, "")
            yield from _line(self.line(*texts) | logprobs)
        elif isinstance(event, ToolCall):
            yield from _line(self.line("", calls=[_call(event)]))
        elif isinstance(event, Ended):
            yield from _line(self.line("", done=True) | self._figures(event))

    def fail(self, error: ApiError) -> Parts:
        """Return the end of a stream that cannot go on."""
        return _line(error_body(error))

    def add(self, event: Event) -> None:
        """Take the next event of a reply that is sent whole."""
        if isinstance(event, Piece):
            self._texts[event.reasoning].append(event.text)
            self._tokens += event.logprobs
        elif isinstance(event, ToolCall):
            self._calls.append(_call(event))
        elif isinstance(event, Ended):
            self._end = self._figures(event)

    def whole(self) -> dict[str, Any]:
        """Return the whole reply, after its last event."""
        said, thought = ("".join(self._texts[reasoning]) for reasoning in (False, True))
        logprobs = {"logprobs": token_logprobs(self._tokens)} if self._tokens else {}
        shown = "" if self._hides_thoughts else thought
        return self.line(said, shown, calls=self._calls, done=True) | logprobs | self._end

    def line(
        self, text: str, thought: str = "", *, calls: list[dict[str, Any]] | None = None, done: bool = False
    ) -> dict[str, Any]:
        """Return the fields of a line."""
        now = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
        content: dict[str, Any] = {"thinking": thought} if thought else {}
        if self._is_chat:
            content |= {"tool_calls": calls} if calls else {}
            content = {"message": {"role": "assistant", "content": text} | content}
        else:
            content |= {"response": text}
        return {"model": self._model, "created_at": now, **content, "done": done}

    def _figures(self, ended: Ended) -> dict[str, Any]:
        """Return the figures of a reply; times are in nanoseconds."""
        usage = ended.usage
        told = edgekv_of(usage, ended.reason)
        return {
            "done_reason": REASONS.get(ended.reason, "stop"),
            "total_duration": int(1e9 * (time.monotonic() - self._begun)),
            "load_duration": 0,
            "prompt_eval_count": usage.prompt_tokens,
            "prompt_eval_duration": int(1e9 * usage.prefill_s),
            "eval_count": usage.completion_tokens,
            "eval_duration": int(1e9 * usage.decode_s),
            "edgekv": told | ({"not_applied": self._not_applied} if self._not_applied else {}),
        }


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "function": {"name": call.name, "arguments": values_of(call.arguments)}}


def _line(fields: dict[str, Any]) -> Iterator[bytes]:
    return json_parts(fields, b"", b"\n")
