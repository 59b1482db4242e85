"""What is asked of the model, and what comes of it: plain values, which every endpoint translates from and into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from edgekv.engine.reply import MAX_TOKENS
from edgekv.engine.sampler import Sampling

from .shades import Shades

Reason = Literal["stop", "length", "loop", "cancelled", "tool_calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRequest:
    """A reply that is wanted: to messages, or to a prompt as it stands.

    messages: each with "role" and "content", a text or the Path of one; perhaps with "tool_calls" or "tool_call_id"
    prompt: a text, the Path of one, or token ids; None = there are messages
    max_tokens: longest reply; None = until the model ends it
    stop: texts that end the reply
    n_logprobs: alternatives whose log probabilities are told with each token; None = none are told
    shape: a JSON schema that the reply must fit; None = any text
    tools, tool_choice, parallel_tool_calls: what the model may call, and how, as in `Session.continue_from`
    focus: read with the last user message in mind, or another question or the parts of one, where what precedes it is
        read for the first time
    on_overflow: a prompt of more tokens than there are cells is read and "evict"s, or is an "error"
    shades: tell what is kept of the conversation when the reply has ended
    user: whom the client asks for; told to nobody
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    prompt: str | Path | Sequence[int] | None = None
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = MAX_TOKENS
    stop: tuple[str, ...] = ()
    n_logprobs: int | None = None
    json_schema: Mapping[str, Any] | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True
    focus: bool | str | tuple[str, ...] = True
    on_overflow: Literal["evict", "error"] = "evict"
    shades: bool = False
    user: str = ""

    @property
    def needs_grammars(self) -> bool:
        """Whether it needs a runtime with grammars: the reply must fit a schema, or may call tools."""
        return self.json_schema is not None or (bool(self.tools) and self.tool_choice != "none")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a reply took.

    prompt_tokens: all tokens of the prompt, of which `cached_tokens` had been read before
    reasoning_tokens: those of the reply that were thought, where a character of several tokens counts as one
    seen, kept, evicted: tokens of the whole conversation, those that have a cell still, and the others
    evictions: how often cells were evicted for this reply
    peak_bytes, ceiling_bytes: of the process with the model; budget: cells that each head keeps
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    reasoning_tokens: int
    seen: int
    kept: int
    evicted: int
    evictions: int
    peak_bytes: int
    ceiling_bytes: int
    budget: int


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """So many tokens of the prompt, of all that must be read, have been read."""

    seen: int
    total: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The next piece of the reply.

    reasoning: the model thinks, and does not answer yet
    logprobs: the tokens of the piece, as `edgekv.engine.pieces.packed` makes them
    """

    text: str
    reasoning: bool = False
    logprobs: bytes = b""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool. arguments: as JSON"""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The reply is over; nothing follows.

    stop_text: the one that ended it, if one did
    shades: what is kept, where the request wants to know and the disk takes it
    """

    reason: Reason
    usage: Usage
    stop_text: str | None = None
    shades: Shades | None = None


Event: TypeAlias = PromptProgress | Piece | ToolCall | Ended
