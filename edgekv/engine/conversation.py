"""One conversation in this process: reads prompts and says replies within the engine's cells."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from edgekv.errors import CeilingExceededError, InputError, SessionError
from edgekv.prompt.text import Prompt
from edgekv.prompt.turns import STATES, Kind, Turns

from .endings import Circles, StopTexts
from .loaded import Loaded
from .reply import Progress, ProgressCallback, Wanted
from .sampler import Sampler, SamplerState
from .snapshot import Snapshot
from .stats import Stats
from .tenant import Tenant


class LocalConversation:
    """A `Conversation` over an engine of this process; `LocalEngine.converse` makes one."""

    def __init__(self, engine: Loaded, system: str | None) -> None:
        self.stats = Stats()
        self.cancelled = threading.Event()
        self._engine = engine
        self._system = system
        self._turns = Turns(engine.model, system)
        self._pending: list[int] = []  # said, but not fed yet
        self._sampler: SamplerState | None = None  # where the last reply left it
        self.tenant = Tenant()
        if system is not None:
            self._pin_system()

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

    def snapshot(self) -> Snapshot:
        """All that it has read and said. Raises CeilingError where that has no room."""
        engine = self._at_cells()
        self.check_room(engine.controller.cache.snapshot_bytes)
        state, pending = self._turns.state, tuple(self._pending)
        return Snapshot(engine.mark, self._system, state, pending, self._sampler, engine.controller.snapshot())

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot. Raises SessionError for one of another runtime or system message."""
        engine = self._open()
        if (snapshot.runtime, snapshot.system) != (engine.mark, self._system):
            raise SessionError(
                "the snapshot is of another runtime, or of a session with another system message; restore it where it "
                "was taken, or in a session of that runtime with that message"
            )
        self._at_cells()
        engine.controller.restore(snapshot.controller)
        self._turns.state = snapshot.turns
        self._pending = list(snapshot.pending)
        self._sampler = snapshot.sampler

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

    def reply(self, wanted: Wanted, progress: ProgressCallback | None) -> Generator[str, None, None]:
        """Read the prompt, then say token by token."""
        engine = self._open()
        stats = self.stats = Stats(budget_cells=engine.plan.budget_cells)
        before = replace(engine.cells.note(self.tenant).work)
        try:
            self._at_cells()
            prompt = self._turns.prompt(wanted.kind, wanted.content, wanted.instruction)
            stats.prompt_tokens = prompt.count() + len(self._pending)
            self._check_length(stats.prompt_tokens)
            engine.controller.positions.expect(stats.prompt_tokens)
            stats.finish_reason = "closed"  # unless something better is known
            fits = self.n_cells + stats.prompt_tokens <= engine.plan.budget_cells
            question = None if fits else wanted.question
            probe = [] if question is None else self._turns.probe(question, engine.options.probe_tokens)
            if not self._read(prompt, wanted.kind, stats, progress, probe):
                return
            if wanted.kind == "read":
                stats.finish_reason = "read"
            else:
                with closing(self._say(wanted, stats)) as tokens:
                    yield from _until_stop(engine.model.text(tokens), wanted.stop, stats)
        finally:
            stats.finish(engine.cells.note(self.tenant), before)

    def _open(self) -> Loaded:
        if self._engine.closed:
            raise SessionError("this session is closed; open another with Runtime.session()")
        return self._engine

    def _at_cells(self) -> Loaded:
        """The engine, with this conversation in its cells. Raises RestingError and DroppedError."""
        engine = self._open()
        engine.cells.take(self.tenant)
        return engine

    def _pin_system(self) -> None:
        """Protect the system message, and refuse one that leaves no room."""
        engine = self._open()
        n_pinned = self._turns.opening().count()
        engine.options.check_budget(engine.plan.budget_cells, n_pinned)
        self.tenant.pinned = ((0, n_pinned),)

    def _check_length(self, n_tokens: int) -> None:
        positions = self._open().controller.positions
        total = self.n_past + n_tokens
        if positions.limit is not None and total > positions.limit:
            raise InputError(
                f"the prompt ends at token {total}, but the model was trained on {positions.limit}, and "
                f"{positions.obstacle}, give a shorter text, or allow_beyond_trained=True to read on all the same"
            )

    def _read(
        self, prompt: Prompt, kind: Kind, stats: Stats, progress: ProgressCallback | None, probe: Sequence[int]
    ) -> bool:
        """Read the prompt; returns whether the reply may begin."""
        engine = self._open()
        controller = engine.controller
        exceeded: CeilingExceededError | None = None
        tokens = _chained(self._pending, prompt.tokens())
        started = time.perf_counter()
        done = 0

        def after_ubatch(n_tokens: int) -> bool:
            nonlocal done, exceeded
            done += n_tokens
            if progress is not None:
                progress(Progress(done, stats.prompt_tokens, self.n_cells, controller.budget))
            exceeded = engine.guard.check()
            return exceeded is None and not self.cancelled.is_set()

        if self.n_cells + len(self._pending) + stats.prompt_tokens <= controller.budget:
            probe = ()  # no cell has to go
        self._pending = []
        self._turns.state, afterwards = STATES[kind]
        try:
            complete = controller.read(tokens, after_ubatch, probe, want_logits=kind != "read")
        finally:
            stats.prefill_s = time.perf_counter() - started
            stats.read_tokens = done
        if complete:
            self._turns.state = afterwards
        if exceeded is not None:
            stats.finish_reason = "ceiling"
            raise exceeded
        if self.cancelled.is_set():
            stats.finish_reason = "cancelled"
            return False
        return True

    def _say(self, wanted: Wanted, stats: Stats) -> Generator[int, None, None]:
        """Say tokens. The sampler starts in the state that the last reply left; its own is kept for the next."""
        with closing(Sampler(wanted.sampling, self._sampler)) as sampler:
            try:
                yield from self._sampled(wanted, sampler, stats)
            finally:
                self._sampler = sampler.state(ended=stats.finish_reason == "end")

    def _sampled(self, wanted: Wanted, sampler: Sampler, stats: Stats) -> Iterator[int]:
        """Sample and feed tokens until the reply ends; yields those that belong to it."""
        engine = self._open()
        limit = engine.controller.positions.limit
        circles = Circles()
        started = time.perf_counter()
        while True:
            token = sampler.sample(engine.context, engine.controller.logits_row)
            if stats.generated_tokens == 0:
                stats.ttft_s = stats.prefill_s + time.perf_counter() - started
            if engine.model.is_end(token):
                stats.finish_reason = "end"
                return
            stats.generated_tokens += 1
            self._pending = [token]
            yield token
            stats.decode_s = time.perf_counter() - started
            if circles.closed_by(token) and not wanted.allow_loops:
                stats.finish_reason = "loop"
                return
            if stats.generated_tokens == wanted.max_tokens:
                stats.finish_reason = "length"
                return
            if limit is not None and self.n_past + 1 >= limit:
                stats.finish_reason = "context"
                return
            if self.cancelled.is_set():
                stats.finish_reason = "cancelled"
                return
            self._at_cells().controller.step(token, drafts=True)  # others may have had them since the yield
            self._pending = []
            exceeded = engine.guard.check() if stats.generated_tokens % engine.options.block == 0 else None
            if exceeded is not None:
                stats.finish_reason = "ceiling"
                raise exceeded


def _until_stop(pieces: Iterable[str], stops: Sequence[str], stats: Stats) -> Iterator[str]:
    """The pieces of a reply up to a stop text. A piece that may be the beginning of one is held back."""
    text = StopTexts(stops)
    try:
        for piece in pieces:
            yield text.push(piece)
            if text.found:
                stats.finish_reason = "stop"
                return
    except CeilingExceededError:
        yield text.rest()
        raise
    yield text.rest()


def _chained(first: list[int], rest: Iterable[int]) -> Iterator[int]:
    yield from first
    yield from rest
