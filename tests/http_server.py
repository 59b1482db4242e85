"""An application that a thread of this process serves, for clients that need a network."""

from __future__ import annotations

import contextlib
import socket
import threading

import uvicorn
from children import LIMIT_S


@contextlib.contextmanager
def served(application):
    """The address of an application that a thread serves."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(application, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=5)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(LIMIT_S)
