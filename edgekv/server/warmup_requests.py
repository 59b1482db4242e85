"""Warm-up requests, so that a plan measures what the server imports and builds for its first replies."""

from __future__ import annotations

import asyncio
import importlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from starlette.types import Message

import edgekv
from edgekv.generation.request import ProgressCallback
from edgekv.generation.stats import Stats

# modules that a reply imports when a request first asks for tools, a form or log probabilities
LATER = (
    "edgekv.generation.logprobs",
    "edgekv.generation.tool_calls",
    "edgekv.grammar.source",
    "edgekv.prompt.tool_form",
    "edgekv.prompt.tools",
)

_TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "text"}]}
_STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
_ASKED = (
    ("GET", "/metrics", None),
    ("GET", "/v1/models", None),
    ("POST", "/v1/chat/completions", _CHAT),
    ("POST", "/v1/chat/completions", _CHAT | _STREAM),
    ("POST", "/v1/chat/completions", _CHAT | {"messages": []}),
    ("POST", "/v1/chat/completions", _CHAT | {"tools": [_TOOL], "logprobs": True}),
    ("POST", "/v1/completions", {"prompt": "text"}),
    ("POST", "/completion", {"prompt": "text"}),
    ("POST", "/infill", {"input_prefix": "", "input_suffix": "", "stream": True}),
    ("POST", "/v1/responses", {"input": "text"}),
    ("POST", "/v1/responses", {"input": "text", "stream": True}),
    ("POST", "/v1/messages", _CHAT | {"max_tokens": 1}),
    ("POST", "/v1/messages", _CHAT | {"max_tokens": 1, "stream": True}),
    ("POST", "/v1/messages", _CHAT),
    ("POST", "/api/chat", _CHAT),
    ("POST", "/api/chat", _CHAT | {"stream": False}),
    ("POST", "/api/generate", {"prompt": "text", "options": {"num_ctx": 1}}),
    ("GET", "/nothing", None),
)


class WarmupSession:
    """A session without a model, whose replies are all one word."""

    closed, n_past, stats = False, 0, Stats(finish_reason="end")

    def continue_from(self, _history: object, *, progress: ProgressCallback, **_: object) -> Iterator[str]:
        """Yield a reply of one word."""
        progress(edgekv.Progress(1, 1, 1, 1))
        yield "text"

    def events(self, reply: Iterator[str]) -> Iterator[str]:
        """Return the events of a reply: its pieces, which wait for nothing."""
        return reply

    def cancel(self) -> None:
        """Do nothing."""

    close = cancel


def warmup_runtime() -> Any:
    """Return what a `SessionPool` uses of a runtime, without a model."""
    return SimpleNamespace(
        plan=SimpleNamespace(model=Path("nobody"), ceiling_bytes=1, budget_cells=1, n_ctx_train=1),
        ledger=(edgekv.LedgerEntry("kv", 1, 1, 1),),
        options=SimpleNamespace(focus=False, isolated=False, grammars=False, parallel=1),
        closed=False,
        alive=True,
        close=lambda: None,
        reply_opening=lambda: "",
        count_tokens=lambda _: 1,
        session=lambda *_, **__: WarmupSession(),
        stored=lambda *_, **__: nullcontext(SimpleNamespace(n_opening=0)),
    )


def warm_up(make: Callable[[], Any]) -> None:
    """Have an application answer some requests, in a thread of its own: the caller's may run an event loop."""
    thread = threading.Thread(target=lambda: asyncio.run(_asked(make())))
    thread.start()
    thread.join()


async def _asked(application: Any) -> None:
    for module in LATER:
        importlib.import_module(module)
    for method, path, body in _ASKED:
        await _answered(application, method, path, b"" if body is None else json.dumps(body).encode())
    application.close()


async def _answered(application: Any, method: str, path: str, body: bytes) -> None:
    coming: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if not coming:
            await asyncio.Event().wait()  # the client stays until it has its answer
        return coming.pop()

    async def send(message: Message) -> None:
        pass

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 1),
    }
    await application(scope, receive, send)
