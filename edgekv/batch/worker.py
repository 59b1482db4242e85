"""A worker: it answers requests over a model, and reads each shared prefix once."""

from __future__ import annotations

import threading
from array import array
from dataclasses import dataclass
from typing import Any

import edgekv
from edgekv.api.api_errors import api_error_of
from edgekv.api.reply_request import Ended, Event, PromptProgress, ReplyRequest
from edgekv.errors import EdgeKVError, WorkerError
from edgekv.server.cancel_flag import CancelFlag
from edgekv.server.session_reply import Replier

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


class SharedRuntime:
    """A runtime of this process that several workers use, each in a thread and a slot of its own."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._lock = threading.Lock()
        self._runtime: edgekv.Runtime | None = None

    def open(self) -> edgekv.Runtime:
        """Return the runtime, which is opened for the first worker that needs it. Raises the errors of `Runtime`."""
        with self._lock:
            if self._runtime is None:
                self._runtime = edgekv.Runtime(self._setup.model, **self._setup.options)
            return self._runtime

    def close(self) -> None:
        """Free the model."""
        if self._runtime is not None:
            self._runtime.close()


class LocalWorker:
    """Answers tasks one at a time, over a runtime that is opened for the first of them.

    Each request goes on from the end of its prefix, which is read by itself. So no reply depends on earlier ones.

    shared: the runtime that it uses with other workers; None = one of its own
    """

    def __init__(self, setup: Setup, shared: SharedRuntime | None = None) -> None:
        self.setup = setup
        self._shared = shared
        self._runtime: edgekv.Runtime | None = None
        self._session: edgekv.Session | None = None
        self._read: Prefix | None = None  # the prefix that the session has read
        self._stop = CancelFlag()

    def answer(self, task: Task) -> Outcome:
        """Answer a task. If the process with the model dies, start another one and try again.

        Raises EdgeKVError for what is no fault of the task.
        """
        self._open()
        for _ in range(MOST_DEATHS):
            try:
                return self._outcome(self._open(), task)
            except WorkerError as error:
                if self._stop:
                    raise
                self.close()
                message = str(error)
        return died(message)

    def cancel(self) -> None:
        """Cancel the current task, and answer nothing from now on. Another thread may call this."""
        self._stop.set()

    def close(self) -> None:
        """Free the session, and the model if it is this worker's own."""
        if self._session is not None:
            self._session.close()
        if self._runtime is not None and self._shared is None:
            self._runtime.close()
        self._runtime = self._session = self._read = None

    def _open(self) -> edgekv.Runtime:
        if self._runtime is None:
            if self._shared is None:
                self._runtime = edgekv.Runtime(self.setup.model, **self.setup.options)
            else:
                self._runtime = self._shared.open()
            self._replier = Replier(self._runtime)
        return self._runtime

    def _outcome(self, runtime: edgekv.Runtime, task: Task) -> Outcome:
        """Answer a task. Raises EdgeKVError for what is no fault of the task."""
        request, prefix, n_read = task.reply_request, task.prefix, 0
        events: list[Event] = []
        try:
            session = self._with_prefix(prefix)
            if session is None:
                session = self._session = runtime.session(self._replier.pinned(request), history=True)
                if prefix is not None:
                    n_read = self._read_prefix(session, prefix)
            if not self._stop:
                for _ in self._replier.answer(session, request, request.history, events.append, self._stop):
                    pass  # the next step waits by itself
        except EdgeKVError as error:
            found = api_error_of(error)
            if found.status >= 500:
                raise
            details = {name: getattr(found, name) for name in ("status", "code", "message", "param")}
            return Outcome(error=details, prefix_tokens_read=n_read)
        ended = events[-1] if events else None
        if not isinstance(ended, Ended) or ended.reason == "cancelled":
            raise WorkerError("the worker was told to stop; run this again to go on")
        told = tuple(event for event in events if not isinstance(event, PromptProgress))
        return Outcome(told, prefix_tokens_read=n_read, peak_bytes=ended.usage.peak_bytes)

    def _with_prefix(self, prefix: Prefix | None) -> edgekv.Session | None:
        """Return the session if it can go back to the end of the prefix; otherwise close it and return None."""
        session, read = self._session, self._read
        if session is None:
            return None
        if prefix is not None and read == prefix and session.n_past >= len(prefix.tokens):
            session.rewind(len(prefix.tokens))
            if session.stats.reused_tokens == len(prefix.tokens):
                return session
        session.close()  # it has another prefix, or the disk has lost the end of this one
        self._session = self._read = None
        return None

    def _read_prefix(self, session: edgekv.Session, prefix: Prefix) -> int:
        """Read a prefix; returns the number of tokens that were read."""

        def look(_progress: edgekv.Progress) -> None:
            if self._stop:
                session.cancel()

        session.prefill_prefix(prefix.tokens, focus=prefix.focus, progress=look)
        n_read = session.n_past
        self._read = prefix if n_read == len(prefix.tokens) else None
        return n_read


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
