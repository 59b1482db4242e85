"""What tests of runtimes share; each module that uses these has an `open_runtime` of its own."""

from __future__ import annotations

import pytest

from edgekv.binding.model import Model


@pytest.fixture(scope="module", params=[False, True], ids=["here", "isolated"])
def runtime(request, open_runtime):
    with open_runtime(isolated=request.param) as rt:
        yield rt


@pytest.fixture(scope="module")
def local_runtime(open_runtime):
    """For tests that look inside."""
    with open_runtime(isolated=False) as rt:
        yield rt


@pytest.fixture
def session(runtime):
    with runtime.session() as session:
        yield session


@pytest.fixture
def talkative(monkeypatch):
    """Random weights may end a reply at any token; here none does."""
    monkeypatch.setattr(Model, "is_end", lambda model, token: False)
