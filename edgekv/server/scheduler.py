"""Queue in front of the model. Requests are answered in order of arrival, as many at a time as the model has slots."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue

from edgekv.api.api_errors import RETRY_S, ApiError, api_error_of
from edgekv.api.reply_request import Event, ReplyRequest, Usage
from edgekv.counting import counted
from edgekv.errors import EdgeKVError
from edgekv.loop.loop_channel import Mailbox

from .admission import MemoryBudget
from .cancel_flag import CancelFlag
from .running_request import Running
from .spill import texts_in_files

log = logging.getLogger("edgekv.server")

AnswerCallback = Callable[[ReplyRequest, Callable[[Event | ApiError], None], CancelFlag], Iterator[Mailbox]]


class RequestQueue:
    """Answers requests in order. `submit` and `stop` are for the thread of the event loop.

    It is the only line in which requests wait. One thread answers all that have a slot of the runtime: each goes on
    until it waits for the loop, and again once the answer is there.

    answer: makes the reply to a request, in the thread of the queue. It calls back with each event, yields the box of
        an answer before it waits for that, and ends early if its `CancelFlag` is set. It may raise what the runtime
        raises, or call back with an error as the last event
    n_slots: requests that are answered at a time
    limit: requests that may wait beside those that are answered
    seconds: limit for each request, with the time that it waits
    memory: the budget that waiting requests may take
    ended: called with the usage of a reply, and the seconds from its turn to its first token
    """

    def __init__(
        self,
        answer: AnswerCallback,
        *,
        n_slots: int = 1,
        limit: int,
        seconds: float,
        memory: MemoryBudget,
        ended: Callable[[Usage, float], None] = lambda usage, first_s: None,
    ) -> None:
        self._answer = answer
        self._ended = ended
        self._memory = memory
        self._n_slots = n_slots
        self._limit = limit
        self._seconds = seconds
        self._lock = threading.Lock()  # guards the two lists and the flag below
        self._waiting: deque[Running] = deque()
        self._answered: list[Running] = []
        self._stopped = False
        self._told: SimpleQueue[tuple[Running, Mailbox] | None] = SimpleQueue()  # answers; None = look at the lists
        self._thread = threading.Thread(target=self._serve, name="edgekv-requests", daemon=True)
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        """The number of requests that wait."""
        return len(self._waiting)

    @property
    def n_answered(self) -> int:
        """The number of requests that are answered now."""
        return len(self._answered)

    def submit(self, request: ReplyRequest) -> Running:
        """Queue a request; return its events, to be iterated and then closed. Raises ApiError if the queue is full."""
        with self._lock:
            if self._stopped:
                raise _stopping()
            # a client that sees the end of a reply may ask again at once, while the session is still being saved
            n_under_way = sum(not running.has_end for running in self._answered)
            if len(self._waiting) + n_under_way >= self._limit + self._n_slots:
                raise ApiError(
                    429,
                    "rate_limit_exceeded",
                    f"{counted(len(self._waiting), 'request')} in the queue already; try again later",
                    retry_after_s=RETRY_S,
                )
            running = Running(request, self._memory, self._seconds, self._left, self._ended)
            self._waiting.append(running)
        self._told.put(None)
        return running

    def stop(self) -> None:
        """Refuse all requests that wait or come later. Replies that are under way go on to their end."""
        with self._lock:
            self._stopped = True
            refused = list(self._waiting)
            self._waiting.clear()
        self._told.put(None)
        for running in refused:
            running.post(_stopping())
            running.release()

    def close(self) -> None:
        """Stop, cancel the replies that are under way, and wait until they have ended."""
        self.stop()
        with self._lock:
            cancelled = list(self._answered)
        for running in cancelled:
            running.stop.set()
        self._thread.join()

    def _left(self, running: Running) -> None:
        """Cancel a request whose client has left."""
        with self._lock:
            was_waiting = running in self._waiting
            if was_waiting:
                self._waiting.remove(running)
        running.stop.set()
        if was_waiting:
            running.release()

    def _serve(self) -> None:
        """Have each request go on when it can, until there will be no more."""
        while not self._is_over():
            told = self._told.get()
            if told is not None and told[0].awaited is told[1]:
                self._go_on(told[0])
            while (running := self._next()) is not None:
                running.answering = self._answering(running)
                self._go_on(running)

    def _go_on(self, running: Running) -> None:
        """Answer a request until it waits or has ended."""
        running.awaited = awaited = next(running.answering, None)
        if awaited is not None:
            awaited.notify(lambda: self._told.put((running, awaited)))

    def _answering(self, running: Running) -> Iterator[Mailbox]:
        running.begun_s = time.monotonic()
        try:
            with texts_in_files(running.request) as request:
                yield from self._answer(request, running.post, running.stop)
            if not running.has_end:  # the flag was set before the reply began
                running.post(_stopping())
        except Exception as error:
            if not isinstance(error, (EdgeKVError, ApiError)):
                log.exception("a request failed")
            elif api_error_of(error).status >= 500:
                log.warning("a request failed: %s", error)
            running.post(api_error_of(error))
        finally:
            running.release()
            with self._lock:
                self._answered.remove(running)

    def _next(self) -> Running | None:
        """Take the next request that waits; None = there is none, or no slot is free."""
        with self._lock:
            if not self._waiting or len(self._answered) == self._n_slots:
                return None
            running = self._waiting.popleft()
            self._answered.append(running)
            return running

    def _is_over(self) -> bool:
        with self._lock:
            return self._stopped and not self._answered


def _stopping() -> ApiError:
    return ApiError(503, "stopping", "the server is stopping; try again later", retry_after_s=RETRY_S)
