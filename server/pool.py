"""The sessions that jobs go on with: clients resend whole conversations, of which a session has read the beginning."""

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
from edgekv.engine.history import History
from edgekv.engine.stats import Stats
from edgekv.engine.thoughts import opens_thoughts

from .job import Ended, Event, Job, Reading, Reason, ToolCall, Usage
from .jobs import Stop
from .reasoning import Reasoning
from .shades import shades_of

log = logging.getLogger("edgekv.server")

# of a reply that has ended, by `Stats.finish_reason`
REASONS: dict[str, Reason] = {
    "end": "stop",
    "stop": "stop",
    "length": "length",
    "context": "length",
    "loop": "loop",
    "cancelled": "cancelled",
}
PINNED_SHARE = 4  # a system message of more than this part of the budget is read like any other text, and evicted
TEMPLATE_TOKENS = 32  # that a chat template puts around one, at most


@dataclass(slots=True, eq=False)
class Kept:
    """A session that is kept. n_jobs: answered with it; path: where it is saved"""

    session: edgekv.Session
    path: Path | None = None
    n_jobs: int = 0


class Pool:
    """Answers jobs with the sessions of one runtime at a time. For one thread at a time, but for what only looks.

    open_runtime: opens the runtime, and another one where the process of the first has died
    folder: where sessions are saved; None = nowhere. Those of an isolated runtime are saved after every reply, so that
        they outlive its process; others when the pool is closed
    rest_dir: where sessions that are not used rest, in their logs; None = the folder that TMPDIR names
    """

    def __init__(
        self,
        open_runtime: Callable[[], edgekv.Runtime],
        *,
        max_sessions: int,
        folder: Path | None = None,
        rest_dir: Path | None = None,
    ) -> None:
        self._open_runtime = open_runtime
        self._max_sessions = max_sessions
        self._folder = folder
        self._log: bool | Path = True if rest_dir is None else rest_dir
        self._kept: list[Kept] = []  # the least recently used one first
        self._numbers = itertools.count(1)
        self.n_restarts = 0
        self.runtime = open_runtime()
        self._begins_thinking = opens_thoughts(self.runtime.reply_opening())
        self._load()

    @property
    def n_sessions(self) -> int:
        """Sessions that are kept."""
        return len(self._kept)

    def close(self) -> None:
        """Save all sessions, and free the model."""
        with suppress(edgekv.WorkerError):  # it has died, and what was saved before is there
            for kept in self._kept:
                self._save(kept)
        self.runtime.close()

    def answer(self, job: Job, emit: Callable[[Event], None], stop: Stop) -> None:
        """Make the reply to a job; calls `emit` with its events. Raises Failure and EdgeKVError."""
        if self.runtime.closed:  # it could not be opened again
            self._open()
        try:
            self._answer(job, emit, stop)
        except edgekv.WorkerError:
            self._restart()
            raise

    def _answer(self, job: Job, emit: Callable[[Event], None], stop: Stop) -> None:
        history: History = job.messages if job.prompt is None else job.prompt
        while not stop:
            kept = self._choose(history, job.tools)
            try:
                stats, n_thought = self._said(kept.session, job, history, emit, stop)
            except edgekv.DroppedError:
                self._end(kept)
            except edgekv.RestingError:
                if not self._make_room(kept):
                    raise
            else:
                kept.n_jobs += 1
                shades = shades_of(kept.session) if job.shades and not stop else None
                emit(Ended(reason_of(stats), self._usage(stats, n_thought), stats.stop_text or None, shades))
                if self.runtime.options.isolated:
                    self._save(kept)
                return
            finally:
                if not kept.session.closed and kept.session.n_past == 0:
                    self._end(kept)  # it was refused, or cancelled early

    def _said(
        self, session: edgekv.Session, job: Job, history: History, emit: Callable[[Event], None], stop: Stop
    ) -> tuple[Stats, int]:
        """Have a session answer a job; returns the figures of the reply, and its tokens that were thought."""

        def reading(progress: edgekv.Progress) -> None:
            emit(Reading(progress.tokens_done, progress.tokens_total))
            if stop:
                session.cancel()

        pieces = session.continue_from(
            history,
            focus=job.focus if job.prompt is None and self.runtime.options.focus else False,
            on_overflow=job.on_overflow,
            max_tokens=job.max_tokens,
            stop=job.stop,
            sampling=job.sampling,
            json_schema=job.shape,
            logprobs=job.n_logprobs,
            tools=job.tools,
            tool_choice=job.tool_choice,
            parallel_tool_calls=job.parallel_tool_calls,
            progress=reading,
        )
        is_plain = job.prompt is not None or job.shape is not None  # what follows a schema has no room for thoughts
        reasoning = Reasoning(begun=None if is_plain else self._begins_thinking)
        with stop.calls(session.cancel):
            for piece in reasoning.told_apart(pieces):
                emit(piece)
        for call in session.stats.tool_calls:
            emit(ToolCall(f"call_{secrets.token_hex(12)}", call.name, call.arguments))
        return session.stats, reasoning.n_pieces

    def _choose(self, history: History, tools: Sequence[Mapping[str, Any]]) -> Kept:
        """The session that has read most of a history, unless it would lose most of what it has; or a new one."""
        system = self._pinned(history)
        fitting = [kept for kept in self._kept if kept.session.system == system]
        seen = {kept: kept.session.seen(history, tools=tools) for kept in fitting}
        kept = max(fitting, key=lambda kept: seen[kept], default=None)
        if kept is None or 2 * seen[kept] < kept.session.n_past:
            while len(self._kept) >= self._max_sessions and self._make_room():
                pass
            kept = Kept(self.runtime.session(system, log=self._log), self._new_path())
        else:
            self._kept.remove(kept)
        self._kept.append(kept)
        return kept

    def _pinned(self, history: History) -> str | None:
        """The system message of a history, if it is short enough never to be evicted."""
        first = None if isinstance(history, (str, Path)) or not len(history) else history[0]
        text = first["content"] if isinstance(first, Mapping) and first["role"] == "system" else None
        if not isinstance(text, str) or not text:
            return None
        options, budget = self.runtime.options, self.runtime.plan.budget_cells
        room = budget - options.sinks - options.recent_cells(budget)
        n_tokens = len(self.runtime.tokenize(text)) + TEMPLATE_TOKENS
        return text if PINNED_SHARE * n_tokens <= room else None

    def _make_room(self, beside: Kept | None = None) -> bool:
        """End a session that is least missed: one that answered a single job, such as a title, before all others."""
        others = [kept for kept in self._kept if kept is not beside]
        if not others:
            return False
        self._end(min(others, key=lambda kept: kept.n_jobs > 1))
        return True

    def _end(self, kept: Kept) -> None:
        self._kept.remove(kept)
        kept.session.close()
        if kept.path is not None:
            kept.path.unlink(missing_ok=True)

    def _restart(self) -> None:
        """Open another runtime in place of one whose process has died."""
        self._kept.clear()
        self.runtime.close()
        self.n_restarts += 1
        with suppress(edgekv.EdgeKVError):  # the next job tries again, and says why it fails
            self._open()

    def _open(self) -> None:
        """Open another runtime, and go on with what was saved. What fails is no fault of a job."""
        try:
            self.runtime = self._open_runtime()
        except (edgekv.ConfigError, edgekv.InputError, edgekv.ModelError) as error:
            raise edgekv.EdgeKVError(f"the model cannot be opened again: {error}") from error
        self._load()

    def _load(self) -> None:
        """Go on with the sessions of the folder, the newest ones."""
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
                self._kept.append(Kept(self.runtime.load_session(path), path, n_jobs=2))
            except edgekv.EdgeKVError as error:
                log.warning("%s is not gone on with: %s", path, error)

    def _save(self, kept: Kept) -> None:
        """Save a session, if it has something to save and a place. Raises WorkerError."""
        if kept.path is None or kept.session.n_past == 0:
            return
        try:
            kept.session.save(kept.path)
        except edgekv.WorkerError:
            raise
        except edgekv.EdgeKVError as error:
            log.warning("%s is not saved: %s", kept.path, error)

    def _new_path(self) -> Path | None:
        """A path that nothing has."""
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
    """Why a reply ended. One that was cut after a call is cut first of all: it might have had more of them."""
    reason = REASONS[stats.finish_reason]
    return "tool_calls" if reason == "stop" and stats.tool_calls else reason
