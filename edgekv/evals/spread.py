"""Cases spread over processes of this machine, or over the machines of a Dask cluster."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from typing import Any

from edgekv import cluster
from edgekv.extras import needed

from .case import Case
from .grid import Done, measure
from .setting import OpenRuntime

_BUSY = threading.Lock()


def over_processes(cases: Sequence[Case], *, workers: int, threads: int, gpu_layers: int = 0) -> Done:
    """Measure in `workers` processes of this machine, with so many threads each; results come as they are done.

    Raises ConfigError without the extra "dask".
    """
    with cluster.local_workers(workers) as client:
        yield from _spread(client, cases, threads, gpu_layers)


def over_cluster(cases: Sequence[Case], *, scheduler: str, threads: int | None, gpu_layers: int = 0) -> Done:
    """Measure on the workers of a Dask scheduler at this address, as "tcp://host:8786".

    They need edgekv, and models and books under the same paths. Each measures one case at a time, whatever threads
    Dask gives it. Raises ConfigError without the extra "dask", and if there is no scheduler.
    """
    with cluster.connected(scheduler) as client:
        yield from _spread(client, cases, threads, gpu_layers)


def _spread(client: Any, cases: Sequence[Case], threads: int | None, gpu_layers: int) -> Done:
    distributed = needed("distributed", "dask")
    futures = {client.submit(_measure, case, threads, gpu_layers, pure=False): case for case in cases}
    for future, result in distributed.as_completed(futures, with_results=True):
        yield futures[future], result


def _measure(case: Case, threads: int | None, gpu_layers: int) -> dict[str, Any]:
    """Runs in a worker, which may have several threads; a runtime is for one at a time."""
    with _BUSY:
        return measure(case, _runtimes(threads, gpu_layers))


@functools.cache
def _runtimes(threads: int | None, gpu_layers: int) -> OpenRuntime:
    return OpenRuntime(threads=threads, gpu_layers=gpu_layers)
