"""Sessions that share steps, on every family: each says what it says alone, or the model is refused by name."""

from __future__ import annotations

import pytest
from at_once import alone, joined_steps, together
from diagonals import by_night
from evicting import OF_EACH_STATE, SHALLOW, architecture_of

import edgekv
from edgekv.binding.model import Model
from edgekv.server.slots import n_slots

TEXT = "the old house by the river stood empty since the flood of that year " * 6
OPTIONS = {"memory": "4GiB", "budget": 64, "block": 32, "recent": 16, "threads": 1, "probe_tokens": 16}
SHARING = [name for name in SHALLOW if architecture_of(name).kind in ("plain", "latent")]

OTHERS = [name for name in SHALLOW if name not in SHARING]


def conversation(session, i):
    """Read a text of its own; return the reply, and what the session holds then."""
    session.read(f"{TEXT} {i}")
    return "".join(session.chat(f"What is there {i}?", max_tokens=16)), session.n_past, session.budgets()


@pytest.mark.parametrize("name", by_night(SHARING, OF_EACH_STATE))
def test_sessions_at_once_say_what_each_says_alone(family_model, name, monkeypatch):
    monkeypatch.setattr(Model, "is_end", lambda model, token: False)
    sizes = joined_steps(monkeypatch)
    path = family_model(name, quantization="Q8_0")  # products are to the bit what they are alone, in whatever step
    with edgekv.Runtime(path, parallel=2, repack=False, **OPTIONS) as runtime:
        found = together(runtime, 2, conversation)
        assert 2 in map(len, sizes)
        assert found == [alone(runtime, i, conversation) for i in range(2)]


@pytest.mark.parametrize("name", by_night(OTHERS, OF_EACH_STATE))
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
