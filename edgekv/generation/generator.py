"""Generates the replies of one conversation, token by token: a sampler chooses, within a grammar if there is one."""

from __future__ import annotations

import codecs
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from edgekv.binding.model import Context
from edgekv.cells.block_loop import BlockLoop
from edgekv.cells.feeds import Feeding
from edgekv.cells.loaded_model import LoadedModel
from edgekv.errors import EdgeKVError
from edgekv.memory.sizes import MIB

from .loops import SHORTEST_LOOP, LoopDetector
from .request import GenerationRequest
from .sampler import Sampler, SamplerState
from .stats import Stats
from .stopping import StopTexts, until_stop
from .turn_state import TurnState

if TYPE_CHECKING:
    from edgekv.grammar.masks import Matcher

    from .logprobs import LogprobRecorder
    from .tool_calls import ToolCallReader

Event = TypeVar("Event")

NOTED, NOTES_BYTES = 16, MIB  # tokens between two checks of a grammar's memory, and an upper bound of its growth


class ReplyGenerator:
    """Generates a reply.

    swapped_in: swaps the conversation in, whose cells others may have had since the last token; returns its block loop
    cancelled: ends a reply after the next token
    state: takes note of each token, and holds the sampler's state from one reply to the next
    """

    def __init__(
        self,
        engine: LoadedModel,
        swapped_in: Callable[[], BlockLoop],
        cancelled: threading.Event,
        state: TurnState,
    ) -> None:
        self._engine = engine
        self._state = state
        self._swapped_in = swapped_in
        self._cancelled = cancelled

    def pieces(
        self,
        request: GenerationRequest,
        matcher: Matcher | None,
        reader: ToolCallReader | None,
        stats: Stats,
    ) -> Feeding[None]:
        """Yield a reply in pieces, from the logits of the last batch on, and the feed of each token after its piece.

        The sampler goes on from its state.

        matcher: the grammar that the reply follows; None = it is free
        reader: takes tool calls out of the reply; None = no tools
        """
        block_loop = self._swapped_in()
        with closing(TokenSelector(request, matcher, self._state.sampler, self._engine.context, reader)) as selector:
            tokens = TokenTexts(request, selector, block_loop, self._state, stats)
            for piece in selector.pieces(tokens, stats):
                yield piece
                if not selector.has_stopped and tokens.goes_on(cancelled=self._cancelled.is_set()):
                    try:
                        yield from self._feed(tokens, selector, stats)
                    except EdgeKVError as error:
                        tokens.fail(error)

    def _goes_on(self, *_: int) -> Feeding[bool]:
        yield from ()
        return not self._cancelled.is_set()

    def _feed(self, tokens: TokenTexts, selector: TokenSelector, stats: Stats) -> Feeding[None]:
        """Feed the newest token. Raises CeilingExceededError if the process is found over its ceiling."""
        guard, n_tokens = self._engine.guard, stats.generated_tokens
        if tokens.block_loop.owner is not self._state:  # others had its cells meanwhile
            tokens.block_loop = self._swapped_in()
        yield from tokens.block_loop.stepping(tokens.newest, drafts=True, goes_on=self._goes_on)
        if selector.notes is not None and n_tokens % NOTED == 0:
            guard.check_room(NOTES_BYTES, selector.notes, "or give a simpler one")
        exceeded = guard.check() if n_tokens % self._engine.options.block == 0 else None
        if exceeded is not None:
            stats.finish_reason = "ceiling"
            raise exceeded


class TokenTexts:
    """Iterates over the texts of a reply's tokens; empty while a character of several tokens is incomplete.

    Each token is chosen from the logits of the token before, which was fed meanwhile.

    block_loop: the loop whose last feed has the logits
    newest: the last token
    """

    def __init__(
        self,
        request: GenerationRequest,
        selector: TokenSelector,
        block_loop: BlockLoop,
        state: TurnState,
        stats: Stats,
    ) -> None:
        self.block_loop = block_loop
        self.newest = -1
        self._request = request
        self._most_tokens = request.most_tokens
        self._selector = selector
        self._state = state
        self._stats = stats
        may_loop = not request.allow_loops and (self._most_tokens or SHORTEST_LOOP) >= SHORTEST_LOOP
        self._loops = LoopDetector() if may_loop else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        limit = block_loop.repositioning.limit
        self._room = None if limit is None else limit - block_loop.cache.n_past
        self._started = time.perf_counter()
        self._error: EdgeKVError | None = None
        self._is_over = request.max_tokens == 0
        if self._is_over:
            stats.finish_reason = "length"

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """Choose the next token; returns its text. Raises the error that kept the last one from being fed."""
        if self._error is not None:
            raise self._error
        if self._is_over:
            return self._rest()
        self._is_over = True  # until a token is chosen
        selector, stats = self._selector, self._stats
        token, piece = selector.next(self.block_loop.logits_row)
        if stats.generated_tokens == 0:
            stats.ttft_s = stats.prefill_s + time.perf_counter() - self._started
        if piece is None:
            self._state.note_end(selector.state(ended=True))
            stats.finish_reason = "end"
            return self._rest()
        stats.generated_tokens += 1
        self._state.note_token(token, selector.state(ended=False))
        self.newest, self._is_over = token, False
        return self._decoder.decode(piece)

    def _rest(self) -> str:
        """Return a mark for a character that stayed incomplete. Raises StopIteration if there is none."""
        rest = self._decoder.decode(b"", final=True)
        if not rest:
            raise StopIteration
        return rest

    def goes_on(self, *, cancelled: bool) -> bool:
        """Return True if the reply goes on after the newest token; otherwise note why it ends."""
        if not self._is_over:
            self._stats.decode_s = time.perf_counter() - self._started
            if reason := self._end(cancelled=cancelled):
                self._stats.finish_reason = reason
                self._is_over = True
        return not self._is_over

    def _end(self, *, cancelled: bool) -> str:
        """Return why the reply ends with the newest token; "" = it goes on."""
        request, n_tokens = self._request, self._stats.generated_tokens
        if self._selector.is_complete:
            return "end"
        if self._loops is not None and self._loops.loops_after(self.newest) and n_tokens >= request.min_tokens:
            return "loop"
        if n_tokens == self._most_tokens:
            return "length"
        if self._room is not None and n_tokens >= self._room:
            return "context"
        return "cancelled" if cancelled else ""

    def fail(self, error: EdgeKVError) -> None:
        """End the reply with an error, which comes after the text that is held back."""
        self._error, self._is_over = error, True


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
        self._stops = StopTexts(request.stop)
        self._recorder: LogprobRecorder | None = None
        if request.logprobs is not None:
            from .logprobs import LogprobRecorder  # few replies need it

            self._recorder = LogprobRecorder(request.logprobs)
        model_ends = context.model.ends if request.ignore_eos or request.min_tokens else ()
        self._ends = [*model_ends, *(token for token in request.stop_tokens if token < context.model.n_vocab)]
        self._n_chosen = 0
        self._sampler = Sampler(request.sampling, before, model_ends if request.ignore_eos else ())

    def next(self, row: int) -> tuple[int, bytes | None]:
        """Choose the next token; returns it and its bytes. None = it ends the reply, and does not belong to it.

        row: its logits' row in the last batch

        Raises GrammarError for a complex grammar.
        """
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
        if token in self._request.stop_tokens or model.is_end(token):
            return token, None
        piece = model.piece(token)
        if recorder is not None and logprobs is not None:
            recorder.add(logprobs.of(token, piece, model))
        return token, piece

    @property
    def notes(self) -> str | None:
        """Name of the grammar's notes on each token, for errors; None = no grammar."""
        return None if self._request.grammar is None else f"what {self._request.grammar.name} notes of the reply"

    @property
    def is_complete(self) -> bool:
        """True if the grammar allows only the end of the reply."""
        return self._matcher is not None and self._matcher.is_complete

    @property
    def has_stopped(self) -> bool:
        """True if the reply ends with a stop text, which came with the last piece."""
        return self._stops.found != ""

    def pieces(self, texts: Iterator[str], stats: Stats) -> Iterator[str]:
        """Yield the texts of tokens up to a stop text, and perhaps a last text.

        They are `Piece` if the request has logprobs.
        """
        if self._recorder is not None:
            texts = self._recorder.follow(texts)
        if self._request.stop:
            texts = until_stop(texts, self._stops, stats)
        if self._reader is not None:
            texts = self._reader.follow(texts, stats)
        return texts if self._recorder is None else self._recorder.pieces(texts)

    def state(self, *, ended: bool) -> SamplerState:
        """Return the state of the sampler. ended: the last token ended the reply, and does not belong to it"""
        return self._sampler.state(ended=ended)

    def close(self) -> None:
        """Free the sampler."""
        self._sampler.close()


def after(texts: Iterable[str], pieces: Iterator[Event]) -> Iterator[Event | str]:
    """Yield texts, then the pieces of a reply, which has begun by then; an error of its beginning comes before all."""
    first = next(pieces, None)
    yield from texts
    if first is not None:
        yield first
        yield from pieces
