"""A model under a memory ceiling for programs that speak HTTP: OpenAI's API and others. The command is `edgekv serve`.

Needs the extra `server`.

    cancel_flag.py             ends a reply early
    scheduler.py               the queue in front of the model
    session_reply.py           one reply: a session's pieces become events
    session_pool.py            the sessions that requests continue
    admission.py, spill.py     the memory that requests may hold, and the disk, which takes long texts
    streaming.py               replies over HTTP, whole or as a stream
    application.py             the ASGI application of all of it, with a route for each endpoint
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Application", "Settings", "app"]

if TYPE_CHECKING:
    from edgekv.api.server_settings import Settings

    from .application import Application, app
else:

    def __getattr__(name):
        """Import a name when it is used, so that the other modules can be imported alone."""
        import importlib

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = "edgekv.api.server_settings" if name == "Settings" else "edgekv.server.application"
        value = globals()[name] = getattr(importlib.import_module(module), name)
        return value
