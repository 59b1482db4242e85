"""Replies for asyncio: whatever is cancelled, and how often, the event loop goes on, and the reply is closed."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from edgekv.conversations.async_replies import async_pieces

LIMIT_S = 10  # a thread that is held goes on then, in a loop that it blocks


class Held:
    """A reply of two pieces that is held before the second, as within a block."""

    def __init__(self):
        self.at_work, self.release, self.closed = threading.Event(), threading.Event(), threading.Event()
        self.cancelled = asyncio.Event()
        self.n_cancels = 0
        self.was_released = None

    def begin(self):
        try:
            yield "one"
            self.at_work.set()
            self.was_released = self.release.wait(LIMIT_S)
            yield "two"
        finally:
            self.closed.set()

    def cancel(self):
        self.n_cancels += 1
        self.cancelled.set()

    def pieces(self):
        return async_pieces(self.begin, self.cancel)

    async def is_at_work(self):
        assert await asyncio.to_thread(self.at_work.wait, LIMIT_S)

    async def is_closed(self):
        assert await asyncio.to_thread(self.closed.wait, LIMIT_S)


async def joined(pieces):
    return "".join([piece async for piece in pieces])


async def begun(held):
    """Return a task that waits for the second piece."""
    task = asyncio.create_task(joined(held.pieces()))
    await held.is_at_work()
    return task


def test_all_pieces_come_and_the_reply_is_closed():
    async def main():
        held = Held()
        held.release.set()
        assert await joined(held.pieces()) == "onetwo"
        assert held.closed.is_set()
        assert held.n_cancels == 0

    asyncio.run(main())


def test_a_loop_that_is_left_closes_the_reply():
    async def main():
        held = Held()
        pieces = held.pieces()
        assert await anext(pieces) == "one"
        await pieces.aclose()
        assert held.closed.is_set()
        assert held.n_cancels == 0

    asyncio.run(main())


def test_a_task_that_is_cancelled_ends_with_its_reply():
    async def main():
        held = Held()
        task = await begun(held)
        task.cancel()
        await held.cancelled.wait()
        assert not task.done()
        held.release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert held.closed.is_set()
        assert (held.n_cancels, held.was_released) == (1, True)

    asyncio.run(main())


def test_a_task_that_is_cancelled_twice_ends_at_once():
    """The thread is in the midst of a block, and closes the reply after it."""

    async def main():
        held = Held()
        task = await begun(held)
        task.cancel()
        await held.cancelled.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not held.closed.is_set()
        held.release.set()
        await held.is_closed()
        assert (held.n_cancels, held.was_released) == (1, True)

    asyncio.run(main())


def test_a_loop_may_be_closed_before_the_reply_has_ended(caplog):
    held, threads = None, threading.enumerate()

    async def main():
        nonlocal held
        held = Held()
        task = await begun(held)
        task.cancel()
        await held.cancelled.wait()
        task.cancel()

    with caplog.at_level(logging.DEBUG, "concurrent"):
        asyncio.run(main())
        held.release.set()
        for thread in threading.enumerate():
            if thread not in threads:
                thread.join(LIMIT_S)
        assert held.closed.is_set()
    assert caplog.records == []


def test_an_error_of_a_reply_is_raised_and_cancels_nothing():
    async def main():
        held = Held()

        def begin():
            yield "one"
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await joined(async_pieces(begin, held.cancel))
        assert held.n_cancels == 0

    asyncio.run(main())
