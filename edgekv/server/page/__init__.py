"""The page at `/`: a chat that shows its memory. Its files lie in `assets`, and ask nothing of any other server.

It uses the public endpoints alone, with addresses relative to its own, so an application that is mounted below another
one has it too. It holds no secret, and so it is given to everybody: what it asks for bears the key.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import PurePath

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}

# nothing from elsewhere, nothing inline, and no text may become markup, whatever a model says
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

HEADERS = {
    "Cache-Control": "no-cache",  # a client asks again each time, and gets the file only if it changed
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def _route(name: str, body: bytes) -> Route:
    """Return the route of a file, which is sent again only if it changed."""
    etag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers, media_type = HEADERS | {"ETag": etag}, TYPES[PurePath(name).suffix]

    async def answer(request: Request) -> Response:
        known = [tag.strip().removeprefix("W/") for tag in request.headers.get("If-None-Match", "").split(",")]
        if etag in known or "*" in known:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=media_type)

    return Route("/" if name == "index.html" else f"/page/{name}", answer)


# a route for each file; there is no other name to ask for
routes = [_route(it.name, it.read_bytes()) for it in files(__name__).joinpath("assets").iterdir()]
