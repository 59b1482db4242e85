"""Replies as the Responses API tells them: typed events; the last one carries the whole response."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from .api_errors import ApiError
from .endpoint import TypedRenderer
from .openai_common import edgekv_of
from .openai_fields import token_logprobs
from .reply_request import Ended, Event, Piece, ToolCall, Usage


class ResponseEvents(TypedRenderer):
    """The events of one reply, in the order in which clients await them.

    The output has an item of thoughts, then one of text, then one for each tool that the model calls.
    """

    def __init__(
        self,
        response: dict[str, Any],
        namespaces: Mapping[str, tuple[str, str]] = MappingProxyType({}),
        not_applied: Sequence[str] = (),
    ) -> None:
        """response: its fields that are known before the reply; see `responses.response_of`

        namespaces: namespace and name there of the functions that are in one, by the name that the model knows
        not_applied: names of the request's parts that were left out
        """
        super().__init__(response)
        self._namespaces = namespaces
        self._not_applied = not_applied
        self._n_events = 0
        self._open: _Text | None = None

    def push(self, event: Event) -> Iterator[dict[str, Any]]:
        """Translate an event of a reply for clients."""
        yield from self._begin()
        if isinstance(event, Piece):
            yield from self._text(event)
        elif isinstance(event, ToolCall):
            yield from self._close()
            yield from self._call(event)
        elif isinstance(event, Ended):
            yield from self._end(event)

    def failed(self, error: ApiError) -> Iterator[dict[str, Any]]:
        """Yield the last events of a reply that cannot go on."""
        yield from self._begin()
        yield from self._close("incomplete")
        code = "server_error" if error.status >= 500 else "invalid_prompt"  # the API has few codes
        self.reply.update(status="failed", error={"code": code, "message": error.message})
        yield self._event("failed", response=self._snapshot())

    def _begin(self) -> Iterator[dict[str, Any]]:
        if not self._n_events:
            yield self._event("created", response=self._snapshot())
            yield self._event("in_progress", response=self._snapshot())

    def _text(self, piece: Piece) -> Iterator[dict[str, Any]]:
        if self._open is None or self._open.is_thought != piece.reasoning:
            yield from self._close()
            self._open = _Text(piece.reasoning)
            yield self._event("output_item.added", output_index=self._index, item=self._open.item("in_progress", []))
            yield self._event("content_part.added", **self._place(self._open), part=self._open.part())
        if piece.text or piece.logprobs:
            told = self._open.add(piece)
            yield self._event(f"{self._open.name}.delta", **self._place(self._open), delta=piece.text, **told)

    def _close(self, status: str = "completed") -> Iterator[dict[str, Any]]:
        """End the item that is open, if one is."""
        text, self._open = self._open, None
        if text is None:
            return
        part, place = text.part(), self._place(text)
        told = {} if text.is_thought else {"logprobs": part["logprobs"]}
        yield self._event(f"{text.name}.done", **place, text=part["text"], **told)
        yield self._event("content_part.done", **place, part=part)
        yield from self._done(text.item(status, [part]))

    def _call(self, call: ToolCall) -> Iterator[dict[str, Any]]:
        item = {"type": "function_call", "id": _new_id("fc"), "call_id": call.id, "name": call.name}
        if call.name in self._namespaces:
            item["namespace"], item["name"] = self._namespaces[call.name]
        place = {"item_id": item["id"], "output_index": self._index}
        begun = item | {"arguments": "", "status": "in_progress"}
        yield self._event("output_item.added", output_index=self._index, item=begun)
        yield self._event("function_call_arguments.delta", **place, delta=call.arguments)
        yield self._event("function_call_arguments.done", **place, name=item["name"], arguments=call.arguments)
        yield from self._done(item | {"arguments": call.arguments, "status": "completed"})

    def _done(self, item: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield self._event("output_item.done", output_index=self._index, item=item)
        self.reply["output"].append(item)

    def _end(self, ended: Ended) -> Iterator[dict[str, Any]]:
        if self._open is None and not self.reply["output"]:
            yield from self._text(Piece(""))  # clients look for a message
        status = "incomplete" if ended.reason in ("length", "cancelled") else "completed"
        yield from self._close(status)
        told = edgekv_of(ended.usage, ended.reason, self._not_applied)
        self.reply.update(status=status, usage=_usage(ended.usage), edgekv=told)
        if ended.reason == "length":
            self.reply["incomplete_details"] = {"reason": "max_output_tokens"}
        yield self._event(status, response=self._snapshot())

    @property
    def _index(self) -> int:
        """The index of the open item, or of the next one."""
        return len(self.reply["output"])

    def _place(self, text: _Text) -> dict[str, Any]:
        return {"item_id": text.id, "output_index": self._index, "content_index": 0}

    def _event(self, kind: str, /, **fields: Any) -> dict[str, Any]:
        event = {"type": f"response.{kind}", "sequence_number": self._n_events, **fields}
        self._n_events += 1
        return event

    def _snapshot(self) -> dict[str, Any]:
        return self.reply | {"output": [*self.reply["output"]]}


class _Text:
    """An item of text while it grows: a message, or thoughts."""

    def __init__(self, is_thought: bool) -> None:
        self.is_thought = is_thought
        self.id = _new_id("rs" if is_thought else "msg")
        self.name = "reasoning_text" if is_thought else "output_text"
        self._pieces: list[str] = []
        self._tokens = bytearray()

    def add(self, piece: Piece) -> dict[str, Any]:
        """Take the next piece; return the further fields of its event."""
        self._pieces.append(piece.text)
        if self.is_thought:
            return {}
        self._tokens += piece.logprobs
        return {"logprobs": token_logprobs(piece.logprobs)}

    def part(self) -> dict[str, Any]:
        """The text so far."""
        part = {"type": self.name, "text": "".join(self._pieces)}
        return part if self.is_thought else part | {"annotations": [], "logprobs": token_logprobs(self._tokens)}

    def item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        item = {"id": self.id, "status": status, "content": content}
        return item | (
            {"type": "reasoning", "summary": []} if self.is_thought else {"type": "message", "role": "assistant"}
        )


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _new_id(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(16)}"
