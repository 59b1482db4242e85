"""The queue in front of the model: jobs are answered one at a time, in order of arrival, in a thread of their own."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from edgekv.errors import EdgeKVError

from .failures import RETRY_S, Failure, failure_of
from .job import Ended, Event, Job, Piece, Reading, Usage
from .room import Room, held_bytes, told_bytes
from .shelf import in_files, laid_down

log = logging.getLogger("edgekv.server")

Answer = Callable[[Job, Callable[[Event], None], "Stop"], None]


class Jobs:
    """Runs jobs. `run` and `stop` are for the thread of the event loop.

    answer: makes the reply to a job, in the thread of the queue: calls back with each event, and ends early where its
        `Stop` is set. It may raise what the runtime raises
    limit: jobs that may wait beside the one that is answered
    seconds: for each, with the time that it waits
    room: the memory that waiting jobs may take
    ended: called with what a reply took, and the seconds from its turn to its first token
    """

    def __init__(
        self,
        answer: Answer,
        *,
        limit: int,
        seconds: float,
        room: Room,
        ended: Callable[[Usage, float], None] = lambda usage, first_s: None,
    ) -> None:
        self._answer = answer
        self._ended = ended
        self._room = room
        self._limit = limit
        self._seconds = seconds
        self._changed = threading.Condition()
        self._waiting: deque[Running] = deque()
        self._running: Running | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name="edgekv-jobs", daemon=True)
        self._thread.start()

    @property
    def n_waiting(self) -> int:
        """Jobs that wait."""
        return len(self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether one is answered now."""
        return self._running is not None

    def run(self, job: Job) -> Running:
        """Queue a job; returns its events, to be iterated and then closed. Raises Failure where the queue is full."""
        with self._changed:
            if self._stopped:
                raise _stopping()
            # whoever sees that a reply is over may ask again at once, though its session is perhaps saved still
            is_answering = self._running is not None and not self._running.has_end
            if len(self._waiting) >= self._limit and (self._waiting or is_answering):
                raise Failure(
                    429,
                    "rate_limit_exceeded",
                    f"{len(self._waiting)} requests are waiting already; try again later",
                    retry_after_s=RETRY_S,
                )
            running = Running(job, self._room, self._seconds, self._left, self._ended)
            self._waiting.append(running)
            self._changed.notify()
        return running

    def stop(self) -> None:
        """Refuse all that wait, and what comes later. The reply that is under way goes on to its end."""
        with self._changed:
            self._stopped = True
            refused = list(self._waiting)
            self._waiting.clear()
            self._changed.notify()
        for running in refused:
            running.post(_stopping())
            running.release()

    def close(self) -> None:
        """Stop, cancel the reply that is under way, and wait until it has ended."""
        self.stop()
        with self._changed:
            running = self._running
        if running is not None:
            running.stop.set()
        self._thread.join()

    def _left(self, running: Running) -> None:
        """Nobody wants the reply any more."""
        with self._changed:
            was_waiting = running in self._waiting
            if was_waiting:
                self._waiting.remove(running)
        running.stop.set()
        if was_waiting:
            running.release()

    def _serve(self) -> None:
        while (running := self._next()) is not None:
            running.begun_s = time.monotonic()
            try:
                with in_files(running.job) as job:
                    self._answer(job, running.post, running.stop)
                if not running.has_end:  # it was told to stop before it began
                    running.post(_stopping())
            except Exception as error:
                if not isinstance(error, (EdgeKVError, Failure)):
                    log.exception("a request failed")
                elif failure_of(error).status >= 500:
                    log.warning("a request failed: %s", error)
                running.post(failure_of(error))
            finally:
                running.release()
                with self._changed:
                    self._running = None

    def _next(self) -> Running | None:
        """The next job, once there is one; None = there will be no more."""
        with self._changed:
            while not self._waiting and not self._stopped:
                self._changed.wait()
            self._running = self._waiting.popleft() if self._waiting else None
            return self._running


class Stop:
    """Whether a reply is to end early; may be set from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._is_set = False
        self._call: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        return self._is_set

    def set(self) -> None:
        """Have it end."""
        with self._lock:
            self._is_set = True
            if self._call is not None:
                self._call()

    @contextmanager
    def calls(self, call: Callable[[], None]) -> Iterator[None]:
        """While it lasts, `call` is called when it is set."""
        with self._lock:
            self._call = call
        try:
            yield
        finally:
            with self._lock:
                self._call = None


class Running:
    """The events of a job as they come. Iterate it to its end and close it; closing it before cancels the job.

    Pieces are joined while nobody fetches them, so a slow client holds its reply and no more. The room has its log
    probabilities until it is closed. Raises Failure where the job fails, and where its time is up.

    has_end: its last event is there; whatever comes later is fetched by nobody
    """

    def __init__(
        self,
        job: Job,
        room: Room,
        seconds: float,
        left: Callable[[Running], None],
        ended: Callable[[Usage, float], None],
    ) -> None:
        """Raises Failure where there is no room for the job, or for its long texts on the disk."""
        self._n_free = told_bytes(job, room)  # bytes of log probabilities that may still come
        with ExitStack() as stack:
            self.job = laid_down(job, stack)
            n_bytes = held_bytes(self.job)
            room.take(n_bytes + self._n_free)
            stack.callback(room.give_back, n_bytes)
            self._give_back = partial(room.give_back, self._n_free)
            self._held = stack.pop_all()
        self.stop = Stop()
        self.begun_s = 0.0
        self._first_s: float | None = None  # from its turn to its first token
        self._left = left
        self._told = ended
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(seconds, self._expire)
        self._events: deque[Event | Failure] = deque()
        self._posted = asyncio.Event()
        self._lock = threading.Lock()
        self._ended = self._closed = False
        self.has_end = False

    def release(self) -> None:
        """Free what the job holds, when nobody is at it any more."""
        self.job = Job()
        self._held.close()

    def post(self, event: Event | Failure) -> None:
        """Add an event, from any thread."""
        if self._first_s is None and isinstance(event, (Piece, Ended)):
            self._first_s = time.monotonic() - self.begun_s
        if isinstance(event, Ended):
            self._told(event.usage, self._first_s or 0.0)
        if isinstance(event, Piece):
            self._n_free -= len(event.logprobs)
            if self._n_free < 0:
                event = _too_long()
                self.stop.set()
        with self._lock:
            self.has_end |= isinstance(event, (Ended, Failure))
            if self._closed:
                return
            last = self._events[-1] if self._events else None
            if isinstance(last, Reading) and isinstance(event, Reading):
                self._events[-1] = event
            elif isinstance(last, Piece) and isinstance(event, Piece) and last.reasoning == event.reasoning:
                self._events[-1] = Piece(last.text + event.text, last.reasoning, last.logprobs + event.logprobs)
            else:
                self._events.append(event)
        try:
            self._loop.call_soon_threadsafe(self._posted.set)
        except RuntimeError:  # the loop has ended, and with it whoever would have fetched this
            self.stop.set()

    def __aiter__(self) -> Running:
        return self

    async def __anext__(self) -> Event:
        while not self._events:
            if self._ended:
                raise StopAsyncIteration
            self._posted.clear()
            await self._posted.wait()
        with self._lock:
            event = self._events.popleft()
        if isinstance(event, (Ended, Failure)):
            self._ended = True
            self._timer.cancel()
        if isinstance(event, Failure):
            raise event
        return event

    async def aclose(self) -> None:
        """Cancel the job, unless it has ended."""
        self._timer.cancel()
        with self._lock:
            was_closed, self._closed, self._ended = self._closed, True, True
            self._events.clear()
        if not was_closed:
            self._give_back()
        self._left(self)

    def _expire(self) -> None:
        """Its time is up, which is said before the reply ends of it."""
        self.post(Failure(504, "timeout", "the request took too long; try again, or ask for less"))
        self._left(self)


def _too_long() -> Failure:
    """Tokens of this vocabulary are longer than `PACKED_BYTES` has room for."""
    return Failure(503, "no_room", "the log probabilities take more memory than there is; ask for fewer of them")


def _stopping() -> Failure:
    return Failure(503, "stopping", "the server is stopping; try again later", retry_after_s=RETRY_S)
