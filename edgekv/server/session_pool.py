"""Sessions that requests continue: clients resend whole conversations, whose beginning a session has read already."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import edgekv
from edgekv.generation.reasoning import opens_reasoning
from edgekv.generation.stats import Stats
from edgekv.sessions.history import History

from .coverage_file import coverage_of
from .piece_splitter import PieceSplitter
from .request import Ended, Event, PromptProgress, Reason, ReplyRequest, ToolCall, Usage
from .scheduler import CancelFlag

log = logging.getLogger("edgekv.server")

# reasons for clients, by `Stats.finish_reason`
REASONS: dict[str, Reason] = {
    "end": "stop",
    "stop": "stop",
    "length": "length",
    "context": "length",
    "loop": "loop",
    "cancelled": "cancelled",
}
PINNED_SHARE = 4  # a system message of more than 1/4 of the budget is read like any other text, and evicted
TEMPLATE_TOKENS = 32  # tokens that a chat template puts around a system message, at most


@dataclass(slots=True, eq=False)
class PooledSession:
    """A session of the pool. n_answered: requests that it has answered; path: file for saving it"""

    session: edgekv.Session
    path: Path | None = None
    n_answered: int = 0


class SessionPool:
    """Answers requests with the sessions of one runtime. Only one thread at a time may change it.

    open_runtime: opens the runtime, and another one if the process of the first has died
    folder: for saved sessions; None = save none. Sessions of an isolated runtime are saved after every reply, so that
        they outlive its process; others are saved when the pool is closed
    swap_dir: for the logs of sessions, which are swapped out to them; None = the folder that TMPDIR names
    """

    def __init__(
        self,
        open_runtime: Callable[[], edgekv.Runtime],
        *,
        max_sessions: int,
        folder: Path | None = None,
        swap_dir: Path | None = None,
    ) -> None:
        self._open_runtime = open_runtime
        self._max_sessions = max_sessions
        self._folder = folder
        self._log: bool | Path = True if swap_dir is None else swap_dir
        self._pooled: list[PooledSession] = []  # the least recently used one first
        self._numbers = itertools.count(1)
        self.n_restarts = 0
        self.runtime = open_runtime()
        self._begins_thinking = opens_reasoning(self.runtime.reply_opening())
        self._load()

    @property
    def n_sessions(self) -> int:
        """The number of sessions that are kept."""
        return len(self._pooled)

    def close(self) -> None:
        """Save all sessions, and free the model."""
        with suppress(edgekv.WorkerError):  # the worker has died; earlier saves are on the disk
            for pooled in self._pooled:
                self._save(pooled)
        self.runtime.close()

    def answer(self, request: ReplyRequest, emit: Callable[[Event], None], stop: CancelFlag) -> None:
        """Answer a request; call `emit` with the events. Raises ApiError and EdgeKVError."""
        if self.runtime.closed:  # an earlier request could not open it again
            self._open()
        try:
            self._answer(request, emit, stop)
        except edgekv.WorkerError:
            self._restart()
            raise

    def _answer(self, request: ReplyRequest, emit: Callable[[Event], None], stop: CancelFlag) -> None:
        history: History = request.messages if request.prompt is None else request.prompt
        while not stop:
            pooled = self._choose(history, request.tools)
            try:
                stats, n_thought = self._generate(pooled.session, request, history, emit, stop)
            except edgekv.SessionEvictedError:
                self._end(pooled)
            except edgekv.SwapError:
                if not self._make_room(pooled):
                    raise
            else:
                pooled.n_answered += 1
                coverage = coverage_of(pooled.session) if request.coverage and not stop else None
                emit(Ended(reason_of(stats), self._usage(stats, n_thought), stats.stop_text or None, coverage))
                if self.runtime.options.isolated:
                    self._save(pooled)
                return
            finally:
                if not pooled.session.closed and pooled.session.n_past == 0:
                    self._end(pooled)  # the request was refused, or cancelled early

    def _generate(
        self,
        session: edgekv.Session,
        request: ReplyRequest,
        history: History,
        emit: Callable[[Event], None],
        stop: CancelFlag,
    ) -> tuple[Stats, int]:
        """Have a session answer a request; return the figures of the reply, and its tokens of reasoning."""

        def reading(progress: edgekv.Progress) -> None:
            emit(PromptProgress(progress.tokens_done, progress.tokens_total))
            if stop:
                session.cancel()

        pieces = session.continue_from(
            history,
            focus=request.focus if request.prompt is None and self.runtime.options.focus else False,
            on_overflow=request.on_overflow,
            max_tokens=request.max_tokens,
            stop=request.stop,
            sampling=request.sampling,
            json_schema=request.json_schema,
            logprobs=request.n_logprobs,
            tools=request.tools,
            tool_choice=request.tool_choice,
            parallel_tool_calls=request.parallel_tool_calls,
            progress=reading,
        )
        # a reply that fits a schema has no place for thoughts
        is_plain = request.prompt is not None or request.json_schema is not None
        splitter = PieceSplitter(begun=None if is_plain else self._begins_thinking)
        with stop.calls(session.cancel):
            for piece in splitter.events(pieces):
                emit(piece)
        for call in session.stats.tool_calls:
            emit(ToolCall(f"call_{secrets.token_hex(12)}", call.name, call.arguments))
        return session.stats, splitter.n_thoughts

    def _choose(self, history: History, tools: Sequence[Mapping[str, Any]]) -> PooledSession:
        """Return the session with the longest common prefix, if at least half of it is kept; otherwise a new one."""
        system = self._pinned(history)
        fitting = [pooled for pooled in self._pooled if pooled.session.system == system]
        seen = {pooled: pooled.session.common_prefix_length(history, tools=tools) for pooled in fitting}
        pooled = max(fitting, key=lambda pooled: seen[pooled], default=None)
        if pooled is None or 2 * seen[pooled] < pooled.session.n_past:
            while len(self._pooled) >= self._max_sessions and self._make_room():
                pass
            pooled = PooledSession(self.runtime.session(system, log=self._log), self._new_path())
        else:
            self._pooled.remove(pooled)
        self._pooled.append(pooled)
        return pooled

    def _pinned(self, history: History) -> str | None:
        """Return the system message of a history if it is short enough to be pinned, that is, never evicted."""
        first = None if isinstance(history, (str, Path)) or not len(history) else history[0]
        text = first["content"] if isinstance(first, Mapping) and first["role"] == "system" else None
        if not isinstance(text, str) or not text:
            return None
        options, budget = self.runtime.options, self.runtime.plan.budget_cells
        n_cells = budget - options.sinks - options.recent_cells(budget)
        n_tokens = len(self.runtime.tokenize(text)) + TEMPLATE_TOKENS
        return text if PINNED_SHARE * n_tokens <= n_cells else None

    def _make_room(self, beside: PooledSession | None = None) -> bool:
        """End the oldest session that answered a single request, such as a title; without one, the oldest of all."""
        others = [pooled for pooled in self._pooled if pooled is not beside]
        if not others:
            return False
        self._end(min(others, key=lambda pooled: pooled.n_answered > 1))
        return True

    def _end(self, pooled: PooledSession) -> None:
        self._pooled.remove(pooled)
        pooled.session.close()
        if pooled.path is not None:
            pooled.path.unlink(missing_ok=True)

    def _restart(self) -> None:
        """Open another runtime after the process of this one has died."""
        self._pooled.clear()
        self.runtime.close()
        self.n_restarts += 1
        with suppress(edgekv.EdgeKVError):  # the next request tries again, and says why it fails
            self._open()

    def _open(self) -> None:
        """Open another runtime, and load the saved sessions. An error here is not the fault of a request."""
        try:
            self.runtime = self._open_runtime()
        except (edgekv.ConfigError, edgekv.InputError, edgekv.ModelError) as error:
            raise edgekv.EdgeKVError(f"the model cannot be opened again: {error}") from error
        self._load()

    def _load(self) -> None:
        """Load the newest sessions of the folder."""
        if self._folder is None:
            return
        found: list[tuple[float, Path]] = []
        for path in self._folder.glob("*.session"):
            try:
                found.append((path.stat().st_mtime, path))
            except OSError as error:  # a link to nowhere, perhaps
                log.warning("%s is not gone on with: %s", path, error.strerror or error)
        for _, path in sorted(found)[-self._max_sessions :]:
            try:
                self._pooled.append(PooledSession(self.runtime.load_session(path), path, n_answered=2))
            except edgekv.EdgeKVError as error:
                log.warning("%s is not gone on with: %s", path, error)

    def _save(self, pooled: PooledSession) -> None:
        """Save a session, if it has cells and a path. Raises WorkerError."""
        if pooled.path is None or pooled.session.n_past == 0:
            return
        try:
            pooled.session.save(pooled.path)
        except edgekv.WorkerError:
            raise
        except edgekv.EdgeKVError as error:
            log.warning("%s is not saved: %s", pooled.path, error)

    def _new_path(self) -> Path | None:
        """Return a path that does not exist yet."""
        if self._folder is None:
            return None
        names = (self._folder / f"{number:06}.session" for number in self._numbers)
        return next(path for path in names if not path.exists())

    def _usage(self, stats: Stats, n_thought: int) -> Usage:
        plan = self.runtime.plan
        kept = min(stats.cells_used, stats.tokens_seen)
        return Usage(
            prompt_tokens=stats.reused_tokens + stats.prompt_tokens,
            cached_tokens=stats.reused_tokens,
            completion_tokens=stats.generated_tokens,
            reasoning_tokens=n_thought,
            seen=stats.tokens_seen,
            kept=kept,
            evicted=stats.tokens_seen - kept,
            evictions=stats.evictions,
            peak_bytes=stats.peak_rss_bytes,
            ceiling_bytes=plan.ceiling_bytes,
            budget=plan.budget_cells,
        )


def reason_of(stats: Stats) -> Reason:
    """Return the reason why a reply ended. A reply that was cut after a tool call counts as cut."""
    reason = REASONS[stats.finish_reason]
    return "tool_calls" if reason == "stop" and stats.tool_calls else reason
