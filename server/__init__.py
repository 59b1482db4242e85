"""A model under a memory ceiling for programs that speak HTTP: OpenAI's API and others. The command is `edgekv serve`.

Needs the extra: pip install 'edgekv[server]'.

    job.py, failures.py       what is asked of the model, what comes of it, and what can go wrong: of no protocol
    jobs.py, pool.py          the queue in front of the model, and the sessions that its requests go on with
    room.py, shelf.py         the memory that clients can take, and the disk that takes what is long
    answer.py, body.py        HTTP for all endpoints: replies as a whole and in pieces, and bodies that are read
    written.py, sending.py    JSON, of which what is long is made while it is written; sent in parts
    chat_completions.py, ...  one API a module: its body becomes a Job, and the job's events become its reply
    application.py            the ASGI application of all of it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Application", "Settings", "app"]

if TYPE_CHECKING:
    from .application import Application, app
    from .settings import Settings
else:

    def __getattr__(name):
        """What serves is imported when it is used, so that the other modules can be imported alone."""
        import importlib

        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = "settings" if name == "Settings" else "application"
        value = globals()[name] = getattr(importlib.import_module(f".{module}", __name__), name)
        return value
