"""The queue: order, limits, clients that leave, and the end of a server."""

from __future__ import annotations

import asyncio
import errno
import gc
import os
import threading
import time

import pytest
from waiting import LIMIT_S

from edgekv.api.api_errors import ApiError
from edgekv.api.reply_request import Ended, Piece, PromptProgress, ReplyRequest, Usage
from edgekv.documents.text_file import read_text
from edgekv.errors import InputError, WorkerError
from edgekv.generation.logprobs import PACKED_BYTES
from edgekv.loop.loop_channel import Mailbox
from edgekv.server import spill
from edgekv.server.admission import MemoryBudget
from edgekv.server.scheduler import RequestQueue
from edgekv.server.spill import LONG_CHARS

USAGE = Usage(*[0] * 11)


class Model:
    """Answers each request with its `user`, once `go` is set; `order` has the requests whose turn came."""

    def __init__(self):
        self.go = threading.Event()
        self.order = []
        self.stopped = []

    def __call__(self, request, emit, stop):
        self.order.append(request.user)
        emit(PromptProgress(1, 2))
        while not self.go.wait(0.01):
            if stop:
                self.stopped.append(request.user)
                return
        for piece in request.user:
            emit(Piece(piece))
        emit(Ended("stop", USAGE))
        yield from ()


@pytest.fixture
def model():
    return Model()


@pytest.fixture
def memory():
    return MemoryBudget(1 << 20)


@pytest.fixture
def queue(model, memory):
    made = RequestQueue(model, limit=2, seconds=60, memory=memory)
    yield made
    model.go.set()
    made.close()


async def text(running):
    return "".join([event.text async for event in running if isinstance(event, Piece)])


async def until(condition):
    """Wait until a condition is met, and fail if it never is."""

    async def met():
        while not condition():
            await asyncio.sleep(0.01)

    await asyncio.wait_for(met(), LIMIT_S)


def test_jobs_are_answered_in_order(queue, model):
    async def work():
        running = []
        for name in ("one", "two", "three"):
            running.append(queue.submit(ReplyRequest(user=name)))
            await until(lambda: model.order)
        with pytest.raises(ApiError) as full:
            queue.submit(ReplyRequest(user="four"))
        assert (full.value.status, full.value.retry_after_s) == (429, 5)
        model.go.set()
        assert [await text(it) for it in running] == ["one", "two", "three"]
        assert model.order == ["one", "two", "three"]
        return [await text(queue.submit(ReplyRequest(user="five")))]

    assert asyncio.run(work()) == ["five"]


def test_the_place_of_a_reply_is_free_when_its_end_is_seen(memory):
    """Also while what belongs to it is still put away."""
    put_away = threading.Event()

    def answer(request, emit, stop):
        if request.user == "refused":
            raise InputError("no text")
        emit(Ended("stop", USAGE))
        put_away.wait()
        yield from ()

    queue = RequestQueue(answer, limit=0, seconds=60, memory=memory)

    async def work():
        for _ in range(20):
            with pytest.raises(ApiError, match="no text"):
                await text(queue.submit(ReplyRequest(user="refused")))
        await text(queue.submit(ReplyRequest()))
        following = queue.submit(ReplyRequest())
        with pytest.raises(ApiError, match="in the queue already"):
            queue.submit(ReplyRequest())
        put_away.set()
        await text(following)

    asyncio.run(work())
    queue.close()


def test_the_time_of_a_request_begins_anew_while_its_prompt_is_read(memory):
    go = threading.Event()

    def answer(request, emit, stop):
        go.wait()
        yield from ()

    queue = RequestQueue(answer, limit=0, seconds=600, memory=memory)

    async def work():
        running = queue.submit(ReplyRequest())
        for _ in range(3):
            running.post(PromptProgress(1, 2))
            running._expire()
            assert not running.has_end
        running._expire()  # nothing was read since
        assert running.has_end
        with pytest.raises(ApiError, match="took too long"):
            await text(running)
        await running.aclose()

    asyncio.run(work())
    go.set()
    queue.close()


def test_nothing_follows_the_end_of_a_reply(memory):
    """Neither an error after it nor its time, however slowly a client reads."""

    def answer(request, emit, stop):
        emit(Ended("stop", USAGE))
        yield from ()
        raise WorkerError("gone")

    queue = RequestQueue(answer, limit=0, seconds=0.1, memory=memory)

    async def work():
        running = queue.submit(ReplyRequest())
        while not running.has_end or queue.n_answered:
            time.sleep(0.01)  # the loop stands still, so the time is not up before the end
        await asyncio.sleep(0.3)
        assert [type(event) async for event in running] == [Ended]

    asyncio.run(work())
    queue.close()


def test_a_reply_that_never_began_has_an_end(memory):
    """The server was closed between its turn and its beginning."""
    begun = threading.Event()

    def answer(request, emit, stop):
        begun.set()
        while not stop:
            time.sleep(0.01)
        yield from ()

    queue = RequestQueue(answer, limit=0, seconds=60, memory=memory)

    async def work():
        running = queue.submit(ReplyRequest())
        await until(begun.is_set)
        queue.close()
        with pytest.raises(ApiError, match="is stopping"):
            await text(running)

    asyncio.run(work())


def test_who_leaves_makes_way(queue, model):
    """While it waits, and while it is answered."""

    async def work():
        first = queue.submit(ReplyRequest(user="one"))
        await until(lambda: model.order == ["one"])
        second, third = (queue.submit(ReplyRequest(user=name)) for name in ("two", "three"))
        await second.aclose()
        await first.aclose()
        await until(lambda: model.order == ["one", "three"])
        assert model.stopped == ["one"]
        model.go.set()
        assert await text(third) == "three"

    asyncio.run(work())


def test_a_slow_client_holds_its_text_alone(queue, model):
    async def work():
        model.go.set()
        running = queue.submit(ReplyRequest(user="text"))
        await until(lambda: running.has_end and not queue.n_answered)
        assert [event async for event in running] == [PromptProgress(1, 2), Piece("text"), Ended("stop", USAGE)]

    asyncio.run(work())


def test_time_is_up(model, memory):
    queue = RequestQueue(model, limit=2, seconds=0.05, memory=memory)

    async def work():
        running = queue.submit(ReplyRequest(user="one"))
        while not model.order:
            time.sleep(0.01)  # the loop stands still, so the time is not up before its turn
        with pytest.raises(ApiError, match="took too long") as late:
            await text(running)
        assert late.value.status == 504
        await until(lambda: model.stopped == ["one"])

    asyncio.run(work())
    queue.close()


def test_a_server_that_stops_ends_what_it_has_begun(queue, model):
    async def work():
        first, second = queue.submit(ReplyRequest(user="one")), queue.submit(ReplyRequest(user="two"))
        await until(lambda: model.order == ["one"])
        queue.stop()
        with pytest.raises(ApiError) as refused:
            await text(second)
        assert (refused.value.status, refused.value.code) == (503, "stopping")
        with pytest.raises(ApiError, match="is stopping"):
            queue.submit(ReplyRequest())
        model.go.set()
        assert await text(first) == "one"

    asyncio.run(work())


def test_what_waits_is_bounded(model, memory):
    queue = RequestQueue(model, limit=100, seconds=60, memory=memory)

    async def work():
        short = tuple({"role": "user", "content": "x" * (LONG_CHARS - i)} for i in range(40))
        running = [queue.submit(ReplyRequest(messages=short))]
        with pytest.raises(ApiError, match="fill their memory"):
            running.append(queue.submit(ReplyRequest(messages=short)))
        long = ({"role": "user", "content": "x" * (1 << 20)},)
        running += [queue.submit(ReplyRequest(messages=long)) for _ in range(10)]
        files = [it.request.messages[0]["content"].file for it in running[1:]]
        assert all(os.fstat(file.fileno()).st_size == 1 << 20 for file in files)
        for it in running:
            await it.aclose()
        await until(lambda: not queue.n_answered and not memory.held)
        assert all(file.closed for file in files)

    asyncio.run(work())
    queue.close()


def test_a_disk_without_room_is_said(queue, monkeypatch):
    """When a request comes, and when it is its turn."""

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/x")

    async def work():
        for name in ("write_all", "temp_file", "spooled"):
            with monkeypatch.context() as patch:
                patch.setattr(spill, name, full)
                with pytest.raises(ApiError, match="the disk does not take") as refused:
                    await text(queue.submit(ReplyRequest(prompt="x" * (1 << 20))))
            assert (refused.value.status, queue.n_waiting) == (503, 0)

    asyncio.run(work())


def test_many_long_texts_take_one_descriptor(memory):
    """Requests that wait have one each; only the request that is answered has one for each text."""
    resource = pytest.importorskip("resource")
    texts = [f"{i} {'long ' * (LONG_CHARS // 4)}" for i in range(30)]
    messages = tuple({"role": "user", "content": it} for it in ("short", *texts))
    found = []

    def answer(request, emit, stop):
        found.append(["".join(read_text(it["content"])) for it in request.messages[1:]])
        emit(Ended("stop", USAGE))
        yield from ()

    queue = RequestQueue(answer, limit=64, seconds=60, memory=memory)

    async def work():
        gc.collect()  # what tests before have left open is not closed meanwhile
        n_open = len(os.listdir("/proc/self/fd"))
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (n_open + 64 + len(texts) + 4, limits[1]))
        try:
            running = [queue.submit(ReplyRequest(messages=messages)) for _ in range(64)]
            for it in running:
                await text(it)
                await it.aclose()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await until(lambda: not queue.n_answered)
        assert len(os.listdir("/proc/self/fd")) <= n_open  # what tests before have left open may be closed meanwhile

    asyncio.run(work())
    queue.close()
    assert found == [texts] * 64


def test_log_probabilities_are_counted_until_the_client_has_them(model):
    """Also those of a reply that is over, which its client has not fetched."""
    memory = MemoryBudget(1 << 20)
    queue = RequestQueue(model, limit=2, seconds=60, memory=memory)

    async def work():
        running = queue.submit(ReplyRequest(user="x", n_logprobs=1, max_tokens=100))
        model.go.set()
        await until(lambda: running.has_end and not queue.n_answered)
        assert memory.held == 200 * PACKED_BYTES
        assert await text(running) == "x"
        for _ in range(2):
            await running.aclose()
        assert memory.held == 0

    asyncio.run(work())
    queue.close()


def test_log_probabilities_that_are_longer_than_any(memory):
    """A vocabulary of very long tokens: the reply ends before it takes more than was kept for it."""

    def answer(request, emit, stop):
        while not stop:
            emit(Piece("x", logprobs=b"x" * 1000))
        yield from ()

    queue = RequestQueue(answer, limit=2, seconds=60, memory=memory)

    async def work():
        running = queue.submit(ReplyRequest(n_logprobs=1, max_tokens=100))
        with pytest.raises(ApiError, match="log probabilities take more memory") as failed:
            await text(running)
        await running.aclose()
        return failed.value.status

    assert asyncio.run(work()) == 503
    queue.close()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_one_thread_goes_on_with_whatever_has_its_answer(memory, order):
    """Several requests wait for the loop at a time, and no thread waits for one of them."""
    boxes, said = [Mailbox() for _ in range(3)], []

    def answer(request, emit, stop):
        box = boxes[int(request.user)]
        yield box
        said.append(f"{request.user} {box.get()}")
        emit(Ended("stop", USAGE))

    before = threading.active_count()
    queue = RequestQueue(answer, n_slots=3, limit=0, seconds=60, memory=memory)

    async def work():
        running = [queue.submit(ReplyRequest(user=str(i))) for i in range(3)]
        await until(lambda: queue.n_answered == 3)
        assert threading.active_count() == before + 1
        for i in order:
            boxes[i].put("answered")
            await text(running[i])

    asyncio.run(work())
    queue.close()
    assert said == [f"{i} answered" for i in order]


class ToldTwice(Mailbox):
    """A box that tells of its answer twice, as one may whose answer comes while it is asked to tell."""

    def put(self, answer):
        super().put(answer)
        if self._told is not None:
            self._told()


def test_a_request_goes_on_once_for_an_answer_that_is_told_twice(memory):
    boxes = ToldTwice(), Mailbox()

    def answer(request, emit, stop):
        if request.user == "waits":
            for box in boxes:
                yield box
                box.get()
        emit(Ended("stop", USAGE))

    queue = RequestQueue(answer, n_slots=2, limit=0, seconds=60, memory=memory)

    async def work():
        waits = queue.submit(ReplyRequest(user="waits"))
        await until(lambda: boxes[0]._told)
        boxes[0].put(None)
        await until(lambda: boxes[1]._told)
        await text(queue.submit(ReplyRequest()))  # the thread does not wait for the second box
        boxes[1].put(None)
        await text(waits)

    asyncio.run(work())
    queue.close()
