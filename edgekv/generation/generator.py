"""Generates the replies of one conversation, token by token: a sampler chooses, within a grammar if there is one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

import numpy as np

from edgekv.binding.model import Context
from edgekv.engine.block_loop import BlockLoop
from edgekv.engine.loaded_model import LoadedModel
from edgekv.memory.sizes import MIB

from .loops import LoopDetector
from .request import GenerationRequest
from .sampler import Sampler, SamplerState
from .stats import Stats
from .stopping import until_stop

if TYPE_CHECKING:
    from edgekv.grammar.masks import Matcher

    from .logprobs import LogprobRecorder
    from .tool_calls import ToolCallReader

NOTED, NOTES_BYTES = 16, MIB  # tokens between two checks of a grammar's memory, and an upper bound of its growth


class TokenState(Protocol):
    """The state of a conversation that a reply changes."""

    @property
    def sampler(self) -> SamplerState | None:
        """The state of the sampler after the last generated token; None = there was none."""

    def say(self, token: int, sampler: SamplerState) -> None:
        """Note a generated token, and the sampler after it."""

    def draw(self, sampler: SamplerState) -> None:
        """Note the sampler after a token that ends a reply."""


class ReplyGenerator:
    """Generates replies.

    swapped_in: swaps the conversation in, whose cells others may have had since the last token; returns its block loop
    cancelled: ends a reply after the next token
    state: takes note of each token, and holds the sampler's state from one reply to the next
    """

    def __init__(
        self,
        engine: LoadedModel,
        swapped_in: Callable[[], BlockLoop],
        cancelled: threading.Event,
        state: TokenState,
    ) -> None:
        self._engine = engine
        self._state = state
        self._swapped_in = swapped_in
        self._cancelled = cancelled

    def pieces(
        self, request: GenerationRequest, matcher: Matcher | None, reader: ToolCallReader | None, stats: Stats
    ) -> Iterator[str]:
        """Yield a reply in pieces, from the logits of the last batch on. The sampler goes on from its state.

        matcher: the grammar that the reply follows; None = it is free
        reader: takes tool calls out of the reply; None = no tools
        """
        self._swapped_in()
        with (
            closing(TokenSelector(request, matcher, self._state.sampler, self._engine.context, reader)) as selector,
            closing(self._tokens(request, selector, stats)) as tokens,
        ):
            yield from selector.pieces(tokens, stats)

    def _tokens(self, request: GenerationRequest, selector: TokenSelector, stats: Stats) -> Generator[int, None, None]:
        """Choose and feed tokens until the reply ends; yields those that belong to it."""
        engine, block_loop = self._engine, self._swapped_in()
        limit = block_loop.repositioning.limit
        room = None if limit is None else limit - block_loop.cache.n_past
        most_tokens = request.most_tokens
        loops = LoopDetector()
        started = time.perf_counter()
        if request.max_tokens == 0:
            stats.finish_reason = "length"
            return
        while True:
            token = selector.next(block_loop.logits_row)
            if stats.generated_tokens == 0:
                stats.ttft_s = stats.first_pass_s + stats.prefill_s + time.perf_counter() - started
            if selector.is_end(token):
                self._state.draw(selector.state(ended=True))
                stats.finish_reason = "end"
                return
            stats.generated_tokens += 1
            self._state.say(token, selector.state(ended=False))
            yield token
            stats.decode_s = time.perf_counter() - started
            if selector.is_complete:
                stats.finish_reason = "end"
                return
            may_end = stats.generated_tokens >= request.min_tokens
            if loops.loops_after(token) and may_end and not request.allow_loops:
                stats.finish_reason = "loop"
                return
            if stats.generated_tokens == most_tokens:
                stats.finish_reason = "length"
                return
            if room is not None and stats.generated_tokens >= room:
                stats.finish_reason = "context"
                return
            if self._cancelled.is_set():
                stats.finish_reason = "cancelled"
                return
            block_loop = self._swapped_in()  # another one, if others had its cells meanwhile
            block_loop.step(token, drafts=True, goes_on=lambda _n, _of: not self._cancelled.is_set())
            if selector.notes is not None and stats.generated_tokens % NOTED == 0:
                engine.guard.check_room(NOTES_BYTES, selector.notes, "or give a simpler one")
            exceeded = engine.guard.check() if stats.generated_tokens % engine.options.block == 0 else None
            if exceeded is not None:
                stats.finish_reason = "ceiling"
                raise exceeded


class TokenSelector:
    """Chooses the tokens of one reply. Close it when done.

    matcher: the grammar that the reply follows; None = it is free
    before: the state of the sampler after the last reply
    reader: takes tool calls out of the reply; None = no tools
    """

    def __init__(
        self,
        request: GenerationRequest,
        matcher: Matcher | None,
        before: SamplerState | None,
        context: Context,
        reader: ToolCallReader | None = None,
    ) -> None:
        self._request = request
        self._matcher = matcher
        self._context = context
        self._reader = reader
        self._recorder: LogprobRecorder | None = None
        if request.logprobs is not None:
            from .logprobs import LogprobRecorder  # few replies need it

            self._recorder = LogprobRecorder(request.logprobs)
        model_ends = context.model.ends if request.ignore_eos or request.min_tokens else ()
        self._ends = [*model_ends, *(token for token in request.stop_tokens if token < context.model.n_vocab)]
        self._n_chosen = 0
        self._sampler = Sampler(request.sampling, before, model_ends if request.ignore_eos else ())

    def next(self, row: int) -> int:
        """Choose the next token. row: its logits' row in the last batch. Raises GrammarError for a complex grammar."""
        context, model = self._context, self._context.model
        recorder = None if self._reader is not None and self._reader.has_calls else self._recorder
        logprobs = None if recorder is None else recorder.logprobs(context.logits_array(row))
        if self._matcher is not None:
            self._matcher.mask(context.logits_array(row))
        if self._n_chosen < self._request.min_tokens:
            context.logits_array(row)[self._ends] = -np.inf
        token = self._sampler.sample(context, row)
        self._n_chosen += 1
        if self._matcher is not None:
            self._matcher.accept(token)
        if recorder is not None and logprobs is not None and not self.is_end(token):
            recorder.add(logprobs.of(token, model))
        return token

    def is_end(self, token: int) -> bool:
        """Return True for a token that ends the reply, and does not belong to it."""
        return token in self._request.stop_tokens or self._context.model.is_end(token)

    @property
    def notes(self) -> str | None:
        """Name of the grammar's notes on each token, for errors; None = no grammar."""
        return None if self._request.grammar is None else f"what {self._request.grammar.name} notes of the reply"

    @property
    def is_complete(self) -> bool:
        """True if the grammar allows only the end of the reply."""
        return self._matcher is not None and self._matcher.is_complete

    def pieces(self, tokens: Iterable[int], stats: Stats) -> Iterator[str]:
        """Yield the texts of the tokens up to a stop text, as `Piece` if the request has logprobs."""
        texts: Iterator[str] = self._context.model.text(tokens)
        if self._recorder is not None:
            texts = self._recorder.follow(texts)
        if self._request.stop:
            texts = until_stop(texts, self._request.stop, stats)
        if self._reader is not None:
            texts = self._reader.follow(texts, stats)
        return texts if self._recorder is None else self._recorder.pieces(texts)

    def state(self, *, ended: bool) -> SamplerState:
        """Return the state of the sampler. ended: the last token ended the reply, and does not belong to it"""
        return self._sampler.state(ended=ended)

    def close(self) -> None:
        """Free the sampler."""
        self._sampler.close()


def after(texts: Iterable[str], pieces: Iterator[str]) -> Iterator[str]:
    """Yield texts, then the pieces of a reply, which has begun by then; an error of its beginning comes before all."""
    first = next(pieces, None)
    yield from texts
    if first is not None:
        yield first
        yield from pieces
