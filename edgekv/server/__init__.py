"""A model under a memory ceiling for programs that speak HTTP: OpenAI's API and others. The command is `edgekv serve`.

Needs the extra `server`.

    reply_request.py           a request to the model and the events of its reply, in no API's words
    api_errors.py              errors of requests, which each API renders
    cancel_flag.py             ends a reply early
    scheduler.py               the queue in front of the model
    session_reply.py           one reply: a session's pieces become events
    session_pool.py            the sessions that requests continue
    admission.py, spill.py     the memory that requests may hold, and the disk, which takes long texts
    api/                       one API a module: it makes a request of a body, and a reply of the request's events
    json_stream.py             bodies for clients, whose long lists are made while they are written
    streaming.py               replies over HTTP, whole or as a stream
    application.py             the ASGI application of all of it, with a route for each endpoint
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Application", "Settings", "app"]

if TYPE_CHECKING:
    from .application import Application, app
    from .server_settings import Settings
else:

    def __getattr__(name):
        """Import a name when it is used, so that the other modules can be imported alone."""
        import importlib

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = "server_settings" if name == "Settings" else "application"
        value = globals()[name] = getattr(importlib.import_module(f".{module}", __name__), name)
        return value
