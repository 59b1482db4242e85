"""The prompts of one conversation: what a request adds to what was read, and the places to pause at."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from edgekv.cells.feeds import Feeding
from edgekv.cells.loaded_model import LoadedModel
from edgekv.counting import counted
from edgekv.errors import ConfigError, PromptLengthError
from edgekv.generation.request import GenerationRequest, RewindRequest
from edgekv.generation.stats import Stats
from edgekv.prompt.text import Prompt
from edgekv.prompt.turns import BEGINNINGS, NO_PROBE, STATES, Kind, Probe, Turns
from edgekv.store.log import OPENING, TokenLog

from .beginnings import SHORTEST, BeginningKey, digests
from .cache_slots import CacheSlots
from .history_prompt import Contents, HistoryPrompt, history_prompt
from .prefill import Prefill
from .sequence_state import SequenceState
from .session_history import SessionHistory


class PromptReader:
    """Reads the prompts of a conversation whose state is settled and has the cells.

    turns: the conversation in the words of the chat template
    stored: histories that requests name by their numbers
    slots: have the beginnings that conversations share
    """

    def __init__(
        self,
        loaded: LoadedModel,
        state: SequenceState,
        system: str | None,
        stored: Mapping[int, HistoryPrompt],
        slots: CacheSlots,
        cancelled: threading.Event,
    ) -> None:
        self.turns = Turns(loaded.model, system)
        self._loaded = loaded
        self._state = state
        self._system = system
        self._stored = stored
        self._slots = slots
        self._cancelled = cancelled

    def pin_system(self) -> None:
        """Pin the system message. Raises BudgetError if it leaves no room."""
        n_pinned = self.turns.opening().count()
        self._loaded.options.check_budget(self._loaded.plan.budget_cells, n_pinned)
        self._state.pinned = ((0, n_pinned),)

    def turn_prompt(self, request: GenerationRequest, stats: Stats) -> tuple[Iterator[int], Probe]:
        """Return the tokens to read for a turn, and the probe to read them with.

        Changes nothing but `stats`, unless only a part of the opening was read before: then the opening is read again.
        """
        state, loaded = self._state, self._loaded
        if state.turns == "opening":
            state.go_back(0)
        self.turns.state, pending = state.turns, state.pending
        prompt = self.turns.prompt(request.kind, request.content, request.instruction)
        stats.prompt_tokens = prompt.count() + len(pending)
        state.block_loop.repositioning.check_length(state.n_past + stats.prompt_tokens)
        fits = state.n_cells + stats.prompt_tokens <= loaded.plan.budget_cells
        question = None if fits else request.question
        probe = NO_PROBE if question is None else self.turns.probe(question, loaded.options.probe_tokens)
        mark = self._marker(request.kind, state.n_past + len(pending))
        return itertools.chain(pending, prompt.tokens(mark)), probe

    def history_prompt(
        self, request: GenerationRequest, stats: Stats, history: SessionHistory
    ) -> tuple[Iterator[int], Probe, Sequence[BeginningKey]]:
        """Go back to the end of the common prefix of log and history, or to a longer beginning that others share.

        Returns the tokens after it, the probe to read them with, and the places to pause at.
        """
        state, plan = self._state, self._loaded.plan
        found = history_prompt(request, self._loaded.model, self._stored).store(history.folder)
        prompt = found.prompt(self._system, history.replies(state.pending))
        contents = Contents()
        n_common, n_tokens = history.log.common(prompt.tokens(contents.mark))
        state.block_loop.repositioning.check_length(n_tokens)
        if request.on_overflow == "error" and n_tokens > plan.budget_cells:
            raise PromptLengthError(
                f"the prompt has {n_tokens} tokens, and the budget is {plan.budget_cells} cells; give a shorter one, "
                "or on_overflow='evict' to read it all the same",
                n_tokens=n_tokens,
                limit=plan.budget_cells,
            )
        if n_tokens == 0:
            prompt.count()  # raises the error for an empty history
        n_seen = min(n_common, n_tokens - (request.kind not in BEGINNINGS))  # logits come from the last token
        if n_seen < state.n_past and request.kind not in BEGINNINGS:
            n_seen = max(0, min(n_seen, n_tokens - state.block_loop.n_asking))
        if request.prompt_logprobs:  # the logits of every token are needed
            state.go_back(0)
        else:
            self._go_back(request, prompt, history, n_seen, n_tokens)
        stats.reused_tokens = state.n_past
        stats.prompt_tokens = n_tokens - state.n_past
        pauses = self._pauses(request, prompt, contents, n_tokens)
        n_paused = pauses[-1].n_past if pauses else state.n_past
        probe = self._probe(request.question, n_paused, n_tokens)
        mark = self._marker(request.kind, 0, known=max(n_common, state.n_past))
        return itertools.islice(prompt.tokens(mark), state.n_past, None), probe, pauses

    def _go_back(
        self, request: GenerationRequest, prompt: Prompt, history: SessionHistory, n_seen: int, n_tokens: int
    ) -> None:
        """Go back to n_seen tokens, or to a shared beginning of the prompt that saves more reading.

        If the prompt is to be read with its question, and no part of it once for all, archived tokens are read again.
        """
        state, refills = self._state, request.shared != 0
        n_own = state.restorable(n_seen, refills=refills)
        if request.shared is not None and self._slots.beginnings.are_kept:
            lengths = range(n_own + 1, n_tokens)
            turned = state.block_loop.repositioning.turns_from_start(n_tokens, is_long=False)
            beginning = self._slots.beginnings.longest(
                prompt.tokens(), self._system, lengths, evicted=request.shared != 0, turned=turned
            )
            if beginning is not None:
                log = history.log_of(prompt, beginning.key.n_past, request.kind)
                if self._slots.kept_beginnings is not None:
                    self._slots.kept_beginnings.note_use(beginning.key)
                state.begin_with(beginning, log, n_seen)
                return
        state.go_back(n_seen, refills=refills)

    def _pauses(
        self, request: GenerationRequest, prompt: Prompt, contents: Contents, n_tokens: int
    ) -> Sequence[BeginningKey]:
        """Return the places where the state is kept for others: in and after the opening, and after a shared text.

        Within the opening these are the places before its second and further system messages, which may tell a folder.
        A text is shared as far as histories differ in their last content alone; before a gap, wherever they differ,
        since an editor's cursor moves there. The same history once more does not tell where its text ends, and is read
        with its question again.
        """
        if request.shared is None or not self._slots.beginnings.are_kept:
            return ()
        n_past, plan = self._state.n_past, self._loaded.plan
        ends: list[int] = []
        for end in (*contents.further_rules, contents.first):
            begin = ends[-1] if ends else n_past
            if end - begin >= SHORTEST and end <= max(request.shared, plan.budget_cells):
                ends.append(end)
        first = ends[-1] if ends else n_past
        n_whole = (request.shared - first) // plan.block * plan.block
        last = 0 if request.kind == "infill" else contents.last
        if n_whole > 0 and last <= request.shared < n_tokens:
            ends.append(first + n_whole)
        found = digests(prompt.tokens(), ends)
        repositioning = self._state.block_loop.repositioning
        turned = repositioning.turns_from_start(n_tokens, is_long=repositioning.is_long)
        return [BeginningKey(end, self._system, found[end], turned) for end in ends]

    def _probe(self, question: str | tuple[str, ...] | None, begin: int, end: int) -> Probe:
        """Return the probe to read the tokens [begin, end) with: cells are chosen while more than a block is read."""
        state, plan = self._state, self._loaded.plan
        n_cells = min(state.n_cells + begin - state.n_past, plan.budget_cells)
        if question is None or n_cells + end - begin <= plan.budget_cells or end - begin <= plan.block:
            return NO_PROBE
        return self.turns.probe(question, self._loaded.options.probe_tokens)

    def common_prefix_length(self, request: GenerationRequest, history: SessionHistory, pending: Sequence[int]) -> int:
        """Return the length of the longest common prefix of a history and the log. Raises the errors of the prompt.

        pending: tokens that are generated, but not fed yet. Any thread may call this
        """
        found = history_prompt(request, self._loaded.model, self._stored)
        prompt = found.prompt(self._system, history.replies(pending))
        return history.log.beginning(prompt.tokens())

    def rewind(self, request: RewindRequest, stats: Stats, history: SessionHistory) -> Feeding[None]:
        """Go back to the newest checkpoint before, and read again from there.

        After any later exception the session has gone back to the checkpoint, or to the last token that was read again.
        """
        state, n = self._state, request.n_tokens
        if n > state.n_past:
            past = counted(state.n_past, "token")
            raise ConfigError(f"n_tokens={n} is beyond the {past} that the session has read and said; give fewer")
        state.go_back(n, other_draws=request.other_draws)
        stats.reused_tokens = state.n_past
        stats.prompt_tokens = n - state.n_past
        if state.n_past < n:
            yield from self.read(history.log.tokens(state.n_past, n), "read", stats, known=history.log)
        stats.finish_reason = stats.finish_reason or "read"

    def read(
        self,
        tokens: Iterable[int],
        kind: Kind,
        stats: Stats,
        probe: Probe = NO_PROBE,
        known: TokenLog | None = None,
        pauses: Sequence[BeginningKey] = (),
        observe: Callable[[int], None] | None = None,
    ) -> Feeding[bool]:
        """Read the tokens of a prompt, and yield the `Progress`; returns True if the reply may begin.

        probe: what the tokens after the pauses are read with; known: a log that holds the tokens
        pauses: places where the state is kept for others; the tokens before them are read without a question
        observe: called with each token before it is fed (`BlockLoop.reading`)
        """
        state = self._state
        reading = Prefill(state, self._loaded.guard, self._cancelled, stats, observe)
        state.begin_prompt(STATES[kind], known)
        coming = self._to_their_end(tokens, kind)
        for key in pauses:
            yield from reading.read(itertools.islice(coming, key.n_past - state.n_past), NO_PROBE, want_logits=False)
            if not reading.may_reply():
                return False
            self._slots.beginnings.keep(key, state.turns, state.block_loop)
            if self._slots.kept_beginnings is not None:
                self._slots.kept_beginnings.keep(key, state.turns, state.block_loop)
        yield from reading.read(coming, probe, want_logits=kind not in BEGINNINGS)
        return reading.may_reply()

    def _marker(self, kind: Kind, first: int, *, known: int = 0) -> Callable[[int, str], None]:
        """Return a callback for each part of `Prompt.tokens`: it notes the end of the opening, and marks the log.

        first, known: as for `SessionHistory.marker`
        """
        state = self._state
        noted = None if state.history is None else state.history.marker(kind, state.n_past, first, known=known)

        def mark(n_before: int, role: str) -> None:
            if role not in OPENING:
                state.note_opened(first + n_before)
            if noted is not None:
                noted(n_before, role)

        return mark

    def _to_their_end(self, tokens: Iterable[int], kind: Kind) -> Iterator[int]:
        """Yield the tokens of a prompt. Their end is noted before the last of them is fed."""
        state, afterwards = self._state, STATES[kind][1]
        first = n = state.n_past
        for token in tokens:
            n += 1
            yield token
        state.end_prompt(n)
        if state.history is not None and afterwards != "open":
            note = state.history.log.announce if n > first else state.history.log.mark
            note(n, "assistant", afterwards)
