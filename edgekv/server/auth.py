"""Checks in front of every endpoint: names in Host, pages of other origins, API keys."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from edgekv.api.api_errors import ApiError
from edgekv.api.server_settings import HEAD_BYTES, Settings

from .streaming import ErrorResponse, error_renderer, path_of


class AuthMiddleware:
    """ASGI middleware that answers requests that must not come through.

    A page of the web cannot read the answers of a server on this machine, but it can send requests to it. So a Host
    that is none of the server's names is refused (a name that was made to point here), and so is the Origin of
    another page.
    """

    def __init__(self, app: ASGIApp, settings: Settings, open_paths: Sequence[str]) -> None:
        """open_paths: paths that need no key: clients watch a server there, or get the page that asks for one"""
        self._app = app
        self._settings = settings
        self._open = frozenset(open_paths)
        self._hosts = frozenset(name.lower() for name in settings.hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in settings.origins)
        self._keys = [key.encode() for key in settings.api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            error = self._refusal(path_of(scope), Headers(scope=scope))
            if error is not None:
                await ErrorResponse(error, error_renderer(scope))(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, path: str, headers: Headers) -> ApiError | None:
        if sum(len(name) + len(value) for name, value in headers.raw) > HEAD_BYTES:
            return ApiError(431, "request_too_large", f"the head has more than {HEAD_BYTES} bytes; send less")
        host = headers.get("host", "")
        if self._hosts and _name_of(host) not in self._hosts:
            return ApiError(421, "unknown_host", "the header Host names another server; ask this one by a name it has")
        origin = headers.get("origin")
        if origin is not None and not self._may_ask(origin.lower(), host.lower()):
            what = f"pages of this origin may not ask this server; edgekv serve --allow-origin {origin[:200]} lets them"
            return ApiError(403, "foreign_origin", what)
        if self._keys and path not in self._open and not self._has_key(headers):
            return ApiError(401, "invalid_api_key", "send a key of this server as Authorization: Bearer KEY")
        return None

    def _may_ask(self, origin: str, host: str) -> bool:
        try:
            return origin in self._origins or urlsplit(origin).netloc == host
        except ValueError:
            return False

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given = given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        # all are compared, each in constant time, so that how long it takes says nothing of any of them
        found = [hmac.compare_digest(given.encode("latin-1", "replace"), key) for key in self._keys]
        return any(found)


def _name_of(host: str) -> str:
    """A header Host without its port: a name, or an address without brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
