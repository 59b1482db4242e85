"""A feed or a probe that fails leaves the cells as they were, and the session goes on."""

from __future__ import annotations

import numpy as np
import pytest
from command import words
from failing import failing_after

import edgekv

BUDGET, BLOCK, N_LAYER, N_HEAD = 64, 32, 2, 2


@pytest.fixture
def runtime(tiny_model):
    path = tiny_model(n_layer=N_LAYER, n_ctx_train=2048)
    with edgekv.Runtime(
        path, memory="4GiB", budget=BUDGET, block=BLOCK, recent=16, threads=1, policy="snapkv", prompt_lookup="on"
    ) as opened:
        yield opened


def cells(cache):
    """Positions, keys and values of every head."""
    heads = [(layer, head) for layer in range(N_LAYER) for head in range(N_HEAD)]
    rows = [cache.rows(*head, values=values)[0] for head in heads for values in (False, True)]
    return [cache.positions(*head) for head in heads] + rows


@pytest.mark.parametrize("n_calls", [0, 5, 20])
@pytest.mark.parametrize("name", ["feed", "probe", "feed_draft"])
def test_the_cells_are_as_before(runtime, name, n_calls):
    cache = runtime.block_loop.cache
    cache.feed(list(range(3, 3 + BLOCK)))
    before = cells(cache)
    given = (5, [6, 7]) if name == "feed_draft" else ([5, 6, 7],)
    with failing_after(runtime, n_calls), pytest.raises(edgekv.NativeError, match="llama_decode"):
        getattr(cache, name)(*given)
    assert cache.n_past == BLOCK
    with pytest.raises(edgekv.NativeError, match="no drafted token"):
        cache.accept()
    for then, now in zip(before, cells(cache), strict=True):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize("n_calls", [0, 30, 200])
def test_the_session_goes_on(runtime, n_calls):
    with runtime.session() as session:
        list(session.chat(words(60), max_tokens=4))
        n_past = session.n_past
        with failing_after(runtime, n_calls), pytest.raises(edgekv.NativeError, match="llama_decode"):
            list(session.chat(words(200), max_tokens=20))
        assert n_past <= session.n_past
        list(session.chat(words(80), max_tokens=20))
        assert session.stats.finish_reason in ("end", "length")
        kept = [session.kept_positions(layer, head) for layer in range(N_LAYER) for head in range(N_HEAD)]
        assert -(-sum(map(len, kept)) // len(kept)) == session.n_cells
        assert all((np.diff(of) > 0).all() and of[-1] == session.n_past - 1 for of in kept)
