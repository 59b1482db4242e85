"""Workers of a cluster, over a client that does nothing by itself."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from edgekv.api.reply_request import ReplyRequest
from edgekv.batch.worker import Setup, Task
from edgekv.batch.workers import _ClusterWorker, _WorkerPool


class Client:
    """A client of Dask whose task fails if nobody cancels it; `meanwhile` is called before the task is there."""

    def __init__(self, meanwhile):
        self.meanwhile = meanwhile
        self.task = Future()

    def scheduler_info(self, n_workers):
        return {"workers": {"tcp://there": {}}}

    def submit(self, *_, **__):
        self.meanwhile()
        self.task.result = lambda: self.task.cancelled() or pytest.fail("nobody cancelled the task")
        return self.task


def test_a_task_that_is_given_up_before_it_was_sent():
    client = Client(lambda: worker.cancel())
    worker = _ClusterWorker(_WorkerPool(client), Setup("model.gguf", {}))
    worker.answer(Task(ReplyRequest(prompt="text"), None))
    assert client.task.cancelled()
