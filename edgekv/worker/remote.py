"""Isolated runtimes: a model that is loaded or planned in a worker process."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from edgekv.conversations.snapshot import new_mark
from edgekv.loop.engine_client import Engine
from edgekv.planning.alternatives import Survey
from edgekv.planning.choice import Request
from edgekv.planning.plan import Plan

from .pipe_messages import Estimate, Load, pack
from .worker_process import Worker


def open_in_worker(path: Path, request: Request) -> Engine:
    """Return the engine of an isolated runtime. Raises the errors of `LocalEngine`, and WorkerError."""
    mark = new_mark()
    load = Load(path, pack(request), mark)
    worker = Worker(request.options.servers)
    try:
        return Engine(worker, worker.ask(load), mark)
    except BaseException:
        worker.close()
        raise


def plan_in_worker(path: Path, request: Request) -> Plan:
    """Return the plan of an isolated runtime: it counts the worker's memory, and nothing of this process."""
    plan: Plan = _estimate(path, request, around=False)
    return plan


def survey_in_worker(path: Path, request: Request) -> Survey:
    """Return the plan of an isolated runtime, with other settings that would fit."""
    survey: Survey = _estimate(path, request, around=True)
    return survey


def _estimate(path: Path, request: Request, *, around: bool) -> Any:
    estimate = Estimate(path, pack(request), around)
    with closing(Worker(request.options.servers)) as worker:
        return worker.ask(estimate)
