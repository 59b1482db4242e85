"""/memory: who holds how much, and the ceiling of the running server, which a request with a key moves.

Moving it takes cells from conversations, so a server without keys refuses it.
"""

from __future__ import annotations

from dataclasses import asdict

import anyio
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import edgekv
from edgekv.api.api_errors import ApiError
from edgekv.api.body import Body, Whole
from edgekv.errors import CeilingError
from edgekv.memory.sizes import format_size

from .read_body import read_body
from .state import state_of

PATH = "/memory"


class CeilingBody(Body):
    """The ceiling. memory: bytes, a size such as "150MiB", or a share such as "25%" """

    memory: Whole | str


async def show(request: Request) -> Response:
    """Return the plan of now, and the entries of its ledger."""
    pool = state_of(request).pool
    ledger = await anyio.to_thread.run_sync(pool.ledger)
    return JSONResponse({**_planned(pool.runtime.plan), "ledger": [asdict(entry) for entry in ledger]})


async def move(request: Request) -> Response:
    """Return {"ceiling_bytes", "budget_cells", "planned_bytes"} of the new plan. Raises ApiError and EdgeKVError."""
    state = state_of(request)
    if not state.settings.api_keys:
        raise ApiError(403, "key_needed", "the ceiling moves by a request with a key only: edgekv serve --api-key KEY")
    body = await read_body(request, CeilingBody, state.settings, state.memory)
    try:
        plan = await anyio.to_thread.run_sync(state.pool.set_memory, body.memory)
    except CeilingError as error:
        raise ApiError(400, "invalid_value", _reason(error), param="memory") from error
    return JSONResponse(_planned(plan))


def _planned(plan: edgekv.Plan) -> dict[str, int]:
    return {"ceiling_bytes": plan.ceiling_bytes, "budget_cells": plan.budget_cells, "planned_bytes": plan.peak_bytes}


def _reason(error: CeilingError) -> str:
    """Return why a ceiling cannot be, without paths of this machine."""
    return f"it takes {format_size(error.required_bytes)}, and the limit is {format_size(error.ceiling_bytes)}"


routes = [Route(PATH, show), Route(PATH, move, methods=["PUT"])]
