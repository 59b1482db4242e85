"""The ASGI application: endpoints over one model."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

import edgekv
from edgekv.errors import EdgeKVError
from edgekv.warmup import register_warmup, reserve

from . import (
    about,
    chat_completions,
    completions,
    message_events,
    messages,
    openai_shape,
    page,
    responses,
    tokens,
    watch,
)
from .answer import Failed, Refused
from .failures import Failure, failure_of
from .guard import Guard
from .jobs import Jobs
from .pool import Pool
from .rehearsal import Nobody, rehearsed
from .room import Room
from .sending import InParts
from .settings import Settings
from .state import State
from .watch import Metrics, Watched

log = logging.getLogger("edgekv.server")

ROUTES = [
    *chat_completions.routes,
    *completions.routes,
    *responses.routes,
    *messages.routes,
    *tokens.routes,
    *about.routes,
    *watch.routes,
    *page.routes,
]
OPEN = ("/health", *(route.path for route in page.routes))  # where no key is needed


class Application:
    """An ASGI application over a model. `close` it, or let the host's lifespan end it.

    A host that mounts it below its own, where it is told of no lifespan, calls `stop` and `close` itself.
    """

    def __init__(self, pool: Pool, settings: Settings, *, give_back: Callable[[], None] = lambda: None) -> None:
        """pool: is closed with it; give_back: called then"""
        self._give_back = give_back
        counted = Metrics()
        room = Room(settings.bodies)
        jobs = Jobs(pool.answer, limit=settings.queue, seconds=settings.request_s, room=room, ended=counted.took)
        self.state = State(settings, pool, jobs, counted, room, settings.name or pool.runtime.plan.model.stem)
        handlers = {Failure: _refused, HTTPException: _refused, EdgeKVError: _refused, Exception: _refused}
        routed = Starlette(routes=ROUTES, exception_handlers=handlers, lifespan=self._lifespan)
        routed.state.server = self.state
        guarded: ASGIApp = Guard(routed, settings, _shape_at, OPEN)
        if settings.origins:  # outside the guard: a browser asks first whether it may ask, and shows no key then
            guarded = CORSMiddleware(
                guarded, settings.origins, allow_methods=["GET", "POST"], allow_headers=["*"], max_age=600
            )
        self._app = InParts(Watched(guarded, counted, frozenset(route.path for route in ROUTES)))

    @classmethod
    def over(cls, open_runtime: Callable[[], edgekv.Runtime], settings: Settings) -> Application:
        """The application over a runtime that is opened now, and again where the process with the model has died."""
        give_back = reserve(settings.memory_bytes)
        try:
            kept = {"folder": settings.sessions_dir, "rest_dir": settings.rest_dir}
            pool = Pool(open_runtime, max_sessions=settings.sessions, **kept)
        except BaseException:
            give_back()
            raise
        return cls(pool, settings, give_back=give_back)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def stop(self) -> None:
        """Refuse requests that wait, and new ones. The reply that is under way goes on to its end."""
        self.state.jobs.stop()

    def close(self) -> None:
        """End the reply that is under way, save the sessions where they have a folder, and free the model."""
        self.state.jobs.close()
        self.state.pool.close()
        self._give_back()

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        self.close()


def app(
    model: str | os.PathLike[str] | None = None, *, settings: Settings | None = None, **options: Any
) -> Application:
    """The application over a model, which is loaded before this returns.

    model, options: as for `edgekv.Runtime`. grammars: whether JSON by a schema and calls of tools can be had, which
        takes memory; here they can by default
    """
    options = {"grammars": True} | options
    return Application.over(lambda: edgekv.Runtime(model, **options), settings or Settings())


async def _refused(request: Request, error: Exception) -> Response:
    """The answer to a request that was refused before its endpoint had one."""
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        error = Failure(error.status_code, code, f"{request.method} is not answered at this address")
    return Refused(failure_of(error), _shape_at(request.url.path))


def _shape_at(path: str) -> Failed:
    """How a failure looks at an address: Messages have a shape of their own."""
    return message_events.failed if path.startswith("/v1/messages") else openai_shape.failed


register_warmup(lambda: rehearsed(lambda: Application(Nobody(), Settings())))
