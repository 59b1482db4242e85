"""Carries requests out in this process or in a worker process. Only this module chooses between the two."""

from __future__ import annotations

from pathlib import Path

from .planning.alternatives import Survey, make_survey
from .planning.choice import Request
from .planning.plan import Plan
from .planning.planner import make_plan
from .sessions.local_engine import LocalEngine
from .sessions.protocol import Engine


def open_engine(path: Path, request: Request) -> Engine:
    """Load and return the engine of a request."""
    if request.options.servers:
        from .addresses import warn_of_networks  # few runtimes have servers

        warn_of_networks(request.options.servers)
    if not request.options.isolated:
        return LocalEngine(path, request)
    from .worker.remote import WorkerEngine  # its imports take memory, and most runtimes never need them

    return WorkerEngine(path, request)


def plan_for(path: Path, request: Request) -> Plan:
    """Return the plan of the process that would load the model."""
    if not request.options.isolated:
        return make_plan(path, request)
    from .worker.remote import plan_in_worker

    return plan_in_worker(path, request)


def survey_for(path: Path, request: Request) -> Survey:
    """Return the plan, what limits it, and what else would fit."""
    if not request.options.isolated:
        return make_survey(path, request)
    from .worker.remote import survey_in_worker

    return survey_in_worker(path, request)
