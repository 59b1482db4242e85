"""What the endpoints of one server share."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from starlette.requests import Request

from .jobs import Jobs
from .pool import Pool
from .room import Room
from .settings import Settings
from .watch import Metrics


@dataclass(slots=True)
class State:
    """A server at work. started: when, in seconds since 1970"""

    settings: Settings
    pool: Pool
    jobs: Jobs
    metrics: Metrics
    room: Room
    model_name: str
    started: int = field(default_factory=lambda: int(time.time()))


def state_of(request: Request) -> State:
    """The state of the server that a request came to."""
    state: State = request.app.state.server
    return state
