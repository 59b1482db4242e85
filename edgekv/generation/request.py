"""One reply, as a session asks for it, and the progress of reading its prompt."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

from edgekv.arguments import check_flag, check_names, check_one_of, listed, shown
from edgekv.errors import ConfigError, InputError

from .sampler import Sampling

if TYPE_CHECKING:
    from edgekv.grammar.source import Grammar
    from edgekv.prompt.tools import ToolCall, ToolUse
    from edgekv.prompt.turns import Kind  # imports jinja2, which a command's help does without

MAX_TOKENS = 1024  # default length limit of a reply
MOST_ALTERNATIVES = 20  # alternatives a token, with their log probabilities
ON_OVERFLOW = ("evict", "error")

# put before a question about a text; chosen by measurement (docs/sampling.md)
INSTRUCTION = "Answer in one or two sentences, from the text above:"


def without_instruction(question: str) -> str:
    """Return a question about a text without the instruction before it."""
    return question.removeprefix(f"{INSTRUCTION} ")


_NO_CHARACTER = re.compile("[\ud800-\udfff]")  # surrogates, which stand for bytes that are no UTF-8


def check_text(text: object, remedy: str = "give a text") -> None:
    """Raise InputError for what is no text, and for a text that UTF-8 cannot hold. remedy: for what is no text"""
    if not isinstance(text, str):
        raise InputError(f"{shown(text)} is no text; {remedy}")
    found = _NO_CHARACTER.search(text)
    if found is not None:
        begin = max(0, found.start() - 20)
        raise InputError(
            f"{text[begin : found.start() + 20]!r} is not UTF-8 text: it holds {found[0]!r}; write it in UTF-8"
        )


Focus: TypeAlias = bool | str | Sequence[str] | None  # the question to read texts with, as callers give it


def question_to_read_with(focus: Focus, usual: str, *, able: bool, otherwise: bool) -> str | tuple[str, ...] | None:
    """Return the question to read with: the caller's own, perhaps in parts, or `usual`; None = none.

    focus: a question or its parts; True = `usual`, False = none, None = `usual` if `otherwise` is true
    able: the runtime has cells for a probe

    Raises ConfigError for a focus that the runtime has no cells for, and for parts that say nothing.
    """
    if focus and not able:
        raise ConfigError(f"focus={focus!r} needs a runtime opened with focus=True, which has cells for the probe")
    if isinstance(focus, str):
        return focus or None
    if focus is not None and not isinstance(focus, bool):
        return _given_parts(focus)
    return usual if (able and otherwise if focus is None else focus) else None


def _given_parts(focus: Sequence[str]) -> tuple[str, ...]:
    """Return the parts of a question. Raises ConfigError for a part that is no text or is empty."""
    parts = listed("focus", focus, "texts, or a text")
    for part in parts:
        if not isinstance(part, str) or not part.strip():
            raise ConfigError(f"focus has the part {part!r}; give texts that are not empty")
    if not parts:
        raise ConfigError("focus has no parts; give some, or False to read without a question")
    return parts


# edgekv's names for options of other libraries
MEANT = {
    **dict.fromkeys(("max_new_tokens", "max_completion_tokens", "n_predict", "num_predict"), "give max_tokens="),
    **dict.fromkeys(("response_format", "format"), "give json_schema="),
    "stop_sequences": "give stop=",
    "do_sample": "a temperature above 0 draws",
    "repetition_penalty": "give repeat_penalty=",
    **dict.fromkeys(("callback", "callbacks", "streamer"), "chat, ask and generate yield pieces: iterate over them"),
    **dict.fromkeys(("images", "image", "audio"), "models read texts here"),
    "file": "give files=",
    "model": "the model is the runtime's, as in edgekv.Runtime(model)",
    "options": "give each by its name, as in temperature=0.7",
    "system_prompt": "give it to Runtime.session, or as the first message",
    "stream": "chat, ask and generate yield pieces, and reply returns the whole",
    "messages": "give them first, as in chat([...])",
    "system": "give it to Runtime.session, or as the first message",
}
SAMPLING = frozenset(it.name for it in fields(Sampling))  # options of a reply that choose its tokens


class GenerationOptions(TypedDict, total=False):
    """Options of a reply: keyword arguments of every method of `Session` that generates one.

    max_tokens: longest reply, in tokens; 0 = the prompt is read, and nothing is generated; None = until the model ends
        it, or its trained context is full. 1,024 if left out
    stop: a text, or several, that end the reply; it ends before the first one that is complete. None = none
    stop_tokens: token ids that end the reply, beside the model's own; none is part of it
    min_tokens: tokens before which neither the model, nor stop_tokens, nor a loop ends the reply; not with a grammar or
        tools
    allow_loops: go on when the reply loops. It loops when its last tokens are one sequence, three times in a row or
        more, and these are at least 60 tokens together; or five times or more with hardly a word that differs
    ignore_eos: the model cannot end the reply, so it has `max_tokens` tokens; a complete grammar still ends it
    temperature, top_k, top_p, min_p, repeat_penalty, frequency_penalty, presence_penalty, repeat_last, logit_bias,
        seed: how tokens are chosen, as in `Sampling`
    sampling: all of these as one object
    grammar: a grammar that the reply follows, in the syntax of llama.cpp (GBNF) or of Lark (docs/replies.md)
    json_schema: a JSON schema that the reply must fit, as a mapping or a text; True = any JSON
    logprobs: yield `edgekv.Piece`s, texts which have their tokens with log probabilities, and this many of the
        most probable alternatives, at most 20; None = plain texts
    """

    max_tokens: int | None
    stop: str | Sequence[str] | None
    stop_tokens: Sequence[int]
    min_tokens: int
    allow_loops: bool
    ignore_eos: bool
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repeat_penalty: float
    frequency_penalty: float
    presence_penalty: float
    repeat_last: int
    logit_bias: Mapping[int, float]
    seed: int | None
    sampling: Sampling | None
    grammar: str | None
    json_schema: Mapping[str, Any] | str | bool | None
    logprobs: int | None


def reply_fields(options: GenerationOptions) -> dict[str, Any]:
    """Return the fields of a `GenerationRequest` for these options. Raises ConfigError for an unknown one."""
    check_names(options, GenerationOptions.__annotations__, "a reply", MEANT)
    # None is the default of all others
    given: dict[str, Any] = {
        name: value for name, value in options.items() if value is not None or name == "max_tokens"
    }
    if chosen := {name: given.pop(name) for name in given.keys() & SAMPLING}:
        if "sampling" in given:
            raise ConfigError(f"{min(chosen)}= is beside sampling=, which has it, too; put all into one of both")
        given["sampling"] = Sampling(**chosen)
    grammar, json_schema = given.pop("grammar", None), given.pop("json_schema", None)
    if grammar is not None or json_schema is not None:
        from edgekv.grammar.source import grammar_of  # few replies need it

        given["grammar"] = grammar_of(grammar, json_schema)
    stop = given.get("stop", ())
    given["stop"] = (stop,) if isinstance(stop, str) else listed("stop", stop, "texts, or a text")
    given["stop_tokens"] = listed("stop_tokens", given.get("stop_tokens", ()), "token ids")
    for name in given.keys() & {"allow_loops", "ignore_eos"}:
        check_flag(name, given[name])
    return given


def _is_count(value: object) -> bool:
    """Return True for a whole number of at least 0."""
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A prompt to read, and a reply to generate; no reply if `kind` is a beginning.

    content: texts (str) and text files (Path), in reading order; for "messages", one for each message
    roles: role of each message, for "messages"
    tokens: token ids to read, for "tokens" and "ahead"
    instruction: put before the last content if the turn has another one above it
    question: the question to read with, or several texts, each a part of it; None = none
    max_tokens, stop, stop_tokens, min_tokens, allow_loops, ignore_eos, sampling, logprobs: as in `GenerationOptions`
    grammar: the grammar that the reply follows, or that of its JSON schema; None = a free reply
    prompt_logprobs: the reply begins with the prompt's own tokens, each with the log probabilities of its place
    calls: tool calls of each message, for "messages"
    tools: tools that the model is told of, and may call; None = no tools
    on_overflow: for a history of more tokens than the budget: "evict" reads it, "error" refuses it
    shared: length of the beginning that other histories have in common with this one, for "messages", "whole" and
        "tokens"; None = beginnings are neither kept nor used. 0 = only beginnings whose tokens all have their cells
    stored: number of a history that the engine has tokenised already, in place of contents, roles and calls
    """

    content: tuple[str | Path, ...] = ()
    roles: tuple[str, ...] = ()
    tokens: Sequence[int] = ()
    kind: Kind
    instruction: str = ""
    question: str | tuple[str, ...] | None = None
    max_tokens: int | None = MAX_TOKENS
    stop: tuple[str, ...] = ()
    stop_tokens: tuple[int, ...] = ()
    min_tokens: int = 0
    allow_loops: bool = False
    ignore_eos: bool = False
    sampling: Sampling = field(default_factory=Sampling)
    grammar: Grammar | None = None
    logprobs: int | None = None
    prompt_logprobs: bool = False
    calls: tuple[tuple[ToolCall, ...], ...] = ()
    tools: ToolUse | None = None
    on_overflow: str = "evict"
    shared: int | None = None
    stored: int | None = None

    def __post_init__(self) -> None:
        question = (self.question,) if isinstance(self.question, str) else self.question or ()
        for part in (*self.content, *question, *self.stop):
            if isinstance(part, str):
                check_text(part)
        if self.max_tokens is not None and not _is_count(self.max_tokens):
            raise ConfigError(
                f"max_tokens={self.max_tokens!r} is not possible; give a whole number of at least 0, or None for any"
            )
        if not isinstance(self.sampling, Sampling):
            raise ConfigError(f"sampling={self.sampling!r} is not possible; give an edgekv.Sampling or None")
        if self.ignore_eos and self.max_tokens is None:
            raise ConfigError("ignore_eos=True needs max_tokens, since nothing else ends the reply; give a number")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise ConfigError(f"stop={text!r} is not possible; give a text that is not empty")
        if not all(map(_is_count, self.stop_tokens)):
            raise ConfigError(f"stop_tokens={self.stop_tokens!r} is not possible; give ids of the vocabulary")
        if not _is_count(self.min_tokens) or (self.max_tokens is not None and self.min_tokens > self.max_tokens):
            raise ConfigError(
                f"min_tokens={self.min_tokens!r} is not possible; give a whole number from 0 to "
                f"max_tokens={self.max_tokens}"
            )
        if self.min_tokens and (self.grammar is not None or self.tools is not None):
            raise ConfigError(
                f"min_tokens={self.min_tokens} does not go with a grammar, a schema or tools, which say where a reply "
                "ends; leave it out"
            )
        n_top = 0 if self.logprobs is None else self.logprobs
        if not _is_count(n_top) or n_top > MOST_ALTERNATIVES:
            raise ConfigError(
                f"logprobs={n_top!r} is not possible; give a number of alternatives in [0, {MOST_ALTERNATIVES}]"
            )
        if self.prompt_logprobs and (self.kind not in ("whole", "tokens") or self.logprobs is None):
            raise ConfigError(
                "prompt_logprobs=True needs a text or token ids, and logprobs=; give both, or leave it out"
            )
        if self.shared is not None and not _is_count(self.shared):
            raise ConfigError(f"shared={self.shared!r} is not possible; give a number of tokens, at least 0, or None")
        check_one_of("on_overflow", self.on_overflow, ON_OVERFLOW)

    @property
    def follows_grammar(self) -> bool:
        """True if the reply follows a grammar: the caller's, a schema's, or that of tools."""
        return self.grammar is not None or (self.tools is not None and bool(self.tools.callable))

    @property
    def most_tokens(self) -> int | None:
        """The most tokens of the reply. A grammar sets a limit, because its parser keeps notes on each token."""
        if self.grammar is None:
            return self.max_tokens
        from edgekv.grammar.source import MAX_REPLY

        return MAX_REPLY if self.max_tokens is None else min(self.max_tokens, MAX_REPLY)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindRequest:
    """A return to the first n_tokens tokens, without a reply.

    other_draws: later replies draw new random numbers
    """

    n_tokens: int
    other_draws: bool = False

    def __post_init__(self) -> None:
        if not _is_count(self.n_tokens):
            raise ConfigError(f"n_tokens={self.n_tokens!r} is not possible; give a number of tokens, at least 0")


@dataclass(frozen=True, slots=True)
class Logging:
    """The log and checkpoints that a session keeps on the disk.

    folder: folder of the files; None = that of TMPDIR
    checkpoint_bytes: the most that checkpoints may take; None = 256 MiB, or four of them
    """

    folder: str | None = None
    checkpoint_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of reading a prompt: tokens read and tokens in all; cells used per head and the budget.

    heads_scanned, heads_total: heads whose archived keys were scanned, of those of a recall; 0 of 0 before it
    """

    tokens_done: int
    tokens_total: int
    cells_used: int
    budget_cells: int
    heads_scanned: int = 0
    heads_total: int = 0


ProgressCallback = Callable[[Progress], None]
