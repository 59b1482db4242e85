"""One conversation in this process: reads prompts and generates replies within the engine's cells."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgekv.archive.stored_rows import archive_sections
from edgekv.cells.block_loop import BlockLoop
from edgekv.cells.feeds import Feeding
from edgekv.cells.loaded_model import LoadedModel
from edgekv.errors import CeilingError, GrammarError, SessionError
from edgekv.generation.generator import ReplyGenerator, after
from edgekv.generation.request import GenerationRequest, Logging, RewindRequest
from edgekv.generation.stats import Stats
from edgekv.generation.turn_state import Dialogue
from edgekv.prompt.turns import BEGINNINGS, HISTORIES
from edgekv.store.log import Turn
from edgekv.store.snapshot_file import Section

from .beginnings import BeginningKey
from .cache_slots import CacheSlots
from .coverage import Coverage
from .history_prompt import HistoryPrompt
from .kept_session import begin_keeping
from .prompt_reader import PromptReader
from .sequence_state import SequenceState
from .session_file import log_sections, save_session
from .session_history import SessionHistory
from .session_title import title_of
from .snapshot import Snapshot

if TYPE_CHECKING:
    from edgekv.grammar.masks import Matcher


class Conversation:
    """One conversation over a model of this process; `LocalEngine` makes one.

    All of it is for the thread of the loop, but any thread may read `system` and the properties `n_...`, except
    `n_logged`, as they were last noted.

    stored: histories that requests name by their numbers
    begun: the dialogue of a saved session whose cells `state` has; None = no token was read yet
    """

    def __init__(
        self,
        loaded: LoadedModel,
        slots: CacheSlots,
        state: SequenceState,
        system: str | None,
        *,
        stored: Mapping[int, HistoryPrompt],
        begun: Dialogue | None = None,
    ) -> None:
        self.cancelled = threading.Event()
        self.state = state
        self._loaded = loaded
        self._slots = slots
        self._system = system
        self._stored = stored
        if begun is not None:
            state.set(begun)
            self._swapped_in()
            self._remember()
        elif system is not None:
            self._prompts.pin_system()

    @cached_property
    def _prompts(self) -> PromptReader:
        return PromptReader(self._loaded, self.state, self._system, self._stored, self._slots, self.cancelled)

    @property
    def system(self) -> str | None:
        """The system message, which is never evicted; None = there is none."""
        return self._system

    @property
    def n_past(self) -> int:
        """Tokens read and generated so far."""
        self._open()
        return self.state.figures[0]

    @property
    def n_cells(self) -> int:
        """Cells used per head."""
        self._open()
        return self.state.figures[1]

    @property
    def n_recallable(self) -> int:
        """Tokens with archived rows and no cell, on average over heads, as of the end of the last call."""
        self._open()
        return self.state.n_recallable

    @property
    def n_exceeded(self) -> int:
        """Number of checks that found the process over its ceiling."""
        return self._open().guard.n_exceeded

    def kept_positions(self, layer: int, head: int) -> npt.NDArray[np.int32]:
        """True positions of the tokens that one (layer, KV head) still holds, (n,) ascending; a rest holds none."""
        return self._swapped_in().cache.token_positions(layer, head)

    def budgets(self) -> list[list[int]]:
        """Cells that the last eviction left, per layer and head; 0 before the first one."""
        return self._swapped_in().cache.budgets()

    def coverage(self) -> Coverage:
        """Return the coverage: the number of heads that hold each token."""
        cache = self._swapped_in().cache
        archived = (0, 0) if self.state.archive is None else self.state.archive.positions
        return Coverage.of((cache.token_positions(*at) for at in cache.heads), archived)

    def snapshot(self) -> Snapshot:
        """Copy the whole state. Raises CeilingError if the copy has no room."""
        block_loop, history = self._settled(), self.state.history
        self.check_room(block_loop.cache.snapshot_bytes + (0 if history is None else history.log.nbytes))
        log = None if history is None else history.log.copy()
        archive = None if self.state.archive is None else self.state.archive.mark(self.state.n_past)
        return Snapshot(self._loaded.mark, self._system, self.state.dialogue, block_loop.snapshot(), log, archive)

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot.

        Raises SessionError for one of another runtime or system message, or without a history.
        """
        loaded = self._open()
        if (snapshot.runtime, snapshot.system) != (loaded.mark, self._system):
            raise SessionError(
                "the snapshot is of another runtime, or of a session with another system message; restore it where it "
                "was taken, or in a session of that runtime with that message"
            )
        self._settled()
        self.state.restore(snapshot)
        self._remember()

    def settled_state(self) -> SequenceState:
        """Return the state, with the cells, and with cells, log and notes in agreement."""
        self._settled()
        self.state.note()
        return self.state

    def save(self, path: Path, archive: bool) -> None:
        """Write the whole state to a file, with the archive or without.

        Raises SessionFileError; an older file of that name is then untouched.
        """
        block_loop, history = self._settled(), self.state.history
        further: list[Section] = []
        title = ""
        if history is not None:
            further, title = log_sections(history.log), title_of(history.log, self._loaded.model)
        if archive and self.state.archive is not None:
            further += archive_sections(self.state.archive, block_loop.cache)
        save_session(path, self._loaded, block_loop, self._system, self.state.dialogue, further, title)

    def keep(self, path: Path) -> None:
        """Append the conversation to a folder from now on, as it grows. One that it was kept in stays as it is now.

        Raises SessionFileError if the folder cannot be made; SessionError without a history.
        """
        self._settled()
        self._kept()
        state, before = self.state, self.state.kept
        state.kept = begin_keeping(path, self._loaded, state, self._system)
        if before is not None:
            before.close()

    def turns(self, first: int, n: int) -> list[Turn]:
        """Return at most n turns of the log from turn `first` on. Raises SessionError if there is no log."""
        history, pending = self._kept()
        return list(itertools.islice(history.log.turns(len(pending)), first, first + n))

    def pieces(self, start: int, stop: int, control: bool) -> list[bytes]:
        """Return the bytes of each token in [start, stop) of the log. control: with the names of control tokens"""
        model, (history, pending) = self._open().model, self._kept()
        return [model.piece(token, special=control) for token in history.tokens(start, stop, pending)]

    @property
    def n_logged(self) -> int:
        """Tokens of the log, and generated tokens that are not fed yet. Raises SessionError if there is no log."""
        history, pending = self._kept()
        return len(history.log) + len(pending)

    def check_room(self, snapshot_bytes: int) -> None:
        """Raise CeilingError if holding a snapshot, or passing it to the host, takes the process over its ceiling."""
        loaded = self._open()
        remedies = [
            "lower the budget",
            *([] if loaded.options.isolated else ["open the runtime with isolated=True, whose snapshots do not count"]),
            "or keep the session in a file (Session.save), which needs no room",
        ]
        n_bytes = loaded.options.snapshot_copies * snapshot_bytes
        loaded.guard.check_room(n_bytes, "the snapshot", ", ".join(remedies), loaded.ledger.reserved_bytes)

    def close(self) -> None:
        """Free its state."""
        self._slots.release(self.state)

    def reply(self, request: GenerationRequest | RewindRequest, stats: Stats) -> Feeding[None]:
        """Read a prompt, and yield the text of each generated token, empty while a character is incomplete.

        Yields every `Feed`, too, and the `Progress` of reading. Between two pieces another conversation may have the
        cells. Once `cancelled` is set, it ends at the next block or token. At its end, whatever ends it, `stats` are
        final, and the conversation is in order if it has the cells. Raises InputError or SessionError before anything
        is read.
        """
        self._open()
        self.state.note()
        before = replace(self.state.work)
        try:
            yield from self._reply(request, stats)
        except (GrammarError, CeilingError):
            stats.finish_reason = "failed"
            raise
        finally:
            self._remember()
            n_past, n_cells = self.state.figures
            if self.state.archive is not None:
                archive = self.state.archive
                stats.archived_tokens, stats.archive_failure = archive.n_tokens, archive.failure
                stats.recallable_tokens = self.state.n_recallable
            if self.state.kept is not None:
                stats.keeping_failure = self.state.kept.failure
            peak = self._loaded.guard.peak_bytes
            stats.finish(self.state.work, before, tokens_seen=n_past, cells_used=n_cells, peak_bytes=peak)

    def _reply(self, request: GenerationRequest | RewindRequest, stats: Stats) -> Feeding[None]:
        loaded = self._open()
        self._swapped_in()
        self._remember()  # if others had the cells when the last reply ended, it has no checkpoint yet
        if isinstance(request, RewindRequest):
            yield from self._prompts.rewind(request, stats, self._kept()[0])
            return
        request.sampling.check(loaded.model.n_vocab)
        matcher: Matcher | None = None
        reader = None
        if request.tools is not None and request.tools.callable:
            from edgekv.generation.tool_calls import with_tool_calls  # few replies need what this imports

            request, matcher, reader = with_tool_calls(request, request.tools, loaded, stats)
        elif request.grammar is not None:
            matcher = loaded.matcher(request.grammar)
        pauses: Sequence[BeginningKey] = ()
        if request.kind in HISTORIES:
            if self.state.history is None:
                self._begin_log()
            tokens, probe, pauses = self._prompts.history_prompt(request, stats, self._kept()[0])
        else:
            tokens, probe = self._prompts.turn_prompt(request, stats)
        stats.finish_reason = "closed"  # unless another reason is noted below
        told = None
        if request.prompt_logprobs and request.logprobs is not None:
            from edgekv.generation.logprobs import PromptLogprobs  # few replies need it

            told = PromptLogprobs(loaded, self.state.block_loop, request.logprobs)
        observe = None if told is None else told.note
        if not (yield from self._prompts.read(tokens, request.kind, stats, probe, pauses=pauses, observe=observe)):
            return
        if request.kind in BEGINNINGS:
            stats.finish_reason = "read"
            return
        generator = ReplyGenerator(loaded, self._swapped_in, self.cancelled, self.state)
        pieces = generator.pieces(request, matcher, reader, stats)
        # others may feed between two pieces, so the first token is drawn before those of the prompt are given
        yield from pieces if told is None else after(told.pieces(), pieces)

    def _begin_log(self) -> None:
        """Keep a log, and forget what was read without one. Raises SessionFileError if the disk does not take it."""
        history = SessionHistory(Logging(), self._loaded.plan)
        self.state.go_back(0)
        self.state.history = history
        self.state.use_log()

    def _open(self) -> LoadedModel:
        if self._loaded.closed:
            raise SessionError("this session is closed; open another with Runtime.session()")
        return self._loaded

    def _swapped_in(self) -> BlockLoop:
        """Return a block loop, with this conversation loaded in its cells. Raises SwapError and SessionEvictedError."""
        self._open()
        self._slots.swap_in(self.state)
        return self.state.block_loop

    def _settled(self) -> BlockLoop:
        """Return a block loop, as `_swapped_in`, with cells, log and notes in agreement after any exception."""
        block_loop = self._swapped_in()
        self._settle()
        return block_loop

    def _settle(self) -> None:
        """Bring the state into agreement with the cells, which it has, and free what an interrupted switch left."""
        self.state.settle()
        self._slots.forget_copy(self.state)

    def common_prefix_length(self, request: GenerationRequest) -> int:
        """Return the length of the longest common prefix of a history and the log.

        Raises the errors that `reply` raises before it reads a token.
        """
        self._open()
        return self._prompts.common_prefix_length(request, *self._kept())

    def _kept(self) -> tuple[SessionHistory, tuple[int, ...]]:
        """Return the up-to-date log and checkpoints, and tokens that are generated, but not fed yet.

        Raises SessionError if there is no log.
        """
        history = self.state.history
        if history is None:
            raise SessionError(
                self.state.lost or "this session keeps no history; open one with Runtime.session(history=True)"
            )
        if self.state.is_loaded and not self.state.is_settled:
            self._settle()
        return history, self.state.pending

    def _remember(self) -> None:
        """End the log with the last token that has cells, and keep a checkpoint, if this conversation has the cells."""
        state, loaded = self.state, self._loaded
        if loaded.closed or sys.is_finalizing():  # nothing can be imported any more while the program ends
            return
        if state.is_loaded:
            self._settle()
            self._slots.note_use(state.block_loop)
            if state.history is not None:
                state.history.note(state.n_past, state.dialogue, state.block_loop)
            if state.kept is not None:
                state.block_loop.archive_fed()
            state.note()
            state.note_recallable()
        if state.kept is not None:
            state.kept.note(ends=True)
