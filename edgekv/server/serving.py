"""The server as a process: uvicorn over the application, until a signal ends it."""

from __future__ import annotations

import logging
import signal
import socket
import sys

import uvicorn

from edgekv.api.server_settings import HEAD_BYTES
from edgekv.errors import ConfigError

from .application import Application
from .ceiling_signals import CeilingSignals
from .connection import Connection

END_S = 30  # seconds for the reply that is under way when a signal comes
KEEP_ALIVE_S = 20


class Server(uvicorn.Server):
    """A uvicorn server that refuses the requests that wait, as soon as it is to end."""

    def __init__(self, config: uvicorn.Config, application: Application) -> None:
        super().__init__(config)
        self._application = application

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let the reply that is under way end, then shut down."""
        self._application.stop()
        await super().shutdown(sockets)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises ConfigError for an address that cannot be had."""
    try:
        family = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"host={host!r} with port={port} cannot be listened at: {error}; name others") from error


def serve(application: Application, listener: socket.socket) -> None:
    """Answer requests until SIGTERM, which ends the process quietly, or Ctrl-C. The application is closed then.

    SIGUSR1 and SIGUSR2 move its ceiling meanwhile.
    """
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # uvicorn warns of everything that is no HTTP request
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # raised again by uvicorn when all is closed

    class OneOf(Connection):
        limit = application.state.settings.connections

    config = uvicorn.Config(
        application,
        loop="asyncio",
        http=OneOf,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        h11_max_incomplete_event_size=HEAD_BYTES,
        timeout_graceful_shutdown=END_S,
    )
    with CeilingSignals(application.state.pool):
        Server(config, application).run(sockets=[listener])
