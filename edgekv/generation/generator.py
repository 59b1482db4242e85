"""Generates the replies of one conversation, token by token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

from edgekv.engine.block_loop import BlockLoop
from edgekv.engine.loaded_model import LoadedModel
from edgekv.memory.sizes import MIB

from .loops import LoopDetector
from .request import GenerationRequest
from .sampler import SamplerState
from .stats import Stats
from .token_selector import TokenSelector

if TYPE_CHECKING:
    from edgekv.grammar.masks import Matcher

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
            if engine.model.is_end(token):
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
            if loops.loops_after(token) and not request.allow_loops:
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
            block_loop.step(token, drafts=True)
            if selector.notes is not None and stats.generated_tokens % NOTED == 0:
                engine.guard.check_room(NOTES_BYTES, selector.notes, "or give a simpler one")
            exceeded = engine.guard.check() if stats.generated_tokens % engine.options.block == 0 else None
            if exceeded is not None:
                stats.finish_reason = "ceiling"
                raise exceeded


def after(texts: Iterable[str], pieces: Iterator[str]) -> Iterator[str]:
    """Yield texts, then the pieces of a reply, which has begun by then; an error of its beginning comes before all."""
    first = next(pieces, None)
    yield from texts
    if first is not None:
        yield first
        yield from pieces
