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

from . import info, page, routes
from .admission import MemoryBudget
from .auth import AuthMiddleware
from .errors import ApiError, api_error_of
from .metrics import Metrics, MetricsMiddleware
from .scheduler import RequestQueue
from .session_pool import SessionPool
from .settings import Settings
from .state import ServerState
from .streaming import ChunkedBodies, ErrorResponse, error_renderer
from .warmup import warm_up, warmup_runtime

log = logging.getLogger("edgekv.server")

ROUTES = [
    *routes.routes,
    *info.routes,
    *page.routes,
]
OPEN = ("/health", *(route.path for route in page.routes))  # paths that need no key


class Application:
    """An ASGI application over a model. `close` it, or let the host's lifespan end it.

    A host that mounts it below its own application, and so sends no lifespan events, calls `stop` and `close` itself.
    """

    def __init__(self, pool: SessionPool, settings: Settings, *, give_back: Callable[[], None] = lambda: None) -> None:
        """pool: closed with the application; give_back: called then"""
        self._give_back = give_back
        counters = Metrics()
        memory = MemoryBudget(settings.bodies)
        queue = RequestQueue(
            pool.answer, limit=settings.queue, seconds=settings.request_s, memory=memory, ended=counters.count_reply
        )
        self.state = ServerState(settings, pool, queue, counters, memory, settings.name or pool.runtime.plan.model.stem)
        handlers = {ApiError: _refused, HTTPException: _refused, EdgeKVError: _refused, Exception: _refused}
        routed = Starlette(routes=ROUTES, exception_handlers=handlers, lifespan=self._lifespan)
        routed.state.server = self.state
        guarded: ASGIApp = AuthMiddleware(routed, settings, OPEN)
        if settings.origins:  # outside of the checks: the first request of a browser (CORS preflight) bears no key
            guarded = CORSMiddleware(
                guarded, settings.origins, allow_methods=["GET", "POST"], allow_headers=["*"], max_age=600
            )
        self._app = ChunkedBodies(MetricsMiddleware(guarded, counters, frozenset(route.path for route in ROUTES)))

    @classmethod
    def over(cls, open_runtime: Callable[[], edgekv.Runtime], settings: Settings) -> Application:
        """Open a runtime, and another one if its worker process dies; return the application over it."""
        give_back = reserve(settings.memory_bytes)
        try:
            kept = {"folder": settings.sessions_dir, "swap_dir": settings.swap_dir}
            pool = SessionPool(open_runtime, max_sessions=settings.sessions, **kept)
        except BaseException:
            give_back()
            raise
        return cls(pool, settings, give_back=give_back)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def stop(self) -> None:
        """Refuse requests that wait, and new ones. The reply that is under way goes on to its end."""
        self.state.queue.stop()

    def close(self) -> None:
        """End the reply that is under way, save the sessions if they have a folder, and free the model."""
        self.state.queue.close()
        self.state.pool.close()
        self._give_back()

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        self.close()


def app(
    model: str | os.PathLike[str] | None = None, *, settings: Settings | None = None, **options: Any
) -> Application:
    """Load a model; return the application over it.

    model, options: as for `edgekv.Runtime`, but `grammars` is True by default: JSON schemas and tool calls take memory
    """
    options = {"grammars": True} | options
    return Application.over(lambda: edgekv.Runtime(model, **options), settings or Settings())


async def _refused(request: Request, error: Exception) -> Response:
    """Answer a request that failed before its endpoint had a reply."""
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        error = ApiError(error.status_code, code, f"{request.method} is not answered at this address")
    return ErrorResponse(api_error_of(error), error_renderer(request.url.path))


register_warmup(lambda: warm_up(lambda: Application(SessionPool(warmup_runtime, max_sessions=1), Settings())))
