"""Sessions that share steps, on every family: each says what it says alone, or the model is refused by name."""

from __future__ import annotations

import threading

import pytest
from evicting import SHALLOW, architecture_of

import edgekv
from edgekv.binding.cache import Cache
from edgekv.binding.model import Model
from edgekv.server.slots import n_slots
from edgekv.sessions import steps

TEXT = "the old house by the river stood empty since the flood of that year " * 12
OPTIONS = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "probe_tokens": 16}
LIMIT_S = 100
SHARING = [name for name in SHALLOW if architecture_of(name).kind in ("plain", "latent")]


def conversation(session, i):
    """Read a text of its own; return the reply, and what the session holds then."""
    session.read(f"{TEXT} {i}")
    return "".join(session.chat(f"What is there {i}?", max_tokens=16)), session.n_past, session.budgets()


@pytest.mark.parametrize("name", SHARING)
def test_sessions_at_once_say_what_each_says_alone(family_model, name, monkeypatch):
    monkeypatch.setattr(Model, "is_end", lambda model, token: False)
    monkeypatch.setattr(steps, "SOON_S", 10 * LIMIT_S)  # steps wait for every reply that pauses
    sizes, feed = [], Cache.feed_together
    monkeypatch.setattr(Cache, "feed_together", staticmethod(lambda feeds: (sizes.append(len(feeds)), feed(feeds))[1]))
    found, ready = [None, None], threading.Barrier(2)

    def run(i):
        try:
            with runtime.session() as session:
                ready.wait(LIMIT_S)
                found[i] = conversation(session, i)
        except BaseException as error:
            found[i] = error

    with edgekv.Runtime(family_model(name), parallel=2, **OPTIONS) as runtime:
        threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()
        assert 2 in sizes
        for i in range(2):
            with runtime.session() as session:
                assert found[i] == conversation(session, i)


@pytest.mark.parametrize("name", [name for name in SHALLOW if name not in SHARING])
def test_windows_and_states_are_of_one_session_at_a_time(family_model, name):
    """A server asks such a model one thing at a time, without being told."""
    path = family_model(name)
    with pytest.raises(
        edgekv.UnsupportedModelError, match=r"2 slots, .* sliding windows or recurrent .* parallel=1 in Py"
    ):
        edgekv.Runtime(path, parallel=2, **OPTIONS)
    assert n_slots(path, 8, **OPTIONS) == 1
    with edgekv.Runtime(path, parallel=1, **OPTIONS) as runtime, runtime.session() as session:
        assert "".join(session.chat("What?", max_tokens=2)) is not None
