"""State that the endpoints of one server share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from starlette.requests import Request

from edgekv.api.server_settings import Settings

from .admission import MemoryBudget
from .metrics import Metrics
from .scheduler import RequestQueue
from .session_pool import SessionPool


@dataclass(slots=True)
class ServerState:
    """A running server. started: seconds since 1970"""

    settings: Settings
    pool: SessionPool
    queue: RequestQueue
    metrics: Metrics
    memory: MemoryBudget
    model_name: str
    started: int = field(default_factory=lambda: int(time.time()))


def state_of(request: Request) -> ServerState:
    """Return the state of the server that a request came to."""
    state: ServerState = request.app.state.server
    return state
