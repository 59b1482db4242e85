"""Shared fixtures of the runtime tests; a module may have an `open_runtime` of its own."""

from __future__ import annotations

import os
import shutil
from functools import partial

import pytest
from small import SETTINGS

import edgekv
from edgekv.binding import library
from edgekv.binding.cache import Cache
from edgekv.binding.model import Model
from edgekv.worker import worker_process


@pytest.fixture(scope="module")
def open_runtime(tiny_model):
    """A function that opens a runtime over a tiny model; `head_dim=64` has its quantised keys rotated."""

    def open_runtime(n_ctx_train=2048, quantization="F32", **options):
        path = tiny_model(n_layer=2, n_ctx_train=n_ctx_train, head_dim=64, quantization=quantization)
        return edgekv.Runtime(path, **(SETTINGS | options))

    return open_runtime


@pytest.fixture(scope="module", params=[False, True], ids=["here", "isolated"])
def runtime(request, open_runtime):
    with open_runtime(isolated=request.param) as rt:
        yield rt


@pytest.fixture(scope="module")
def local_runtime(open_runtime):
    """For tests that look inside."""
    with open_runtime(isolated=False) as rt:
        yield rt


@pytest.fixture(scope="module")
def workers():
    """Every worker process that the tests of a module start; all must have ended at last."""
    started = []
    start = worker_process._start

    def start_and_remember(*ends):
        started.append(start(*ends))
        return started[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_process, "_start", start_and_remember)
        yield started
    assert all(worker.poll() is not None for worker in started), "a worker outlived its runtime"


@pytest.fixture
def session(runtime):
    with runtime.session() as session:
        yield session


@pytest.fixture(scope="session")
def uneven_model(tmp_path_factory):
    """Path of a tiny model of the shape `uneven.UNEVEN`, whose heads differ in what they need."""
    pytest.importorskip("gguf")
    from uneven import make_uneven

    return make_uneven(tmp_path_factory.mktemp("uneven") / "model.gguf")


@pytest.fixture
def talkative(monkeypatch):
    """Random weights may end a reply at any token; here none does."""
    monkeypatch.setattr(Model, "is_end", lambda model, token: False)


@pytest.fixture
def fed(monkeypatch):
    """Tokens by position, as caches of this process take them, whatever is raised meanwhile."""
    seen = {}

    def watched(name, tokens_of):
        method = getattr(Cache, name)

        def call(cache, *arguments, **further):
            n_past = partial(library.load().edgekv_cache_n_past, cache._handle)  # passes no line of edgekv's
            before, tokens = n_past(), tokens_of(*arguments)
            try:
                method(cache, *arguments, **further)
                assert n_past() == before + len(tokens)
            finally:
                seen.update(zip(range(before, n_past()), tokens, strict=False))

        monkeypatch.setattr(Cache, name, call)

    drafted = []
    watched("feed", lambda tokens: list(tokens))
    watched("feed_draft", lambda token, draft: drafted.__setitem__(slice(None), draft) or [token])
    watched("accept", lambda: [drafted.pop(0)])
    return seen


@pytest.fixture
def own_model(model, tmp_path):
    """A copy of a module's model that may be spoilt."""
    path = tmp_path / "model.gguf"
    shutil.copy(model, path)
    os.utime(path, (0, 0))  # long ago, so that the clock of the file system tells a change now
    return path
