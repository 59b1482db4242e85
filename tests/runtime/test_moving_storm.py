"""A part of tests/stress/moving_ceiling.py: random moves of a ceiling while four sessions read and reply."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "stress"))

import moving_ceiling


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="the resident memory of a worker is read in /proc")
def test_memory_follows_a_ceiling_that_moves_at_random_and_no_reply_is_lost(tiny_model, monkeypatch):
    monkeypatch.setattr(moving_ceiling, "PAUSE_S", 0.02)
    model = tiny_model(n_ctx_train=1 << 20, n_layer=8, n_head=4, n_head_kv=4, head_dim=64)
    with moving_ceiling.opened("isolated", model) as place:
        found = moving_ceiling.storm(place, 20, seed=0)
    assert found["lost"] == []
    assert sum(found["replies"].values()) >= moving_ceiling.N_SESSIONS
    assert found["most_over_a_ceiling"] <= 0
    assert found["peak_over_the_highest"] <= 0
