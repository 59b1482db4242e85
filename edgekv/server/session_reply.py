"""The reply of a session as events: reasoning apart from the answer, calls of tools, and figures."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import edgekv
from edgekv.api.coverage_file import coverage_of
from edgekv.api.reply_request import (
    OF_ARCHIVE,
    Ended,
    Event,
    Piece,
    PromptProgress,
    Reason,
    ReplyRequest,
    ToolCall,
    Usage,
)
from edgekv.conversations.history import History, StoredHistory
from edgekv.documents.text_file import read_text
from edgekv.generation.reasoning import ReasoningSplitter, opens_reasoning
from edgekv.generation.stats import Stats
from edgekv.loop.loop_channel import Mailbox
from edgekv.loop.reply_pieces import Blocks
from edgekv.prompt.infill import Infill

from .cancel_flag import CancelFlag

Waited: TypeAlias = Mailbox | Blocks  # what a reply waits for before its next piece

log = logging.getLogger("edgekv.server")

# reasons for clients, by `Stats.finish_reason`
REASONS: dict[str, Reason] = {
    "end": "stop",
    "stop": "stop",
    "length": "length",
    "context": "length",
    "loop": "loop",
    "cancelled": "cancelled",
}
PINNED_SHARE = 4  # a system message of more than 1/4 of the budget is read like any other text, and evicted
TEMPLATE_TOKENS = 32  # tokens that a chat template puts around a system message, at most


class Replier:
    """Answers requests with sessions of one runtime.

    chats: the model has a usable chat template; fills_gaps: it has tokens for gaps between two texts
    """

    def __init__(self, runtime: edgekv.Runtime) -> None:
        self._runtime = runtime
        opening = runtime.reply_opening()
        self.chats = bool(opening)
        try:
            self.fills_gaps = runtime.count_tokens(Infill("", "")) > 0
        except edgekv.InputError:
            self.fills_gaps = False
        self._begins_thinking = opens_reasoning(opening)

    def stored(self, request: ReplyRequest, folder: Path | None) -> AbstractContextManager[StoredHistory]:
        """Return a context with the history of a request, tokenised once for all sessions. Raises EdgeKVError."""
        return self._runtime.stored(
            request.history,
            tools=request.tools,
            tool_choice=request.tool_choice,
            parallel_tool_calls=request.parallel_tool_calls,
            folder=folder,
        )

    def answer(
        self,
        session: edgekv.Session,
        request: ReplyRequest,
        history: History,
        emit: Callable[[Event], None],
        stop: CancelFlag,
        n_shared: int | None = None,
    ) -> Iterator[Mailbox]:
        """Have a session answer a request; call `emit` with the events. Raises EdgeKVError.

        Yields each answer of the loop before it waits for it.

        history: the request's, which may be stored
        n_shared: tokens that another history begins with, too; None = no beginning is kept for others, or used
        """

        def reading(progress: edgekv.Progress) -> None:
            if not progress.heads_total:  # a recall reads no tokens
                emit(PromptProgress(progress.tokens_done, progress.tokens_total))
            if stop:
                session.cancel()

        if request.focus:  # the client wants the text read with its question
            n_shared = None if n_shared is None else 0
        focus = True if request.focus is None else request.focus
        reply = session.continue_from(
            history,
            focus=focus if request.prompt is None and self._runtime.options.focus else False,
            on_overflow=request.on_overflow,
            shared=n_shared,
            max_tokens=request.max_tokens,
            stop=request.stop,
            stop_tokens=request.stop_tokens,
            min_tokens=request.min_tokens,
            ignore_eos=request.ignore_eos,
            allow_loops=request.ignore_eos,
            sampling=request.sampling,
            json_schema=request.json_schema,
            grammar=request.grammar,
            logprobs=request.n_logprobs,
            tools=request.tools,
            tool_choice=request.tool_choice,
            parallel_tool_calls=request.parallel_tool_calls,
            prompt_logprobs=request.echo and request.n_logprobs is not None,
            progress=reading,
        )
        events: Iterator[str | Waited] = session.events(reply)
        if request.echo and request.n_logprobs is None:
            events = _after(self._prompt_texts(request), events)
        # a reply that fits a schema or a grammar has no place for thoughts
        is_plain = request.prompt is not None or request.has_form
        begun = self._begins_thinking and not request.goes_on
        splitter = PieceSplitter(begun=None if is_plain else begun)
        with stop.calls(session.cancel):
            for event in splitter.events(events):
                if isinstance(event, Piece):
                    emit(event)
                elif not isinstance(event, Blocks):
                    yield event
        stats = session.stats
        for call in stats.tool_calls:
            emit(ToolCall(f"call_{secrets.token_hex(12)}", call.name, call.arguments))
        if stats.archive_failure:
            log.warning("the archive of a conversation: %s", stats.archive_failure)
        coverage = coverage_of(session) if request.coverage and not stop else None
        emit(Ended(reason_of(stats), self._usage(stats, splitter.n_thoughts), stats.stop_text or None, coverage))

    def _prompt_texts(self, request: ReplyRequest) -> Iterator[str]:
        """Yield the text of the prompt, in pieces if it is a file."""
        prompt = request.prompt
        if isinstance(prompt, Path):
            yield from read_text(prompt)
        else:
            yield prompt if isinstance(prompt, str) else self._runtime.text_of(prompt or ())

    def pinned(self, request: ReplyRequest) -> str | None:
        """Return the system message of a request if it is short enough to be pinned, that is, never evicted."""
        first = request.messages[0] if request.messages else {}
        text = first["content"] if first.get("role") == "system" else None
        if not isinstance(text, str) or not text:
            return None
        options, budget = self._runtime.options, self._runtime.plan.budget_cells
        most = (budget - options.sinks - options.recent_cells(budget)) // PINNED_SHARE - TEMPLATE_TOKENS
        # a token stands for a byte, or for several
        return text if len(text.encode()) <= most or len(self._runtime.tokenize(text)) <= most else None

    def _usage(self, stats: Stats, n_thought: int) -> Usage:
        plan = self._runtime.plan
        return Usage(
            prompt_tokens=stats.reused_tokens + stats.prompt_tokens,
            cached_tokens=stats.reused_tokens,
            completion_tokens=stats.generated_tokens,
            reasoning_tokens=n_thought,
            seen=stats.tokens_seen,
            kept=stats.kept_tokens,
            evicted=stats.tokens_seen - stats.kept_tokens,
            evictions=stats.evictions,
            peak_bytes=stats.peak_rss_bytes,
            ceiling_bytes=plan.ceiling_bytes,
            budget=plan.budget_cells,
            prefill_s=stats.prefill_s,
            decode_s=stats.decode_s,
            relaxed_tools=dict(stats.relaxed_tools),
            archived=stats.recallable_tokens,
            archive_failed=stats.archive_failure != "",
            **{name: getattr(stats, name) for name in OF_ARCHIVE},
        )


def reason_of(stats: Stats) -> Reason:
    """Return the reason why a reply ended. A reply that was cut after a tool call counts as cut."""
    reason = REASONS[stats.finish_reason]
    return "tool_calls" if reason == "stop" and stats.tool_calls else reason


def _after(texts: Iterable[str], events: Iterable[str | Waited]) -> Iterator[str | Waited]:
    """Yield texts before the first piece of a reply, which has begun by then; an error of its beginning comes first."""
    is_begun = False
    for event in events:
        if isinstance(event, str) and not is_begun:
            is_begun = True
            yield from texts
        yield event
    if not is_begun:
        yield from texts


class PieceSplitter:
    """Splits a reply that comes in pieces into reasoning and answer.

    White space around reasoning, and before the answer that follows it, belongs to neither.

    n_thoughts: pieces of reasoning so far
    """

    def __init__(self, *, begun: bool | None = False) -> None:
        """begun: the chat template has opened the tag, so the reply begins with reasoning; None = all is answer"""
        self.n_thoughts = 0
        self._split = None if begun is None else ReasoningSplitter(begun=begun)
        self._newest: bool | None = None  # True = the newest part is reasoning
        self._begins = False  # True = the part has no text yet, and drops white space
        self._blanks = ""  # white space after the reasoning so far

    def events(self, pieces: Iterable[str | Waited]) -> Iterator[Piece | Waited]:
        """Yield the pieces of a reply. Log probabilities of text that is held back come with the next text.

        What the reply waits for is passed on.
        """
        tokens = b""
        for piece in pieces:
            if not isinstance(piece, str):
                yield piece
                continue
            tokens += getattr(piece, "packed", b"")
            for is_thought, text in self.push(piece):
                yield Piece(text, is_thought, tokens)
                tokens = b""
        for is_thought, text in self.rest():
            yield Piece(text, is_thought, tokens)
            tokens = b""
        if tokens:
            yield Piece("", logprobs=tokens)

    def push(self, piece: str) -> list[tuple[bool, str]]:
        """Take the next piece; return the texts that are decided, each with True for reasoning."""
        if self._split is None:
            return [(False, piece)] if piece else []
        self.n_thoughts += bool(self._split.in_reasoning)
        return list(self._trimmed(self._split.add(piece)))

    def rest(self) -> list[tuple[bool, str]]:
        """Return the texts that were still held back when the reply ended."""
        return [] if self._split is None else list(self._trimmed(self._split.end()))

    def _trimmed(self, parts: Iterable[tuple[bool, str]]) -> Iterator[tuple[bool, str]]:
        for is_thought, text in parts:
            if is_thought != self._newest:
                self._newest, self._blanks = is_thought, ""
                self._begins = self._split is not None and self._split.has_reasoning
            text = self._blanks + text
            if self._begins:
                text = text.lstrip()
            shown = text.rstrip() if is_thought else text
            self._blanks = text[len(shown) :]
            if shown:
                self._begins = False
                yield is_thought, shown
