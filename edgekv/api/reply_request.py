"""Requests to the model and the events of their replies: plain values, which every endpoint translates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

from edgekv.conversations.history import History
from edgekv.generation.request import MAX_TOKENS
from edgekv.generation.sampler import Sampling
from edgekv.prompt.infill import Infill

from .coverage_file import CoverageFile

LONG_CHARS = 1 << 14  # a longer text lies on the disk until it is read, piece by piece
OF_ARCHIVE = ("recalls", "recalled_cells", "recall_s", "archived_bytes")  # figures of a reply that add up

Reason = Literal["stop", "length", "loop", "cancelled", "tool_calls"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyRequest:
    """A request for a reply: to messages, or to a prompt as it stands.

    messages: each with "role" and "content", a text or the Path of one; perhaps with "tool_calls" or "tool_call_id"
    prompt: a text, the Path of one, or token ids; None = there are messages
    suffix: a text that follows the prompt, so that the reply fills the gap between; None = nothing follows
    files: name and text of other files that belong to such a gap
    max_tokens: longest reply; None = until the model ends it
    stop: texts that end the reply
    stop_tokens: ids of tokens that end it; min_tokens: tokens before which neither these nor the model end it
    ignore_eos: the reply does not end by the model's end token or by a detected loop
    echo: the reply begins with the prompt
    n_choices: replies that its body asks for, whose log probabilities are held together
    n_logprobs: alternatives to tell with each token, with their log probabilities; None = tell nothing
    json_schema: a schema that the reply must fit; None = any text
    grammar: a grammar that the reply must fit, in place of a schema
    tools, tool_choice, parallel_tool_calls: what the model may call, and how, as in `Session.continue_from`
    focus: question that long new text is read with: True = the last user message, or another question, or its parts;
        None = the last user message, unless another request began with that text
    on_overflow: for a prompt of more tokens than cells: "evict", or "error"
    coverage: tell at the end of the reply how much of the conversation still has cells
    user: name of the client's user; told to nobody
    """

    messages: tuple[Mapping[str, Any], ...] = ()
    prompt: str | Path | Sequence[int] | None = None
    suffix: str | Path | None = None
    files: tuple[tuple[str, str | Path], ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = MAX_TOKENS
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    min_tokens: int = 0
    ignore_eos: bool = False
    echo: bool = False
    n_choices: int = 1
    n_logprobs: int | None = None
    json_schema: Mapping[str, Any] | None = None
    grammar: str | None = None
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True
    focus: bool | str | tuple[str, ...] | None = None
    on_overflow: Literal["evict", "error"] = "evict"
    coverage: bool = False
    user: str = ""

    @property
    def history(self) -> History:
        """The messages, the prompt, or the gap, as a session reads them."""
        if self.suffix is not None and isinstance(self.prompt, (str, Path)):
            return Infill(self.prompt, self.suffix, self.files)
        return self.messages if self.prompt is None else self.prompt

    @property
    def goes_on(self) -> bool:
        """True if the reply goes on with the last message, a text of the assistant."""
        last = self.messages[-1] if self.messages else {}
        return last.get("role") == "assistant" and not last.get("tool_calls")

    @property
    def has_form(self) -> bool:
        """True if the reply must fit a schema or a grammar."""
        return self.json_schema is not None or self.grammar is not None

    @property
    def needs_grammars(self) -> bool:
        """True if the runtime needs grammars: the reply must fit a schema or a grammar, or may call tools."""
        return self.has_form or (bool(self.tools) and self.tool_choice != "none")


@dataclass(frozen=True, slots=True)
class Usage:
    """The figures of a reply.

    prompt_tokens: all tokens of the prompt; `cached_tokens` of them had been read before
    reasoning_tokens: tokens of reasoning; a character of several tokens counts as one
    seen, kept, evicted: tokens of the whole conversation, tokens that still have a cell, and the others
    archived: evicted tokens with archived rows, which a recall can bring back
    recalls, recalled_cells, recall_s: recalls for this reply, the cells of each head that they filled, and the seconds
    archived_bytes: bytes that this reply wrote to the archive
    archive_failed: the archive takes no more tokens, or gives none back
    evictions: number of evictions during this reply
    peak_bytes, ceiling_bytes: memory of the process with the model; budget: cells that each head keeps
    prefill_s, decode_s: seconds for reading the new tokens of the prompt, and for the reply
    relaxed_tools: words of the schemas of tools that their calls may break, by the tools' names
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
    prefill_s: float = 0.0
    decode_s: float = 0.0
    relaxed_tools: Mapping[str, Sequence[str]] = field(default_factory=dict)
    archived: int = 0
    recalls: int = 0
    recalled_cells: int = 0
    recall_s: float = 0.0
    archived_bytes: int = 0
    archive_failed: bool = False

    def beside(self, before: Usage, *, with_prompt: bool) -> Usage:
        """Return the figures of this reply and of those before. with_prompt: its prompt is another one"""
        names = ("completion_tokens", "reasoning_tokens", "decode_s", "prefill_s", "evictions", *OF_ARCHIVE)
        sums = {name: getattr(self, name) + getattr(before, name) for name in names}
        for name in ("prompt_tokens", "cached_tokens"):
            sums[name] = getattr(before, name) + (getattr(self, name) if with_prompt else 0)
        return replace(self, **sums)


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """Progress of reading the prompt: tokens seen so far, of all that must be read."""

    seen: int
    total: int


@dataclass(frozen=True, slots=True)
class Piece:
    """The next piece of the reply.

    reasoning: the piece is reasoning, and not answer
    logprobs: the tokens of the piece, as `edgekv.generation.logprobs.packed` makes them
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

    stop_text: the stop text that ended the reply, if any
    coverage: tokens that are kept, if the request asks for them and the disk takes them
    """

    reason: Reason
    usage: Usage
    stop_text: str | None = None
    coverage: CoverageFile | None = None


Event: TypeAlias = PromptProgress | Piece | ToolCall | Ended
