"""Replies for asyncio: whatever is cancelled, and how often, the event loop goes on, and the reply is closed."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from edgekv.loop.async_replies import async_pieces
from edgekv.loop.loop_channel import Mailbox
from edgekv.loop.reply_pieces import Blocks

LIMIT_S = 100  # a thread that is held goes on then


class Held:
    """A reply of two pieces that is held before the second: by an answer of the loop, or by work that blocks."""

    def __init__(self, *, blocks):
        self.at_work, self.closed = threading.Event(), threading.Event()
        self.cancelled = asyncio.Event()
        self.n_cancels = 0
        self.was_released = None
        self._blocks = blocks
        self._answer, self._released = Mailbox(), threading.Event()

    def begin(self):
        try:
            yield "one"
            if self._blocks:
                yield Blocks.NOW
                self.at_work.set()
                self.was_released = self._released.wait(LIMIT_S)
            else:
                self.at_work.set()
                yield self._answer
                self.was_released = self._answer.get()
            yield "two"
        finally:
            self.closed.set()

    def release(self):
        self._released.set()
        self._answer.put(True)

    def cancel(self):
        self.n_cancels += 1
        self.cancelled.set()

    def pieces(self):
        return async_pieces(self.begin, self.cancel)

    async def is_at_work(self):
        assert await asyncio.to_thread(self.at_work.wait, LIMIT_S)

    async def is_closed(self):
        assert await asyncio.to_thread(self.closed.wait, LIMIT_S)


@pytest.fixture(params=[False, True], ids=["answer", "blocks"])
def blocks(request):
    return request.param


async def joined(pieces):
    return "".join([piece async for piece in pieces])


async def begun(held):
    """Return a task that waits for the second piece."""
    task = asyncio.create_task(joined(held.pieces()))
    await held.is_at_work()
    return task


def test_all_pieces_come_and_the_reply_is_closed(blocks):
    async def main():
        held = Held(blocks=blocks)
        held.release()
        assert await joined(held.pieces()) == "onetwo"
        assert held.closed.is_set()
        assert held.n_cancels == 0

    asyncio.run(main())


def test_a_loop_that_is_left_closes_the_reply(blocks):
    async def main():
        held = Held(blocks=blocks)
        pieces = held.pieces()
        assert await anext(pieces) == "one"
        await pieces.aclose()
        assert held.closed.is_set()
        assert held.n_cancels == 0

    asyncio.run(main())


def test_a_task_that_is_cancelled_ends_with_its_reply(blocks):
    async def main():
        held = Held(blocks=blocks)
        task = await begun(held)
        task.cancel()
        await held.cancelled.wait()
        assert not task.done()
        held.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert held.closed.is_set()
        assert (held.n_cancels, held.was_released) == (1, True)

    asyncio.run(main())


def test_a_task_that_is_cancelled_twice_ends_at_once(blocks):
    """A thread that is at work closes the reply after it."""

    async def main():
        held = Held(blocks=blocks)
        task = await begun(held)
        task.cancel()
        await held.cancelled.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert held.closed.is_set() == (not blocks)
        held.release()
        await held.is_closed()
        assert (held.n_cancels, held.was_released) == (1, True if blocks else None)

    asyncio.run(main())


def test_an_event_loop_may_be_closed_before_the_reply_has_ended(blocks, caplog):
    held, threads = None, threading.enumerate()

    async def main():
        nonlocal held
        held = Held(blocks=blocks)
        task = await begun(held)
        task.cancel()
        await held.cancelled.wait()
        task.cancel()

    with caplog.at_level(logging.DEBUG, "concurrent"):
        asyncio.run(main())
        held.release()
        for thread in threading.enumerate():
            if thread not in threads:
                thread.join(LIMIT_S)
        assert held.closed.is_set()
    assert caplog.records == []


def test_an_error_of_a_reply_is_raised_and_cancels_nothing(blocks):
    async def main():
        held = Held(blocks=blocks)

        def begin():
            yield "one"
            if blocks:
                yield Blocks.NOW
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await joined(async_pieces(begin, held.cancel))
        assert held.n_cancels == 0

    asyncio.run(main())


def test_no_thread_is_there_for_a_reply():
    """Neither while its loop works, nor while the program does."""

    async def main():
        held = Held(blocks=False)
        pieces = held.pieces()
        await anext(pieces)
        second = asyncio.ensure_future(anext(pieces))
        while not held.at_work.is_set():
            await asyncio.sleep(0)
        assert threading.active_count() == before
        held.release()
        assert await second == "two"
        assert threading.active_count() == before

    before = threading.active_count()
    asyncio.run(main())
