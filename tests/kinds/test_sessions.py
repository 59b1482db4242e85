"""Sessions of every family that runs: snapshots, and the same in a worker process."""

from __future__ import annotations

import pytest
from evicting import RUN

import edgekv
from edgekv.binding.model import Model

TEXT = "the old house by the river stood empty since the flood of that year " * 12


@pytest.fixture
def talkative(monkeypatch):
    """Random weights may end a reply at any token; here none does."""
    monkeypatch.setattr(Model, "is_end", lambda model, token: False)


def replies(path, **options):
    """A reply, the same after going back to a snapshot, and the same in another session; and what it saw."""
    common = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "probe_tokens": 16}
    with edgekv.Runtime(path, **common, **options) as runtime:
        with runtime.session() as session:
            session.read(TEXT)
            taken = session.snapshot()
            found = ["".join(session.chat("What is there?", max_tokens=16))]
            "".join(session.chat("And now another question?", max_tokens=4))
            session.restore(taken)
            found.append("".join(session.chat("What is there?", max_tokens=16)))
        with runtime.session() as session:
            session.restore(taken)
            found.append("".join(session.chat("What is there?", max_tokens=16)))
            return found, session.n_past


@pytest.mark.parametrize("policy", ["keydiff", "snapkv"])
@pytest.mark.parametrize("name", RUN)
def test_a_session_goes_back_to_its_snapshot(talkative, family_model, name, policy):
    (first, again, elsewhere), n_past = replies(family_model(name), policy=policy)
    assert first == again == elsewhere
    assert n_past > 200


@pytest.mark.parametrize("name", RUN)
def test_a_worker_says_the_same(family_model, name):
    """Where a reply ends by itself, too: nobody talks on in the worker."""
    assert replies(family_model(name), isolated=True) == replies(family_model(name))


@pytest.mark.parametrize("name", ["lfm2", "gemma3", "mamba2"])
def test_what_cannot_be_dropped_token_by_token_is_not_drafted(family_model, name):
    with pytest.raises(edgekv.ConfigError, match="keeps sliding windows or recurrent states; give speculate=off"):
        edgekv.plan(family_model(name), memory="4GiB", budget=64, block=32, speculate="auto")
