"""Replies for asyncio programs: their event loop is called once an answer of the loop is there, and no thread waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

from edgekv.errors import EdgeKVError

from .loop_channel import Mailbox
from .reply_pieces import Blocks, Events


async def async_pieces(begin: Callable[[], Events], cancel: Callable[[], None]) -> AsyncGenerator[str, None]:
    """Yield the pieces of a reply without blocking the event loop.

    A task that is cancelled waits until the reply has ended. If it is cancelled once more, it ends at once, and the
    loop ends the reply.

    begin: returns the events of the reply; cancel: ends it at its next block or token, when the task is cancelled
    """
    reply = _AwaitedReply(begin())
    try:
        while (piece := await reply.next()) is not None:
            yield piece
    except asyncio.CancelledError:
        cancel()
        with suppress(EdgeKVError):
            while await reply.next() is not None:
                pass
        raise
    finally:
        reply.close()


class _AwaitedReply:
    """The events of a reply. A thread takes the events that block."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._awaited: Mailbox | Future[str | Mailbox | Blocks | None] | None = None
        self._thread: ThreadPoolExecutor | None = None

    async def next(self) -> str | None:
        """Return the next piece; None = there are no more. A task that is cancelled meanwhile may call it again."""
        while True:
            if self._awaited is not None:
                await _there(self._awaited)
            event = self._take()
            if event is None or isinstance(event, str):
                return event
            self._awaited = self._in_thread() if isinstance(event, Blocks) else event

    def close(self) -> None:
        """End the reply, after what is at work in a thread."""
        if self._thread is None:
            self._events.close()
        else:
            self._thread.submit(self._events.close)
            self._thread.shutdown(wait=False)

    def _take(self) -> str | Mailbox | Blocks | None:
        """Return the next event, for which nothing has to be waited; None = there are no more."""
        awaited, self._awaited = self._awaited, None
        if not isinstance(awaited, Future):
            return next(self._events, None)
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        return awaited.result()

    def _in_thread(self) -> Future[str | Mailbox | Blocks | None]:
        """Have a thread take the next event."""
        self._thread = ThreadPoolExecutor(1, "edgekv-reply")
        return self._thread.submit(next, self._events, None)


async def _there(awaited: Mailbox | Future[str | Mailbox | Blocks | None]) -> None:
    """Wait until an answer or a result is there. It may come after the event loop has ended."""
    loop = asyncio.get_running_loop()
    is_there = asyncio.Event()

    def tell(*_: object) -> None:
        with suppress(RuntimeError):  # the event loop was closed meanwhile, and nobody waits
            loop.call_soon_threadsafe(is_there.set)

    if isinstance(awaited, Future):
        awaited.add_done_callback(tell)
    else:
        awaited.notify(tell)
    await is_there.wait()
