"""The queue: order, limits, clients that leave, and the end of a server."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time

import pytest

from edgekv.engine.pieces import PACKED_BYTES
from edgekv.errors import InputError
from edgekv.prompt.text import read_text
from edgekv.server import shelf
from edgekv.server.failures import Failure
from edgekv.server.job import Ended, Job, Piece, Reading, Usage
from edgekv.server.jobs import Jobs
from edgekv.server.room import Room
from edgekv.server.shelf import LONG_CHARS

USAGE = Usage(*[0] * 11)


class Model:
    """Answers each job with its `user`, once `go` is set; `order` has the jobs whose turn came."""

    def __init__(self):
        self.go = threading.Event()
        self.order = []
        self.stopped = []

    def __call__(self, job, emit, stop):
        self.order.append(job.user)
        emit(Reading(1, 2))
        while not self.go.wait(0.01):
            if stop:
                self.stopped.append(job.user)
                return
        for piece in job.user:
            emit(Piece(piece))
        emit(Ended("stop", USAGE))


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def room():
    return Room(1 << 20)


@pytest.fixture
def jobs(model, room):
    made = Jobs(model, limit=2, seconds=60, room=room)
    yield made
    model.go.set()
    made.close()


async def text(running):
    return "".join([event.text async for event in running if isinstance(event, Piece)])


async def until(condition):
    while not condition():
        await asyncio.sleep(0.01)


def test_jobs_are_answered_in_order(jobs, model):
    async def work():
        running = []
        for name in ("one", "two", "three"):
            running.append(jobs.run(Job(user=name)))
            await until(lambda: model.order)
        with pytest.raises(Failure) as full:
            jobs.run(Job(user="four"))
        assert (full.value.status, full.value.retry_after_s) == (429, 5)
        model.go.set()
        assert [await text(it) for it in running] == ["one", "two", "three"]
        assert model.order == ["one", "two", "three"]
        return [await text(jobs.run(Job(user="five")))]

    assert asyncio.run(work()) == ["five"]


def test_the_place_of_a_reply_is_free_when_its_end_is_seen(room):
    """Also while what belongs to it is still put away."""
    put_away = threading.Event()

    def answer(job, emit, stop):
        if job.user == "refused":
            raise InputError("no text")
        emit(Ended("stop", USAGE))
        put_away.wait()

    jobs = Jobs(answer, limit=0, seconds=60, room=room)

    async def work():
        for _ in range(20):
            with pytest.raises(Failure, match="no text"):
                await text(jobs.run(Job(user="refused")))
        await text(jobs.run(Job()))
        following = jobs.run(Job())
        with pytest.raises(Failure, match="waiting already"):
            jobs.run(Job())
        put_away.set()
        await text(following)

    asyncio.run(work())
    jobs.close()


def test_a_reply_that_never_began_has_an_end(room):
    """The server was closed between its turn and its beginning."""
    begun = threading.Event()

    def answer(job, emit, stop):
        begun.set()
        while not stop:
            time.sleep(0.01)

    jobs = Jobs(answer, limit=0, seconds=60, room=room)

    async def work():
        running = jobs.run(Job())
        await until(begun.is_set)
        jobs.close()
        with pytest.raises(Failure, match="is stopping"):
            await text(running)

    asyncio.run(work())


def test_who_leaves_makes_way(jobs, model):
    """While it waits, and while it is answered."""

    async def work():
        first = jobs.run(Job(user="one"))
        await until(lambda: model.order == ["one"])
        second, third = (jobs.run(Job(user=name)) for name in ("two", "three"))
        await second.aclose()
        await first.aclose()
        await until(lambda: model.order == ["one", "three"])
        assert model.stopped == ["one"]
        model.go.set()
        assert await text(third) == "three"

    asyncio.run(work())


def test_a_slow_client_holds_its_text_alone(jobs, model):
    async def work():
        model.go.set()
        running = jobs.run(Job(user="text"))
        await until(lambda: len(running._events) >= 3 and not jobs.is_busy)
        assert [event async for event in running] == [Reading(1, 2), Piece("text"), Ended("stop", USAGE)]

    asyncio.run(work())


def test_time_is_up(model, room):
    jobs = Jobs(model, limit=2, seconds=0.05, room=room)

    async def work():
        with pytest.raises(Failure, match="took too long") as late:
            await text(jobs.run(Job(user="one")))
        assert late.value.status == 504
        await until(lambda: model.stopped == ["one"])

    asyncio.run(work())
    jobs.close()


def test_a_server_that_stops_ends_what_it_has_begun(jobs, model):
    async def work():
        first, second = jobs.run(Job(user="one")), jobs.run(Job(user="two"))
        await until(lambda: model.order == ["one"])
        jobs.stop()
        with pytest.raises(Failure) as refused:
            await text(second)
        assert (refused.value.status, refused.value.code) == (503, "stopping")
        with pytest.raises(Failure, match="is stopping"):
            jobs.run(Job())
        model.go.set()
        assert await text(first) == "one"

    asyncio.run(work())


def test_what_waits_is_bounded(model, room):
    jobs = Jobs(model, limit=100, seconds=60, room=room)

    async def work():
        short = tuple({"role": "user", "content": "x" * (LONG_CHARS - i)} for i in range(40))
        running = [jobs.run(Job(messages=short))]
        with pytest.raises(Failure, match="fill their memory"):
            running.append(jobs.run(Job(messages=short)))
        long = ({"role": "user", "content": "x" * (1 << 20)},)
        running += [jobs.run(Job(messages=long)) for _ in range(10)]
        files = [it.job.messages[0]["content"].file for it in running[1:]]
        assert all(os.fstat(file.fileno()).st_size == 1 << 20 for file in files)
        for it in running:
            await it.aclose()
        await until(lambda: not jobs.is_busy and not room._held)
        assert all(file.closed for file in files)

    asyncio.run(work())
    jobs.close()


def test_a_disk_without_room_is_said(jobs, monkeypatch):
    """When a job comes, and when it is its turn."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")

    async def work():
        for name in ("write_all", "temp_file", "spooled"):
            with monkeypatch.context() as patch:
                patch.setattr(shelf, name, full)
                with pytest.raises(Failure, match="the disk does not take") as refused:
                    await text(jobs.run(Job(prompt="x" * (1 << 20))))
            assert (refused.value.status, jobs.n_waiting) == (503, 0)

    asyncio.run(work())


def test_many_long_texts_take_one_descriptor(room):
    """Jobs that wait have one each; only the job that is answered has one for each text."""
    resource = pytest.importorskip("resource")
    texts = [f"{i} {'long ' * (LONG_CHARS // 4)}" for i in range(30)]
    messages = tuple({"role": "user", "content": it} for it in ("short", *texts))
    found = []

    def answer(job, emit, stop):
        found.append(["".join(read_text(it["content"])) for it in job.messages[1:]])
        emit(Ended("stop", USAGE))

    jobs = Jobs(answer, limit=64, seconds=60, room=room)

    async def work():
        n_open = len(os.listdir("/proc/self/fd"))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_open + 64 + len(texts) + 4, limits[1]))
        try:
            running = [jobs.run(Job(messages=messages)) for _ in range(64)]
            for it in running:
                await text(it)
                await it.aclose()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await until(lambda: not jobs.is_busy)
        assert len(os.listdir("/proc/self/fd")) == n_open

    asyncio.run(work())
    jobs.close()
    assert found == [texts] * 64


def test_log_probabilities_are_counted_until_the_client_has_them(model):
    """Also those of a reply that is over, which its client has not fetched."""
    room = Room(1 << 20)
    jobs = Jobs(model, limit=2, seconds=60, room=room)

    async def work():
        running = jobs.run(Job(user="x", n_logprobs=1, max_tokens=100))
        model.go.set()
        await until(lambda: running.has_end and not jobs.is_busy)
        assert room._held == 200 * PACKED_BYTES
        assert await text(running) == "x"
        for _ in range(2):
            await running.aclose()
        assert room._held == 0

    asyncio.run(work())
    jobs.close()


def test_log_probabilities_that_are_longer_than_any(room):
    """A vocabulary of very long tokens: the reply ends before it takes more than was kept for it."""

    def answer(job, emit, stop):
        while not stop:
            emit(Piece("x", logprobs=b"x" * 1000))

    jobs = Jobs(answer, limit=2, seconds=60, room=room)

    async def work():
        running = jobs.run(Job(n_logprobs=1, max_tokens=100))
        with pytest.raises(Failure, match="log probabilities take more memory") as failed:
            await text(running)
        await running.aclose()
        return failed.value.status

    assert asyncio.run(work()) == 503
    jobs.close()
