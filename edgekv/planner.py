"""Planning: from a ceiling in bytes to a budget in cells, before any weight is loaded."""

from __future__ import annotations

import os
from pathlib import Path

from .choice import Request, choose
from .estimate import Estimator, Plan
from .limits import check_ceiling
from .models.registry import find_model
from .refusal import refusal


def make_plan(path: Path, request: Request) -> Plan:
    """The plan for a model file: what was named kept, the rest chosen. Raises CeilingError where nothing fits."""
    check_ceiling(request.options.ceiling_bytes)
    with Estimator(path, request.options) as estimates:
        plan = choose(estimates, request)
        if plan is None:
            raise refusal(estimates, request)
        return plan


def plan(model: str | os.PathLike[str] | None = None, **options: object) -> Plan:
    """Plan a runtime without loading it; arguments as for `Runtime`.

    Raises CeilingError when it does not fit, ConfigError for impossible options, ModelError for the file.
    """
    request, path = Request.of(**options), find_model(model)
    if request.options.isolated:
        from .worker.remote import plan_in_worker

        return plan_in_worker(path, request)
    return make_plan(path, request)
