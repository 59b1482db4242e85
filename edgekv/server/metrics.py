"""Counters and the access log of requests. Neither holds a word of what was asked or said."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgekv.api.reply_request import Usage
from edgekv.planning.ledger import LedgerEntry

from .streaming import path_of

access = logging.getLogger("edgekv.server.access")

SECONDS = (0.1, 0.3, 1, 3, 10, 30, 100, 300)


class Metrics:
    """Counters of one server, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        self.requests = Counter("edgekv_requests", "Answered requests.", ["path", "status"], registry=registry)
        self._counts = {  # by field of `Usage`
            field: Counter(f"edgekv_{name}", text, registry=registry)
            for field, name, text in (
                ("prompt_tokens", "prompt_tokens", "Tokens of prompts."),
                ("cached_tokens", "cached_tokens", "Tokens of prompts that were not read again."),
                ("completion_tokens", "completion_tokens", "Tokens of replies."),
                ("evictions", "evictions", "Times that cells were evicted."),
                ("archived_bytes", "archived_bytes", "Bytes written to archives."),
                ("recalls", "recalls", "Times that archived tokens were recalled."),
                ("recalled_cells", "recalled_cells", "Cells of a head that recalls filled."),
                ("recall_s", "recall_seconds", "Time that recalls took."),
                ("archive_failed", "archive_failures", "Replies whose archive took no more, or gave none back."),
            )
        }
        self.seconds = Histogram(
            "edgekv_request_seconds", "From a request to the end of its answer.", buckets=SECONDS, registry=registry
        )
        self.first = Histogram(
            "edgekv_first_token_seconds",
            "From a request's turn to its first token.",
            buckets=SECONDS,
            registry=registry,
        )
        self._gauges = {
            name: Gauge(f"edgekv_{name}", text, registry=registry)
            for name, text in (
                ("ceiling_bytes", "The memory ceiling of the process with the model."),
                ("peak_bytes", "The most that it has held, as of the last reply."),
                ("resident_bytes", "What this process holds now."),
                ("budget_cells", "Cells that each layer and head keeps."),
                ("archived_tokens", "Evicted tokens that the archive of the last reply's conversation has."),
                ("queue", "Requests that wait."),
                ("slots", "Requests that may be answered at a time."),
                ("busy", "Requests that are answered now."),
                ("sessions", "Conversations that are kept."),
                ("worker_restarts", "Times that the process with the model was started again."),
                ("state_bytes", "Bytes of conversations and shared beginnings that a restart finds."),
                ("state_written_bytes", "Bytes written for them, without the rows of archives."),
            )
        }
        self._held = Gauge("edgekv_held_bytes", "What each part of the plan holds now.", ["owner"], registry=registry)

    def count_reply(self, usage: Usage, first_s: float) -> None:
        """Count a reply."""
        for field, counter in self._counts.items():
            counter.inc(getattr(usage, field))
        self.first.observe(first_s)
        self._gauges["archived_tokens"].set(usage.archived)
        self._gauges["peak_bytes"].set(usage.peak_bytes)

    def text(self, now: Mapping[str, float], ledger: Iterable[LedgerEntry] = ()) -> bytes:
        """Return all counters in Prometheus' format. now: values of gauges, by name"""
        for name, value in now.items():
            self._gauges[name].set(value)
        for entry in ledger:
            self._held.labels(entry.owner).set(entry.held_bytes)
        return generate_latest(self.registry)


class MetricsMiddleware:
    """ASGI middleware that counts requests, and logs a line for each when its reply has ended."""

    def __init__(self, app: ASGIApp, metrics: Metrics, paths: set[str]) -> None:
        """paths: counted one by one; all others count as one"""
        self._app = app
        self._metrics = metrics
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        status = n_bytes = 0

        async def counted(message: Message) -> None:
            nonlocal status, n_bytes
            status = message.get("status", status)
            n_bytes += len(message.get("body", b""))
            await send(message)

        try:
            await self._app(scope, receive, counted)
        finally:
            seconds = time.monotonic() - started
            path = path_of(scope)
            path = path if path in self._paths else "other"
            self._metrics.requests.labels(path, str(status)).inc()
            self._metrics.seconds.observe(seconds)
            client = (scope.get("client") or ("-",))[0]
            access.info("%s %s %s %d %d bytes %.3f s", client, scope["method"], path, status, n_bytes, seconds)
