"""A worker: it answers requests over a model in a process of its own, and reads each shared prefix once."""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass
from typing import Any

import edgekv
from edgekv.errors import EdgeKVError, WorkerError
from edgekv.server.errors import ApiError, api_error_of
from edgekv.server.request import Ended, Event, PromptProgress, ReplyRequest
from edgekv.server.scheduler import CancelFlag
from edgekv.server.session_pool import PooledSession, SessionPool
from edgekv.sessions.history import History

MOST_DEATHS = 3  # times that the process with the model may die at one request


@dataclass(frozen=True)
class Setup:
    """A runtime for a worker. model: path of its file; options: arguments of `edgekv.Runtime`"""

    model: str
    options: dict[str, Any]


@dataclass(frozen=True)
class Prefix:
    """A prefix of several requests, which is read before the first of them.

    key: equal for prefixes that are read alike; tokens: int32 ids
    focus: the question that a prefix is read with if it does not fit; None = none
    """

    key: bytes
    tokens: array[int]
    focus: str | tuple[str, ...] | None


@dataclass(frozen=True)
class Task:
    """A request for a worker. prefix: None = the request shares none"""

    reply_request: ReplyRequest
    prefix: Prefix | None


@dataclass(frozen=True)
class Outcome:
    """The result of a task.

    events: events of the reply; () = there is no reply
    error: arguments of the `ApiError` that the request gets in place of a reply
    died: the task killed the process with the model again and again; `error` says how
    prefix_tokens_read: tokens of the prefix, if it was read for this task; otherwise 0
    peak_bytes: peak of the process with the model until now
    """

    events: tuple[Event, ...] = ()
    error: dict[str, Any] | None = None
    died: bool = False
    prefix_tokens_read: int = 0
    peak_bytes: int = 0


def died(message: str) -> Outcome:
    """Return the result of a task that killed every worker that tried it."""
    return Outcome(error={"status": 500, "code": "worker_died", "message": message}, died=True)


class LocalWorker:
    """Answers tasks one at a time, over a runtime that is opened for the first of them."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self._pool: PrefixPool | None = None
        self._stop = CancelFlag()

    def answer(self, task: Task) -> Outcome:
        """Answer a task. If the process with the model dies, start another one and try again.

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
        """Cancel the current task, and answer nothing from now on. Another thread may call this."""
        self._stop.set()

    def close(self) -> None:
        """Free the model."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None


class PrefixPool(SessionPool):
    """Answers each request from the end of its prefix, which is read by itself. No reply depends on earlier ones."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(lambda: edgekv.Runtime(setup.model, **setup.options), max_sessions=1)
        self._task_prefix: Prefix | None = None
        self._session_prefix: Prefix | None = None
        self._stop = CancelFlag()
        self._prefix_tokens_read = 0

    def outcome(self, task: Task, stop: CancelFlag) -> Outcome:
        """Answer a task. Raises EdgeKVError for what is no fault of the task."""
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
        """Return a session that has read the prefix, and nothing else."""
        prefix = self._task_prefix
        if self._pooled:
            pooled = self._pooled[0]
            if prefix is not None and self._session_prefix == prefix:
                pooled.session.rewind(len(prefix.tokens))
                if pooled.session.stats.reused_tokens == len(prefix.tokens):
                    return pooled
            self._end(pooled)  # the session has another prefix, or the disk has lost the end of this one
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

        session.prefill_prefix(prefix.tokens, focus=prefix.focus, progress=look)
        self._prefix_tokens_read = session.n_past
        if self._prefix_tokens_read == len(prefix.tokens):
            self._session_prefix = prefix


# ---- in a worker of a cluster, which may have several threads ----

_BUSY = threading.Lock()
_here: list[LocalWorker] = []  # one at most: a worker holds one model


def answer_in_this_process(setup: Setup, task: Task) -> Outcome:
    """Answer a task in this process. The model stays open for the next one."""
    with _BUSY:
        if _here and _here[0].setup != setup:
            _here.pop().close()
        if not _here:
            _here.append(LocalWorker(setup))
        return _here[0].answer(task)


def close_in_this_process() -> None:
    """Cancel the current task of this process, and free the model."""
    for worker in list(_here):
        worker.cancel()
    with _BUSY:
        while _here:
            _here.pop().close()
