"""Generates the replies of one conversation, token by token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Protocol

from edgekv.engine.loaded_model import LoadedModel
from edgekv.memory.sizes import MIB

from .request import GenerationRequest
from .sampler import SamplerState
from .stats import Stats
from .stopping import LoopDetector
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

    swapped_in: the model, with the conversation in its cells, which others may have had since the last token
    cancelled: ends a reply after the next token
    state: takes note of each token, and holds the sampler's state from one reply to the next
    """

    def __init__(self, swapped_in: Callable[[], LoadedModel], cancelled: threading.Event, state: TokenState) -> None:
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
        with (
            closing(
                TokenSelector(request, matcher, self._state.sampler, self._swapped_in().context, reader)
            ) as selector,
            closing(self._tokens(request, selector, stats)) as tokens,
        ):
            yield from selector.pieces(tokens, stats)

    def _tokens(self, request: GenerationRequest, selector: TokenSelector, stats: Stats) -> Generator[int, None, None]:
        """Choose and feed tokens until the reply ends; yields those that belong to it."""
        engine = self._swapped_in()
        repositioning = engine.block_loop.repositioning
        room = None if repositioning.limit is None else repositioning.limit - engine.block_loop.cache.n_past
        loops = LoopDetector()
        started = time.perf_counter()
        if request.max_tokens == 0:
            stats.finish_reason = "length"
            return
        while True:
            token = selector.next(engine.block_loop.logits_row)
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
            if stats.generated_tokens == request.most_tokens:
                stats.finish_reason = "length"
                return
            if room is not None and stats.generated_tokens >= room:
                stats.finish_reason = "context"
                return
            if self._cancelled.is_set():
                stats.finish_reason = "cancelled"
                return
            self._swapped_in().block_loop.step(token, drafts=True)
            if selector.notes is not None and stats.generated_tokens % NOTED == 0:
                engine.guard.check_room(NOTES_BYTES, selector.notes, "or give a simpler one")
            exceeded = engine.guard.check() if stats.generated_tokens % engine.options.block == 0 else None
            if exceeded is not None:
                stats.finish_reason = "ceiling"
                raise exceeded
