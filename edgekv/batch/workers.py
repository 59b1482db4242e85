"""Workers that answer one task at a time: of this machine, or of a Dask cluster."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue
from typing import Any, Protocol

from edgekv import cluster
from edgekv.errors import ConfigError, EdgeKVError, WorkerError

from .sharding import ShardQueue
from .worker import (
    LocalWorker,
    Outcome,
    Setup,
    SharedRuntime,
    Task,
    answer_in_this_process,
    close_in_this_process,
    died,
)


class Worker(Protocol):
    """A worker, as a thread of this process uses it."""

    def answer(self, task: Task) -> Outcome:
        """Answer a task."""

    def cancel(self) -> None:
        """Cancel the current task. Another thread may call this."""


@contextmanager
def local_workers(n: int, setup: Setup) -> Iterator[Sequence[Worker]]:
    """Yield n workers of this machine, each with its model in a process of its own. If the setup names several slots,
    yield a worker for each slot of a model in this process.
    """
    with ExitStack() as stack:
        shared = None
        if (n_slots := setup.options.get("parallel", 1)) > 1:
            n, shared = n_slots, SharedRuntime(setup)
            stack.callback(shared.close)
        workers = [LocalWorker(setup, shared) for _ in range(n)]
        for worker in workers:
            stack.callback(worker.close)
        yield workers


@contextmanager
def cluster_workers(address: str, setup: Setup) -> Iterator[Sequence[Worker]]:
    """Yield the workers of a Dask scheduler. Raises ConfigError without the extra "dask", or without workers."""
    with cluster.connected(address) as client:
        pool = _WorkerPool(client)
        workers = [_ClusterWorker(pool, setup) for _ in pool.addresses()]
        if not workers:
            raise ConfigError(f"the Dask scheduler at cluster={address} has no workers; start some with `dask worker`")
        try:
            yield workers
        finally:
            with suppress(Exception):  # a worker that has gone holds nothing
                client.run(close_in_this_process)


def answer_all(
    workers: Sequence[Worker], queue: ShardQueue, task_of: Callable[[int], Task]
) -> Iterator[tuple[int, Outcome]]:
    """Have workers answer the requests of a queue; yield numbers of requests with their results, as they are done.

    Closing it cancels and forgets the requests that are under way. Raises the workers' errors.
    """
    done: SimpleQueue[tuple[int, Outcome] | BaseException | None] = SimpleQueue()
    stopped = threading.Event()

    def work(index: int, worker: Worker) -> None:
        try:
            while not stopped.is_set() and (number := queue.take(index)) is not None:
                done.put((number, worker.answer(task_of(number))))
            done.put(None)
        except BaseException as error:
            done.put(error)

    threads = [threading.Thread(target=work, args=each, daemon=True) for each in enumerate(workers)]
    for thread in threads:
        thread.start()
    try:
        left = len(threads)
        while left:
            found = done.get()
            if isinstance(found, BaseException):
                raise found
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        stopped.set()
        for worker in workers:
            worker.cancel()
        for thread in threads:
            thread.join()


class _WorkerPool:
    """The processes of a cluster, each of which serves one `_ClusterWorker`."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self._lock = threading.Lock()
        self._taken: dict[int, str] = {}

    def addresses(self) -> list[str]:
        """Return the addresses of the processes that are there now."""
        return list(self.client.scheduler_info(n_workers=-1)["workers"])

    def address_of(self, worker: int) -> str | None:
        """Return the address for a worker, the same one as long as it is there; None = all are taken."""
        with self._lock:
            there = self.addresses()
            mine = self._taken.pop(worker, None)
            if mine not in there:
                mine = next((address for address in there if address not in self._taken.values()), None)
            if mine is not None:
                self._taken[worker] = mine
            return mine


class _ClusterWorker:
    """A worker of a cluster. If its process ends, it goes on with a free one."""

    def __init__(self, pool: _WorkerPool, setup: Setup) -> None:
        self._pool = pool
        self._setup = setup
        self._future: Any = None
        self._is_cancelled = False

    def answer(self, task: Task) -> Outcome:
        """Answer a task. If the process ends, another one answers it."""
        address = self._pool.address_of(id(self))
        self._future = self._pool.client.submit(
            answer_in_this_process,
            self._setup,
            task,
            workers=None if address is None else [address],
            allow_other_workers=address is not None,
            pure=False,
        )
        if self._is_cancelled:  # before there was a task to give up
            self.cancel()
        try:
            outcome: Outcome = self._future.result()
        except EdgeKVError:
            raise
        except Exception as error:
            if type(error).__name__ == "KilledWorker":  # Dask has tried it on several workers
                return died("the worker processes that were at this request ended, one after the other")
            raise WorkerError(f"the Dask cluster failed: {error}; run this again to go on") from error
        return outcome

    def cancel(self) -> None:
        """Give up the task. The process ends it when the batch ends."""
        self._is_cancelled = True
        if self._future is not None:
            with suppress(Exception):  # the cluster may have gone
                self._future.cancel()
