"""A server over a tiny model, asked without a network."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

pytest.importorskip("starlette")
from asgi import fetched

from edgekv.binding.model import Model
from edgekv.server import Settings, app

SMALL = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "probe_tokens": 16, "parallel": 1}


@pytest.fixture(scope="session")
def open_server(tiny_model, tmp_path_factory):
    """A context manager over an application with a tiny model; its arguments are those of `Settings` and `Runtime`.

    tokenizer, quantization: those of `make_tiny`
    """

    @contextlib.contextmanager
    def opened(*, options=None, tokenizer="bpe", quantization="F32", **settings):
        model = {"tokenizer": tokenizer, "quantization": quantization}
        path = tiny_model(n_layer=2, n_ctx_train=2048, head_dim=64, **model)
        folder = tmp_path_factory.mktemp("rest")
        quiet = {"ping_s": 1000.0}  # a stream of a busy machine has no parts that say nothing
        settings = Settings(**({"hosts": (), "swap_dir": folder} | quiet | settings))
        application = app(path, settings=settings, **(SMALL | (options or {})))
        try:
            yield application
        finally:
            application.close()

    return opened


@pytest.fixture(scope="module")
def server(open_server):
    with open_server() as application:
        yield application


@pytest.fixture
def ask(server):
    """A function that sends a request to `server` and returns the answer."""

    def send(path, body=None, **further):
        return asyncio.run(fetched(server, path, body, **further))

    return send


@pytest.fixture
def talkative(monkeypatch):
    """Random weights may end a reply at any token; here none does."""
    monkeypatch.setattr(Model, "is_end", lambda model, token: False)
    monkeypatch.setattr(Model, "ends", property(lambda model: ()))  # not what the model keeps
