"""Carries requests out in this process or in a worker process. Only this module chooses between the two."""

from __future__ import annotations

import secrets
import warnings
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from .conversations.local_engine import LocalEngine
from .loop.engine import Engine
from .loop.loop import Loop
from .loop.thread import LoopThread
from .models.header import read_header
from .planning.alternatives import Survey, make_survey
from .planning.choice import Request
from .planning.plan import Plan
from .planning.planner import make_plan


def open_engine(path: Path, request: Request) -> Engine:
    """Load and return the engine of a request."""
    _warn_of_type(path, request)
    if request.options.servers:
        from .addresses import warn_of_networks  # few runtimes have servers

        warn_of_networks(request.options.servers)
    if not request.options.isolated:
        with ExitStack() as made:
            engine = made.enter_context(closing(LocalEngine(path, request)))
            channel = LoopThread(Loop(engine))
            made.pop_all()
        return Engine(channel, engine.plan, engine.mark)
    from .worker.pipe_messages import Load, pack  # these imports take memory, and most runtimes never need them
    from .worker.worker_process import Worker

    mark = secrets.token_bytes(8)
    load = Load(path, pack(request), mark)
    with ExitStack() as made:
        worker = made.enter_context(closing(Worker(request.options.servers)))
        opened = Engine(worker, worker.ask(load), mark)
        made.pop_all()
    return opened


def plan_for(path: Path, request: Request) -> Plan:
    """Return the plan of the process that would load the model. That of a worker counts nothing of this process."""
    _warn_of_type(path, request)
    plan: Plan = _in_worker(path, request, around=False) if request.options.isolated else make_plan(path, request)
    return plan


def survey_for(path: Path, request: Request) -> Survey:
    """Return the plan, what limits it, and what else would fit."""
    _warn_of_type(path, request)
    survey: Survey = _in_worker(path, request, around=True) if request.options.isolated else make_survey(path, request)
    return survey


def _in_worker(path: Path, request: Request, *, around: bool) -> Any:
    from .worker.pipe_messages import Estimate, pack
    from .worker.worker_process import Worker

    estimate = Estimate(path, pack(request), around)
    with closing(Worker(request.options.servers)) as worker:
        return worker.ask(estimate)


def _warn_of_type(path: Path, request: Request) -> None:
    """Warn of a named type of cache that does not suit the model."""
    kv_type = request.options.kv_type
    if kv_type == "q4_0" and not read_header(path).suits_cache(kv_type):
        warnings.warn(
            f"kv_type={kv_type} may spoil what {path.name} says of texts of thousands of tokens: its keys have biases, "
            "which in Qwen2.5 make a few elements so large that 4 bits lose the others; use kv_type=q8_0",
            stacklevel=4,
        )
