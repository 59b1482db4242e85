"""One conversation: prompts in, text out, piece by piece, within the runtime's cells."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .errors import CeilingExceededError, ConfigError, InputError, SessionError
from .sampler import Sampler, Sampling
from .stats import Stats, snapshot
from .text import Prompt
from .turns import Turns

if TYPE_CHECKING:
    from .runtime import Runtime


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the reading of a prompt is: tokens read of all, and cells used per head of the budget."""

    tokens_done: int
    tokens_total: int
    cells_used: int
    budget_cells: int


ProgressCallback = Callable[[Progress], None]


class Session:
    """A conversation over a runtime; `Runtime.session` makes one. It is closed by `close`, `with`, or its runtime.

    Replies are generators of text pieces: they run while they are iterated, one at a time, and leave `stats` when
    they end, however they end. `cancel` may be called from any thread; a cancelled reply ends quietly with
    `stats.finish_reason == "cancelled"`, and the session goes on from what it has read and said.
    """

    def __init__(self, runtime: Runtime, system: str | None) -> None:
        self._runtime: Runtime | None = runtime
        self._turns = Turns(runtime.model, system)
        self._pending: list[int] = []  # said, but not fed yet
        self._cancelled = threading.Event()
        self._running = threading.Lock()
        self.stats = Stats()
        if system is not None:
            self._pin_system()

    # ---- what users call ----

    def chat(
        self,
        text: str,
        *,
        files: Sequence[str | os.PathLike[str]] = (),
        focus: bool | None = None,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        progress: ProgressCallback | None = None,
    ) -> Iterator[str]:
        """Answer one turn, `files` before `text`; yields pieces of the reply.

        focus: keep what matters to `text` while reading; None = where there are files, and the runtime has room for it
        max_tokens: None = until the model ends its reply, or its trained context is full
        Raises ConfigError for focus in a runtime opened with focus=False, and InputError for an empty text, a file that
        is not text, or a prompt beyond the trained context: before anything of it is read; CeilingExceededError
        between two blocks where the process went over its ceiling: the session goes on from what was read and said.
        """
        if not text.strip():
            raise InputError("the text is empty; write something to answer")
        sources: list[str | os.PathLike[str]] = []
        for path in files:
            sources += [Path(path), "\n\n"]
        able = self._open().options.focus
        if focus and not able:
            raise ConfigError("focus=True needs a runtime opened with focus=True, which has cells for the probe")
        probe = text if (able and bool(files) if focus is None else focus) else None
        return self._start(
            lambda: self._turns.turn([*sources, text]), "assistant", max_tokens, sampling, progress, probe
        )

    def ask(
        self,
        question: str,
        files: Sequence[str | os.PathLike[str]] = (),
        *,
        focus: bool | None = None,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        progress: ProgressCallback | None = None,
    ) -> Iterator[str]:
        """Answer a question about text files of any length; a chat turn that reads them before the question."""
        return self.chat(
            question, files=files, focus=focus, max_tokens=max_tokens, sampling=sampling, progress=progress
        )

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        sampling: Sampling | None = None,
        progress: ProgressCallback | None = None,
    ) -> Iterator[str]:
        """Continue a text as it stands, without a chat template. A session is for chat or for this, not both."""
        if not prompt:
            raise InputError("the prompt is empty; write something to continue")
        return self._start(lambda: self._turns.text(prompt), "text", max_tokens, sampling, progress)

    def cancel(self) -> None:
        """End the running reply at the next block or token; from any thread. No reply running: nothing happens."""
        self._cancelled.set()

    def close(self) -> None:
        """End the session; its runtime may open another."""
        self._cancelled.set()
        self._runtime = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def n_past(self) -> int:
        """Tokens read and said so far."""
        return self._open().controller.cache.n_past

    @property
    def n_cells(self) -> int:
        """Cells used per head."""
        return self._open().controller.cache.n_cells

    def kept_positions(self, layer: int, head: int) -> npt.NDArray[np.int32]:
        """True positions of the tokens that one (layer, KV head) still holds, (n_cells,) ascending."""
        return self._open().controller.cache.positions(layer, head)

    # ---- the runtime ----

    def _open(self) -> Runtime:
        if self._runtime is None or self._runtime.closed:
            raise SessionError("this session is closed; open another with Runtime.session()")
        return self._runtime

    def _pin_system(self) -> None:
        """Protect the system message, and refuse one that leaves no room."""
        runtime = self._open()
        n_pinned = self._turns.opening().count()
        runtime.options.check_budget(runtime.plan.budget_cells, n_pinned)
        runtime.controller.pinned = ((0, n_pinned),)

    # ---- the reply ----

    def _start(
        self,
        prompt: Callable[[], Prompt],
        turn: str,
        max_tokens: int | None,
        sampling: Sampling | None,
        progress: ProgressCallback | None,
        probe: str | None = None,
    ) -> Iterator[str]:
        if max_tokens is not None and max_tokens < 1:
            raise ConfigError(f"max_tokens={max_tokens} is not possible; give at least 1, or None")
        self._open()
        return self._reply(prompt, turn, max_tokens, sampling or Sampling(), progress, probe)

    def _reply(
        self,
        make_prompt: Callable[[], Prompt],
        turn: str,
        max_tokens: int | None,
        sampling: Sampling,
        progress: ProgressCallback | None,
        probe: str | None,
    ) -> Generator[str, None, None]:
        if not self._running.acquire(blocking=False):
            raise SessionError("this session is already answering; wait for the reply or cancel it")
        runtime = self._runtime_or_release()
        sampler = Sampler(sampling)
        stats = self.stats = Stats(budget_cells=runtime.plan.budget_cells)
        before = snapshot(runtime.controller.work)
        try:
            self._cancelled.clear()
            prompt = make_prompt()
            stats.prompt_tokens = prompt.count() + len(self._pending)
            self._check_length(stats.prompt_tokens)
            runtime.controller.positions.expect(stats.prompt_tokens)
            stats.finish_reason = "closed"  # unless something better is known
            fits = self.n_cells + stats.prompt_tokens <= runtime.plan.budget_cells
            tokens = self._turns.probe(probe, runtime.options.probe_tokens) if probe and not fits else []
            if self._read(prompt, turn, stats, progress, tokens):
                yield from runtime.model.text(self._say(max_tokens, sampler, stats))
        finally:
            stats.finish(runtime.controller, before)
            sampler.close()
            self._running.release()

    def _runtime_or_release(self) -> Runtime:
        try:
            return self._open()
        except SessionError:
            self._running.release()
            raise

    def _check_length(self, n_tokens: int) -> None:
        positions = self._open().controller.positions
        total = self.n_past + n_tokens
        if positions.limit is not None and total > positions.limit:
            raise InputError(
                f"the prompt ends at token {total}, but the model was trained on {positions.limit}, and "
                f"{positions.obstacle}, give a shorter text, or allow_beyond_trained=True (--allow-beyond-trained) to "
                "read on all the same"
            )

    def _read(
        self, prompt: Prompt, turn: str, stats: Stats, progress: ProgressCallback | None, probe: Sequence[int]
    ) -> bool:
        """Read the prompt; returns whether the reply may begin."""
        runtime = self._open()
        controller = runtime.controller
        exceeded: CeilingExceededError | None = None
        tokens = _chained(self._pending, prompt.tokens())
        started = time.perf_counter()
        done = 0

        def after_block(n_tokens: int) -> bool:
            nonlocal done, exceeded
            done += n_tokens
            if progress is not None:
                progress(Progress(done, stats.prompt_tokens, self.n_cells, controller.budget))
            exceeded = runtime.guard.check()
            return exceeded is None and not self._cancelled.is_set()

        self._pending = []
        self._turns.state = "text" if turn == "text" else "user"
        try:
            complete = controller.read(tokens, after_block, probe)
        finally:
            stats.prefill_s = time.perf_counter() - started
            stats.read_tokens = done
        if complete:
            self._turns.state = turn
        if exceeded is not None:
            stats.finish_reason = "ceiling"
            raise exceeded
        if self._cancelled.is_set():
            stats.finish_reason = "cancelled"
            return False
        return True

    def _say(self, max_tokens: int | None, sampler: Sampler, stats: Stats) -> Iterator[int]:
        """Sample and feed tokens until the reply ends; yields those that belong to it."""
        runtime = self._open()
        limit = runtime.controller.positions.limit
        started = time.perf_counter()
        while True:
            token = sampler.sample(runtime.context)
            if runtime.model.is_end(token):
                stats.finish_reason = "end"
                return
            stats.generated_tokens += 1
            if stats.generated_tokens == 1:
                stats.ttft_s = stats.prefill_s + time.perf_counter() - started
            self._pending = [token]
            yield token
            stats.decode_s = time.perf_counter() - started
            if stats.generated_tokens == max_tokens:
                stats.finish_reason = "length"
                return
            if limit is not None and self.n_past + 1 >= limit:
                stats.finish_reason = "context"
                return
            if self._cancelled.is_set():
                stats.finish_reason = "cancelled"
                return
            runtime.controller.step(token)
            self._pending = []
            exceeded = runtime.guard.check() if stats.generated_tokens % runtime.options.block == 0 else None
            if exceeded is not None:
                stats.finish_reason = "ceiling"
                raise exceeded


def _chained(first: list[int], rest: Iterable[int]) -> Iterator[int]:
    yield from first
    yield from rest
