"""One worker's part: it answers jobs over a model in a process of its own, and reads what they begin with once."""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass
from typing import Any

import edgekv
from edgekv.engine.history import History
from edgekv.errors import EdgeKVError, WorkerError
from edgekv.server.errors import ApiError, api_error_of
from edgekv.server.request import Ended, Event, PromptProgress, ReplyRequest
from edgekv.server.scheduler import CancelFlag
from edgekv.server.session_pool import PooledSession, SessionPool

MOST_DEATHS = 3  # of the process with the model, at one job


@dataclass(frozen=True)
class Setup:
    """A runtime for a worker. model: path of its file; options: arguments of `edgekv.Runtime`"""

    model: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Prefix:
    """What several jobs begin with, which is read before the first of them.

    key: what identifies it; tokens: int32 ids
    focus: the question that it is read with, where it does not fit; None = none
    """

    key: bytes
    tokens: array[int]
    focus: str | tuple[str, ...] | None


@dataclass(frozen=True)
class Task:
    """A job for a worker. beginning: None = it is read from its own first token"""

    reply_request: ReplyRequest
    prefix: Prefix | None


@dataclass(frozen=True)
class Outcome:
    """What came of a task.

    events: of the reply; none where there is none
    failure: why there is none: the arguments of `ApiError`
    died: the process with the model died of it, again and again; `error` says how
    begun: tokens of its beginning, where that was read for it
    peak_bytes: the most that the process with the model held until now
    """

    events: tuple[Event, ...] = ()
    error: dict[str, Any] | None = None
    died: bool = False
    prefix_tokens_read: int = 0
    peak_bytes: int = 0


def died(message: str) -> Outcome:
    """What came of a task that ended every process that was at it."""
    return Outcome(error={"status": 500, "code": "worker_died", "message": message}, died=True)


class LocalWorker:
    """Answers tasks one at a time, over a runtime that is opened for the first of them."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._pool: PrefixPool | None = None
        self._stop = CancelFlag()

    def answer(self, task: Task) -> Outcome:
        """What comes of a task. Where the process with the model dies, another one is started, and tries again.

        Raises EdgeKVError for what is no fault of the task.
        """
        if self._pool is None:
            self._pool = PrefixPool(self.setup)
        for _ in range(MOST_DEATHS):
            try:
                return self._pool.outcome(task, self._stop)
            except WorkerError as error:
                if self._stop:
                    raise
                message = str(error)
        return died(message)

    def cancel(self) -> None:
        """End what it is at, and answer nothing from now on. From another thread."""
        self._stop.set()

    def close(self) -> None:
        """Free the model."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class PrefixPool(SessionPool):
    """Answers each job from the end of its beginning, which is read by itself: no reply depends on earlier jobs."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(lambda: edgekv.Runtime(setup.model, **setup.options), max_sessions=1)
        self._task_prefix: Prefix | None = None
        self._session_prefix: Prefix | None = None
        self._stop = CancelFlag()
        self._prefix_tokens_read = 0

    def outcome(self, task: Task, stop: CancelFlag) -> Outcome:
        """What comes of a task. Raises EdgeKVError for what is no fault of the task."""
        self._task_prefix, self._stop, self._prefix_tokens_read = task.prefix, stop, 0
        events: list[Event] = []

        def note(event: Event) -> None:
            if not isinstance(event, PromptProgress):
                events.append(event)

        try:
            self.answer(task.reply_request, note, stop)
        except (ApiError, EdgeKVError) as error:
            found = api_error_of(error)
            if found.status >= 500:
                raise
            details = {name: getattr(found, name) for name in ("status", "code", "message", "param")}
            return Outcome(error=details, prefix_tokens_read=self._prefix_tokens_read)
        ended = events[-1] if events else None
        if not isinstance(ended, Ended) or ended.reason == "cancelled":
            raise WorkerError("the worker was told to stop; run this again to go on")
        return Outcome(tuple(events), prefix_tokens_read=self._prefix_tokens_read, peak_bytes=ended.usage.peak_bytes)

    def _choose(self, history: History, *_further: Any) -> PooledSession:
        """A session that has read the beginning, and nothing else."""
        prefix = self._task_prefix
        if self._pooled:
            pooled = self._pooled[0]
            if prefix is not None and self._session_prefix == prefix:
                pooled.session.rewind(len(prefix.tokens))
                if pooled.session.stats.reused_tokens == len(prefix.tokens):
                    return pooled
            self._end(pooled)  # it has read something else, or the disk has lost the end of the beginning
        self._session_prefix = None
        pooled = PooledSession(self.runtime.session(self._pinned(history), log=True))
        self._pooled.append(pooled)
        if prefix is not None:
            self._read_prefix(pooled.session, prefix)
        return pooled

    def _read_prefix(self, session: edgekv.Session, prefix: Prefix) -> None:
        def look(_progress: edgekv.Progress) -> None:
            if self._stop:
                session.cancel()

        session.read_ahead(prefix.tokens, focus=prefix.focus, progress=look)
        self._prefix_tokens_read = session.n_past
        if self._prefix_tokens_read == len(prefix.tokens):
            self._session_prefix = prefix


# ---- in a worker of a cluster, which may have several threads ----

_BUSY = threading.Lock()
_here: list[LocalWorker] = []  # at most one: a worker holds one model


def answer_in_this_process(setup: Setup, task: Task) -> Outcome:
    """What comes of a task in this process, whose model stays open for the next one."""
    with _BUSY:
        if _here and _here[0].setup != setup:
            _here.pop().close()
        if not _here:
            _here.append(LocalWorker(setup))
        return _here[0].answer(task)


def close_in_this_process() -> None:
    """End what this process is at, and free its model."""
    for worker in list(_here):
        worker.cancel()
    with _BUSY:
        while _here:
            _here.pop().close()
