"""The ASGI application: endpoints over one model."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import edgekv
from edgekv.api import (
    chat_completions,
    completions,
    llama_completions,
    messages,
    ollama_api,
    responses,
    tokenization,
)
from edgekv.api.api_errors import ApiError, api_error_of
from edgekv.api.endpoint import Endpoint, Query
from edgekv.api.request_bytes import bytes_of
from edgekv.api.server_settings import Settings
from edgekv.errors import EdgeKVError
from edgekv.warmup import register_warmup, reserve

from . import conversations, document_upload, info, move_ceiling, ollama_info, page
from .admission import MemoryBudget
from .auth import AuthMiddleware
from .metrics import Metrics, MetricsMiddleware
from .read_body import read_body
from .scheduler import RequestQueue
from .series import Series
from .session_pool import SessionPool
from .slots import open_runtime
from .state import ServerState
from .state_folder import StateFolder
from .streaming import BudgetedResponse, ChunkedBodies, ErrorResponse, ReplyResponse, error_renderer
from .warmup_requests import warm_up, warmup_runtime

log = logging.getLogger("edgekv.server")

ENDPOINTS: tuple[Endpoint[Any], ...] = (
    chat_completions.endpoint,
    completions.endpoint,
    llama_completions.completing,
    llama_completions.infilling,
    responses.endpoint,
    messages.endpoint,
    ollama_api.chatting,
    ollama_api.generating,
)
QUERIES: tuple[Query[Any], ...] = (
    messages.counting,
    responses.counting,
    chat_completions.counting,
    tokenization.tokenizing,
    tokenization.detokenizing,
    chat_completions.applying,
)

# remedies for clients of other servers, by the end of the address that they ask at
ELSEWHERE = {
    "embeddings": "this server generates text, and embeds none",
    "embedding": "this server generates text, and embeds none",
    "rerank": "this server generates text, and ranks none",
    "reranking": "this server generates text, and ranks none",
    "slots": "/props tells how many there are, and /metrics how many are busy",
    "lora-adapters": "this server loads no adapters",
    "embed": "this server generates text, and embeds none",
    **dict.fromkeys(
        ("pull", "push", "create", "copy", "delete"), "this server has one model; `edgekv pull` brings others"
    ),
}

GETS = (*info.routes, *ollama_info.routes, *page.routes)
POSTED = (*(it.path for it in ENDPOINTS), *(it.path for it in QUERIES), document_upload.PATH)
PATHS = {*POSTED, *(it.path for it in (*GETS, *conversations.routes, *move_ceiling.routes))}
OPEN = ("/health", "/ping", *(route.path for route in page.routes))  # paths that need no key


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
            pool.answer,
            n_slots=pool.runtime.options.parallel,
            limit=settings.queue,
            seconds=settings.request_s,
            memory=memory,
            ended=counters.count_reply,
        )
        self.state = ServerState(settings, pool, queue, counters, memory, settings.name or pool.runtime.plan.model.stem)
        handlers = {ApiError: _refused, HTTPException: _refused, EdgeKVError: _refused, Exception: _refused}
        posts = [*map(self._replying, ENDPOINTS), *map(self._working, QUERIES)]
        short = [Route(_short(post.path), post.endpoint, methods=["POST"]) for post in posts]
        routed = Starlette(
            routes=[*posts, *short, *document_upload.routes, *conversations.routes, *move_ceiling.routes, *GETS],
            exception_handlers=handlers,
            lifespan=self._lifespan,
        )
        routed.state.server = self.state
        guarded: ASGIApp = AuthMiddleware(routed, settings, OPEN)
        if settings.origins:  # outside of the checks: the first request of a browser (CORS preflight) bears no key
            guarded = CORSMiddleware(
                guarded, settings.origins, allow_methods=["GET", "POST"], allow_headers=["*"], max_age=600
            )
        self._app = ChunkedBodies(MetricsMiddleware(guarded, counters, PATHS))

    @classmethod
    def over(cls, open_runtime: Callable[[], edgekv.Runtime], settings: Settings) -> Application:
        """Open a runtime, and another one if its worker process dies; return the application over it.

        Raises ConfigError for fewer conversations than the runtime has slots, and the errors of `open_runtime`.
        """
        with ExitStack() as made:
            give_back = reserve(settings.memory_bytes)
            made.callback(give_back)
            state = None if settings.state_dir is None else StateFolder(settings.state_dir, settings.state_bytes)
            pool = SessionPool(open_runtime, max_sessions=settings.sessions, state=state, swap_dir=settings.swap_dir)
            made.callback(pool.close)
            settings.check_slots(pool.runtime.options.parallel)
            made.pop_all()
        return cls(pool, settings, give_back=give_back)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    def stop(self) -> None:
        """Refuse requests that wait, and new ones. Replies that are under way go on to their end."""
        self.state.queue.stop()

    def close(self) -> None:
        """End the replies that are under way, save the sessions if they have a folder, and free the model."""
        self.state.queue.close()
        self.state.pool.close()
        self._give_back()

    def _replying(self, endpoint: Endpoint[Any]) -> Route:
        """Return the route of an endpoint whose replies the model generates."""

        async def answer(request: Request) -> ReplyResponse | JSONResponse:
            state, settings = self.state, self.state.settings
            body = await read_body(request, endpoint.body, settings, state.memory)
            found = endpoint.known(body, state.model_name)
            if found is not None:
                return JSONResponse(found)
            reply_request = endpoint.parse(body, settings)
            # a body of one reply is not kept while it waits: the queue has its long texts on the disk
            several = reply_request.n_choices > 1
            others = endpoint.others(body, reply_request) if several else ()
            running = Series(reply_request, others, state.queue.submit, state.memory, bytes_of(body) if several else 0)
            renderer = endpoint.render(body, reply_request, state.model_name)
            return ReplyResponse(
                running,
                renderer,
                endpoint.error_body,
                stream_type=endpoint.stream_type if body.streams else None,
                ping=endpoint.ping,
                ping_s=settings.ping_s,
            )

        return Route(endpoint.path, answer, methods=["POST"])

    def _working(self, query: Query[Any]) -> Route:
        """Return the route of an endpoint that is answered without a reply of the model."""

        async def answer(request: Request) -> Response:
            state = self.state
            work = query.parse(await read_body(request, query.body, state.settings, state.memory))
            with state.memory.reserved(work.n_bytes):
                found = await anyio.to_thread.run_sync(work.run, state.pool.runtime)
            return BudgetedResponse(found, state.memory)

        return Route(query.path, answer, methods=["POST"])

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        self.close()


def app(
    model: str | os.PathLike[str] | None = None, *, settings: Settings | None = None, **options: Any
) -> Application:
    """Load a model; return the application over it.

    model, options: as for `edgekv.Runtime`, but `grammars` is True by default: JSON schemas and tool calls take memory.
        If `parallel` is left out, the ceiling decides how many requests are answered at a time
    """
    options = {"grammars": True} | options
    settings = settings or Settings()
    return Application.over(lambda: open_runtime(model, settings.sessions, **options), settings)


async def _refused(request: Request, error: Exception) -> Response:
    """Answer a request that failed before its endpoint had a reply."""
    if isinstance(error, HTTPException):
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid_request")
        error = ApiError(error.status_code, code, _unanswered(request.method, request.url.path, error.status_code))
    return ErrorResponse(api_error_of(error), error_renderer(request.scope))


def _short(path: str) -> str:
    """Return an address without its version, which some clients leave out."""
    return path.removeprefix("/v1")


def _unanswered(method: str, path: str, status: int) -> str:
    """Return the message for a client that asks at an unknown address, or with the wrong method."""
    if status == 405:
        return f"{method} is not answered at {path[:80]}; ask it with {'POST' if method == 'GET' else 'GET'}"
    remedy = ELSEWHERE.get(path.rstrip("/").rpartition("/")[2])
    if remedy is None:
        remedy = f"the addresses are {', '.join(POSTED)} and /v1/models"
    return f"{method} is not answered at {path[:80]}: {remedy}"


register_warmup(lambda: warm_up(lambda: Application(SessionPool(warmup_runtime, max_sessions=1), Settings())))
