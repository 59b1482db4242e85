"""The token selector of one reply: a sampler, within a grammar, that records log probabilities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from edgekv.binding.model import Context

from .request import GenerationRequest
from .sampler import Sampler, SamplerState
from .stats import Stats
from .stopping import until_stop

if TYPE_CHECKING:
    from edgekv.grammar.masks import Matcher

    from .logprobs import LogprobRecorder
    from .tool_calls import ToolCallReader


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
        self._recorder = None if request.logprobs is None else _logprob_recorder(request.logprobs)
        ends = context.model.ends if request.ignore_eos else ()
        self._sampler = Sampler(request.sampling, before, ends)

    def next(self, row: int) -> int:
        """Choose the next token. row: its logits' row in the last batch. Raises GrammarError for a complex grammar."""
        context, model = self._context, self._context.model
        recorder = None if self._reader is not None and self._reader.has_calls else self._recorder
        logprobs = None if recorder is None else recorder.logprobs(context.logits_array(row))
        if self._matcher is not None:
            self._matcher.mask(context.logits_array(row))
        token = self._sampler.sample(context, row)
        if self._matcher is not None:
            self._matcher.accept(token)
        if recorder is not None and logprobs is not None and not model.is_end(token):
            recorder.add(logprobs.of(token, model))
        return token

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


def _logprob_recorder(n_top: int) -> LogprobRecorder:
    from .logprobs import LogprobRecorder  # few replies need it

    return LogprobRecorder(n_top)
