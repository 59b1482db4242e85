"""A request that waits or is answered, and the events that its client fetches."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

from edgekv.api.api_errors import ApiError
from edgekv.api.reply_request import Ended, Event, Piece, PromptProgress, ReplyRequest, Usage
from edgekv.api.request_bytes import request_bytes
from edgekv.loop.loop_channel import Mailbox

from .admission import MemoryBudget, logprob_bytes
from .cancel_flag import CancelFlag
from .spill import spill_texts


class Running:
    """The events of a request as they come. Iterate it to its end and close it; closing it before cancels the request.

    Pieces are joined while nobody fetches them, so a slow client holds its reply and no more. The memory budget counts
    its log probabilities until it is closed. Raises ApiError if the request fails, and when its time is up.

    has_end: its last event is there; later ones are dropped
    answering, awaited: the work on it, and the answer that this waits for, in the thread of the queue
    """

    answering: Iterator[Mailbox]
    awaited: Mailbox | None = None

    def __init__(
        self,
        request: ReplyRequest,
        memory: MemoryBudget,
        seconds: float,
        left: Callable[[Running], None],
        ended: Callable[[Usage, float], None],
    ) -> None:
        """Raises ApiError if there is no room for the request, or for its long texts on the disk."""
        self._n_free = logprob_bytes(request, memory)  # bytes of log probabilities that may still come
        with ExitStack() as stack:
            self.request = spill_texts(request, stack)
            n_bytes = request_bytes(self.request)
            memory.reserve(n_bytes + self._n_free)
            stack.callback(memory.release, n_bytes)
            self._give_back = partial(memory.release, self._n_free)
            self._held = stack.pop_all()
        self.stop = CancelFlag()
        self.begun_s = 0.0
        self._first_s: float | None = None  # seconds from its turn to its first token
        self._left = left
        self._told = ended
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._has_read = False  # a block of the prompt was read since the timer began
        self._timer = self._loop.call_later(seconds, self._expire)
        self._events: deque[Event | ApiError] = deque()
        self._posted = asyncio.Event()
        self._lock = threading.Lock()
        self._closed = False
        self.has_end = False

    def release(self) -> None:
        """Free what the request holds, once nobody works on it any more."""
        self.request = ReplyRequest()
        self._held.close()

    def post(self, event: Event | ApiError) -> None:
        """Add an event, from any thread."""
        if self._first_s is None and isinstance(event, (Piece, Ended)):
            self._first_s = time.monotonic() - self.begun_s
        if isinstance(event, PromptProgress):
            self._has_read = True
        if isinstance(event, Ended):
            self._told(event.usage, self._first_s or 0.0)
        if isinstance(event, Piece):
            self._n_free -= len(event.logprobs)
            if self._n_free < 0:
                event = _too_long()
                self.stop.set()
        with self._lock:
            if self.has_end:  # its time was up later, or its session could not be saved
                return
            self.has_end = isinstance(event, (Ended, ApiError))
            if self._closed:
                return
            last = self._events[-1] if self._events else None
            if isinstance(last, PromptProgress) and isinstance(event, PromptProgress):
                self._events[-1] = event
            elif isinstance(last, Piece) and isinstance(event, Piece) and last.reasoning == event.reasoning:
                self._events[-1] = Piece(last.text + event.text, last.reasoning, last.logprobs + event.logprobs)
            else:
                self._events.append(event)
        try:
            self._loop.call_soon_threadsafe(self._posted.set)
        except RuntimeError:  # the loop has ended, so nobody fetches this
            self.stop.set()

    def __aiter__(self) -> Running:
        return self

    async def __anext__(self) -> Event:
        while (event := self._next()) is None:
            await self._posted.wait()
        if isinstance(event, (Ended, ApiError)):
            self._timer.cancel()
        if isinstance(event, ApiError):
            raise event
        return event

    def _next(self) -> Event | ApiError | None:
        """Take the next event; None = it is still to come. Raises StopAsyncIteration after the last one."""
        with self._lock:
            if self._events:
                return self._events.popleft()
            if self.has_end or self._closed:
                raise StopAsyncIteration
            self._posted.clear()
            return None

    async def aclose(self) -> None:
        """Cancel the request, unless it has ended."""
        self._timer.cancel()
        with self._lock:
            was_closed, self._closed = self._closed, True
            self._events.clear()
        if not was_closed:
            self._give_back()
        self._left(self)

    def _expire(self) -> None:
        """End the request whose time is up. The error comes before the end of the reply.

        The time begins anew while the prompt is read, which takes longer the longer it is.
        """
        if self._has_read:
            self._has_read = False
            self._timer = self._loop.call_later(self._seconds, self._expire)
            return
        self.post(ApiError(504, "timeout", "the request took too long; try again, or ask for less"))
        self._left(self)


def _too_long() -> ApiError:
    """Return the error for tokens that are longer than `PACKED_BYTES` allows."""
    return ApiError(503, "no_room", "the log probabilities take more memory than there is; ask for fewer of them")
