"""Ctrl-C while a scorer of the user's own scores: it is raised, and no cell was evicted by scores that never came."""

from __future__ import annotations

import numpy as np
import pytest
from interrupted import interrupted_at, interruptions
from small import words

from edgekv import policies
from edgekv.binding.callback import Callback

LOST = 0  # line at which ctypes drops the exception: before the callback's first


def spread(keys, queries, positions):
    return (keys.std(axis=2) + queries.mean() * 0 + positions * 0).astype(np.float32)


@pytest.fixture(
    params=["own+critical+pyramid", *(pytest.param(it, marks=pytest.mark.nightly) for it in ("own", "own+caote"))]
)
def runtime(request, open_runtime):
    policies.register("own", spread, rows=4)
    try:
        with open_runtime(policy=request.param, focus=False, isolated=False) as rt:
            yield rt
    finally:
        policies.unregister("own")


def test_an_interrupt_at_every_line_of_a_scoring(runtime):
    """The cells are as before. After the last line all scores are there, and cells may be evicted by them."""
    block_loop, cache = runtime.block_loop, runtime.block_loop.cache
    assert block_loop.read(range(3, 90), lambda n: True)
    before = cache.snapshot()

    def shrink():
        cache.restore(before)
        cache.feed(range(3, 35))
        fed.append(cache.snapshot().data.tobytes())
        block_loop.shrink()

    fed = []
    shrink()
    expected = cache.snapshot().data.tobytes()
    n_points, n_evicted = 0, 0
    for raised, result in interruptions(Callback._answer, shrink):
        assert result is raised
        found = cache.snapshot().data.tobytes()
        assert found in (fed[-1], expected)
        n_points, n_evicted = n_points + 1, n_evicted + (found == expected)
    assert n_points > 100
    assert n_evicted <= 2  # the last, which was not interrupted, and the one before
    assert found == expected


@pytest.mark.usefixtures("talkative")
def test_a_session_that_was_interrupted_goes_on(runtime):
    with runtime.session() as session:
        session.read(words(40))
        n_past = session.n_past
        raised, result = interrupted_at(LOST, Callback._answer, lambda: session.read(words(90)), opcodes=False)
        assert result is raised
        assert session.n_past >= n_past
        assert "".join(session.chat("What was it?", max_tokens=40))
