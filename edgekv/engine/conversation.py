"""One conversation in this process: reads prompts and says replies within the engine's cells."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from edgekv.errors import CeilingError, ConfigError, GrammarError, PromptLengthError, SessionError
from edgekv.prompt.turns import BEGINNINGS, HISTORIES, NO_PROBE, STATES, Kind, Probe, Turns
from edgekv.store.log import LogCopy, Turn

from .history import prompt_of
from .loaded import Loaded
from .past import Past
from .reading import Reading
from .reply import ProgressCallback, Rewinding, Wanted
from .session_file import log_sections, save_session
from .shades import Holders
from .snapshot import ELSEWHERE, ControllerSnapshot, Snapshot
from .speaker import Speaker
from .stats import Stats
from .tenant import Tenant

if TYPE_CHECKING:
    from edgekv.grammar.masks import Matcher


class LocalConversation:
    """A `Conversation` over an engine of this process; `LocalEngine` makes one.

    past: its log and checkpoints; None = it keeps none
    begun: the rest of a session whose cells the engine holds, as those of `tenant`; None = nothing was read yet
    """

    def __init__(
        self,
        engine: Loaded,
        system: str | None,
        past: Past | None = None,
        *,
        begun: Snapshot | None = None,
        tenant: Tenant | None = None,
    ) -> None:
        self.stats = Stats()
        self.cancelled = threading.Event()
        self._engine = engine
        self._system = system
        self._turns = Turns(engine.model, system)
        self._speaker = Speaker(self._at_cells, self.cancelled)
        self._past = past
        self.tenant = Tenant() if tenant is None else tenant
        self.tenant.release = self._let_past_go
        self.tenant.filed = self._filed
        if begun is not None:
            self._take(begun)
            self._at_cells()
            self._remember()
        elif system is not None:
            self._pin_system()

    @property
    def system(self) -> str | None:
        """The message that it never evicts, if it has one."""
        return self._system

    @property
    def n_past(self) -> int:
        """Tokens read and said so far."""
        return self._open().cells.figures(self.tenant)[0]

    @property
    def n_cells(self) -> int:
        """Cells used per head."""
        return self._open().cells.figures(self.tenant)[1]

    @property
    def n_exceeded(self) -> int:
        """How often the process was found over its ceiling."""
        return self._open().guard.n_exceeded

    def kept_positions(self, layer: int, head: int) -> npt.NDArray[np.int32]:
        """True positions that one (layer, KV head) still holds, (n_cells,) ascending."""
        return self._at_cells().controller.cache.positions(layer, head)

    def budgets(self) -> list[list[int]]:
        """Cells that the last eviction left, per layer and head; 0 before the first one."""
        return self._at_cells().controller.cache.budgets()

    def holders(self) -> Holders:
        """How many heads hold each token."""
        cache = self._at_cells().controller.cache
        heads = [(layer, head) for layer, budgets in enumerate(cache.budgets()) for head in range(len(budgets))]
        return Holders.of(cache.positions(layer, head) for layer, head in heads)

    def snapshot(self) -> Snapshot:
        """All that it has read and said. Raises CeilingError where that has no room."""
        engine, past = self._at_cells(), self._past
        self.check_room(engine.controller.cache.snapshot_bytes + (0 if past is None else past.log.nbytes))
        return self._noted(engine.controller.snapshot(), None if past is None else past.log.copy())

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot. Raises SessionError for one of another runtime or system message, or without a log."""
        engine = self._open()
        if (snapshot.runtime, snapshot.system) != (engine.mark, self._system):
            raise SessionError(
                "the snapshot is of another runtime, or of a session with another system message; restore it where it "
                "was taken, or in a session of that runtime with that message"
            )
        self._at_cells()
        if self._past is None:
            engine.controller.restore(snapshot.controller)
        else:
            self._past = self._past.restored(snapshot, engine.controller)
        self._take(snapshot)
        self._remember()

    def save(self, path: Path) -> None:
        """Write all of it to a file. Raises SessionFileError; what had that name before is then untouched."""
        engine, past = self._at_cells(), self._past
        further = [] if past is None else log_sections(past.log)
        save_session(path, engine, self._noted(engine.controller.noted(ELSEWHERE)), further)

    def turns(self, first: int, n: int) -> list[Turn]:
        """At most n turns of the log from turn `first` on. Raises SessionError where there is no log."""
        return list(itertools.islice(self._kept().log.turns(len(self._speaker.pending)), first, first + n))

    def pieces(self, start: int, stop: int, control: bool) -> list[bytes]:
        """What each token in [start, stop) of the log stands for. control: with the names of control tokens"""
        model, tokens = self._open().model, self._kept().tokens(start, stop, self._speaker.pending)
        return [model.piece(token, special=control) for token in tokens]

    @property
    def n_logged(self) -> int:
        """Tokens of the log, and those that were said and not fed yet. Raises SessionError where there is no log."""
        return len(self._kept().log) + len(self._speaker.pending)

    def check_room(self, snapshot_bytes: int) -> None:
        """Raise CeilingError if holding a snapshot, or passing it to the host, takes the process over its ceiling."""
        engine = self._open()
        copies, remedy = 1, "lower the budget, or open the runtime with isolated=True, whose snapshots do not count"
        if engine.options.isolated:
            copies, remedy = 2, "or lower the budget"  # the cells, and the message that they travel in
        reserved = max(0, engine.plan.parts.resting - engine.cells.resting.memory_bytes)
        engine.guard.check_room(copies * snapshot_bytes, "the snapshot", remedy, reserved)

    def close(self) -> None:
        """Have it forgotten at the engine's next use."""
        self._engine.cells.leave(self.tenant)

    def reply(self, wanted: Wanted | Rewinding, progress: ProgressCallback | None) -> Generator[str, None, None]:
        """Read the prompt, then say token by token."""
        engine = self._open()
        stats = self.stats = Stats(budget_cells=engine.plan.budget_cells)
        before = replace(engine.cells.note(self.tenant).work)
        try:
            self._at_cells()
            if isinstance(wanted, Rewinding):
                self._rewind(wanted, stats, progress)
                return
            reader = None
            if wanted.tools is not None and wanted.tools.callable:
                from .calls import calling  # few replies need what this imports

                wanted, reader = calling(wanted, wanted.tools, engine.model)
            matcher = None if wanted.grammar is None else engine.matcher(wanted.grammar)
            if wanted.kind in HISTORIES:
                tokens, probe = self._history(wanted, stats)
            else:
                tokens, probe = self._turn(wanted, stats)
            if wanted.passes > 1 and probe.tokens:  # where all of it fits, a second pass finds the same
                answer = yield from self._first_pass(wanted, tokens, probe, matcher, stats, progress)
                if answer is None:
                    return
                matcher = None if wanted.grammar is None else engine.matcher(wanted.grammar)
                tokens, probe = self._turn(wanted, stats, answer)
            stats.finish_reason = "closed"  # unless something better is known
            if not self._read(tokens, wanted.kind, stats, progress, probe):
                return
            if wanted.kind in BEGINNINGS:
                stats.finish_reason = "read"
            else:
                yield from self._speaker.pieces(wanted, matcher, reader, stats)
        except (GrammarError, CeilingError):
            stats.finish_reason = "failed"
            raise
        finally:
            self._remember()
            stats.finish(engine.cells.note(self.tenant), before)

    def _open(self) -> Loaded:
        if self._engine.closed:
            raise SessionError("this session is closed; open another with Runtime.session()")
        return self._engine

    def _at_cells(self) -> Loaded:
        """The engine, with this conversation in its cells, which notes in its log what is fed.

        Raises RestingError and DroppedError.
        """
        engine = self._open()
        engine.cells.take(self.tenant)
        engine.controller.log = None if self._past is None else self._past.log
        return engine

    def _turn(self, wanted: Wanted, stats: Stats, answer: str = "") -> tuple[Iterator[int], Probe]:
        """The tokens to read for a turn, and the probe to read them with. Nothing is changed but `stats`.

        answer: of a first pass
        """
        engine, past = self._open(), self._past
        prompt = self._turns.prompt(wanted.kind, wanted.content, wanted.instruction)
        stats.prompt_tokens = prompt.count() + len(self._speaker.pending)
        engine.controller.positions.check_length(self.n_past + stats.prompt_tokens)
        fits = self.n_cells + stats.prompt_tokens <= engine.plan.budget_cells
        question = None if fits else wanted.question
        probe = NO_PROBE if question is None else self._turns.probe(question, engine.options.probe_tokens, answer)
        mark = None if past is None else past.marker(wanted.kind, self.n_past + len(self._speaker.pending))
        return itertools.chain(self._speaker.pending, prompt.tokens(mark)), probe

    def _first_pass(
        self,
        wanted: Wanted,
        tokens: Iterator[int],
        probe: Probe,
        matcher: Matcher | None,
        stats: Stats,
        progress: ProgressCallback | None,
    ) -> Generator[str, None, str | None]:
        """Read and answer, and go back; returns the answer, which nobody else hears. None = it was cancelled.

        It is as long as the next probe has room for. Raises CeilingError where a conversation that was begun cannot be
        kept meanwhile, and ConfigError where the question leaves no room; nothing was read then.
        """
        room = self._turns.room_for_answer(wanted.question or "", self._open().options.probe_tokens)
        if room < 1:
            n_tokens = self._open().options.probe_tokens
            raise ConfigError(
                f"passes=2 reads with the question and the first answer in mind, but the question fills the probe of "
                f"{n_tokens} tokens; ask a shorter one, or open the runtime with probe_tokens={2 * n_tokens}"
            )
        before = None if self.n_past == 0 else self.snapshot()
        started = time.perf_counter()
        stats.finish_reason = "closed"
        if not self._read(tokens, wanted.kind, stats, progress, probe):
            return None
        said: list[str] = []
        first = replace(wanted, max_tokens=min(room, wanted.max_tokens or room))
        for piece in self._speaker.pieces(first, matcher, None, stats):
            said.append(piece)
            yield ""
        if self.cancelled.is_set():
            stats.finish_reason = "cancelled"
            yield from said  # the conversation holds it
            return None
        if before is None:
            self._start_over()
        else:
            self.restore(before)
        stats.next_pass(time.perf_counter() - started)
        return "".join(said)

    def _history(self, wanted: Wanted, stats: Stats) -> tuple[Iterator[int], Probe]:
        """Go back to where a history leaves the log; returns the tokens to read from there, and the probe."""
        past, engine = self._kept(), self._open()
        plan = engine.plan
        prompt = prompt_of(wanted, engine.model, self._turns, past.replies(self._speaker.pending))
        n_common, n_tokens = past.log.common(prompt.tokens())
        engine.controller.positions.check_length(n_tokens)
        if wanted.on_overflow == "error" and n_tokens > plan.budget_cells:
            raise PromptLengthError(
                f"the prompt has {n_tokens} tokens, and the budget is {plan.budget_cells} cells; give a shorter one, "
                "or on_overflow='evict' to read it all the same",
                n_tokens=n_tokens,
                limit=plan.budget_cells,
            )
        if n_tokens == 0:
            prompt.count()  # says what is wrong
        n_seen = min(n_common, n_tokens - (wanted.kind not in BEGINNINGS))  # logits come from the last token
        self._go_back(n_seen)
        self._speaker.pending = []
        stats.reused_tokens = self.n_past
        stats.prompt_tokens = n_tokens - self.n_past
        # cells are chosen while more than a block is read
        evicts = self.n_cells + stats.prompt_tokens > plan.budget_cells and stats.prompt_tokens > plan.block
        question = wanted.question if evicts else None
        probe = NO_PROBE if question is None else self._turns.probe(question, engine.options.probe_tokens)
        return itertools.islice(prompt.tokens(past.marker(wanted.kind, known=n_common)), self.n_past, None), probe

    def seen(self, wanted: Wanted) -> int:
        """How many tokens of a history the log begins with. Raises what answering it would before anything is read."""
        past, model = self._kept(), self._open().model
        return past.log.beginning(prompt_of(wanted, model, self._turns, past.replies(self._speaker.pending)).tokens())

    def _rewind(self, wanted: Rewinding, stats: Stats, progress: ProgressCallback | None) -> None:
        """Go back to the newest checkpoint before, and read again from there."""
        past, n, drawn = self._kept(), wanted.n_tokens, self._speaker.sampler
        if n > self.n_past:
            raise ConfigError(
                f"n_tokens={n} is beyond the {self.n_past} tokens that the session has read and said; give fewer"
            )
        self._go_back(n)
        if wanted.other_draws and drawn is not None:
            newest = () if self._speaker.sampler is None else self._speaker.sampler.newest
            self._speaker.sampler = replace(drawn, newest=newest)
        stats.reused_tokens = self.n_past
        stats.prompt_tokens = n - self.n_past
        if self.n_past < n:
            try:
                self._read(past.log.tokens(self.n_past, n), "read", stats, progress)
            finally:
                self._turns.state = past.log.state_at(self.n_past)
        stats.finish_reason = stats.finish_reason or "read"

    def _go_back(self, n: int) -> None:
        """To the newest checkpoint of at most n tokens, where there are more. The log keeps n."""
        past = self._kept()
        if n >= self.n_past:
            return
        found = past.back_to(n, self._open().controller)
        if found is not None:
            self._take(found)
        else:
            self._forget()
        past.log.cut(n)

    def _start_over(self) -> None:
        """Go back to where nothing was read."""
        engine = self._at_cells()
        if self._past is not None:
            self._go_back(0)
        else:
            engine.controller.begin()
            self._forget()

    def _forget(self) -> None:
        """Note that nothing was read or said."""
        self._turns.state, self._speaker.pending, self._speaker.sampler = "new", [], None

    def _kept(self) -> Past:
        """The log and the checkpoints. Raises SessionError where there are none."""
        if self._past is None:
            raise SessionError("this session keeps no log; open one with Runtime.session(log=True)")
        return self._past

    def _let_past_go(self) -> None:
        """Remove what it has on the disk."""
        if self._past is not None:
            self._past.close()
            self._past = None

    def _remember(self) -> None:
        """End the log with the last token that has cells, and keep a checkpoint; unless others have the cells."""
        past, engine = self._past, self._engine
        if past is not None and not engine.closed and engine.controller.log is past.log:
            past.note(self.n_past, self._state, lambda file: self._noted(engine.controller.filed(file)))

    @property
    def _state(self) -> tuple[object, ...]:
        """What it is beside its cells and its log."""
        return (self._turns.state, tuple(self._speaker.pending), self._speaker.sampler)

    def _filed(self) -> ControllerSnapshot | None:
        """The newest checkpoint, if it is of now: whoever has one rests in it, and takes no room."""
        return None if self._past is None else self._past.as_it_is(self.tenant.n_past, self._state)

    def _noted(self, controller: ControllerSnapshot, log: LogCopy | None = None) -> Snapshot:
        engine, pending = self._open(), tuple(self._speaker.pending)
        return Snapshot(engine.mark, self._system, self._turns.state, pending, self._speaker.sampler, controller, log)

    def _take(self, snapshot: Snapshot) -> None:
        self._turns.state = snapshot.turns
        self._speaker.pending = list(snapshot.pending)
        self._speaker.sampler = snapshot.sampler

    def _pin_system(self) -> None:
        """Protect the system message, and refuse one that leaves no room."""
        engine = self._open()
        n_pinned = self._turns.opening().count()
        engine.options.check_budget(engine.plan.budget_cells, n_pinned)
        self.tenant.pinned = ((0, n_pinned),)

    def _read(
        self,
        tokens: Iterable[int],
        kind: Kind,
        stats: Stats,
        progress: ProgressCallback | None,
        probe: Probe = NO_PROBE,
    ) -> bool:
        """Read the tokens of a prompt; returns whether the reply may begin."""
        reading = Reading(self._open(), self.cancelled, stats, progress)
        self._speaker.pending = []
        self._turns.state, afterwards = STATES[kind]
        if reading.read(tokens, probe, want_logits=kind not in BEGINNINGS):
            self._turns.state = afterwards
            if self._past is not None and afterwards != "open":
                self._past.log.mark(self.n_past, "assistant", afterwards)
        return reading.may_reply()
