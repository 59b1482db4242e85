"""The end of a prompt, which is fed after its last compaction: a question lies in every head when its reply begins."""

from __future__ import annotations

import numpy as np
import pytest

import edgekv

BUDGET, BLOCK = 64, 32
TOKENS = np.random.default_rng(3).integers(3, 250, 300).tolist()
PROBE = np.random.default_rng(4).integers(3, 250, 12).tolist()


@pytest.fixture
def opened(tiny_model):
    def make(**options):
        common = {"memory": "1GiB", "threads": 1, "budget": BUDGET, "block": BLOCK}
        return edgekv.Runtime(tiny_model(n_ctx_train=1024), **common | options)

    return make


@pytest.mark.parametrize(
    ("options", "probe", "n_held"),
    [
        ({}, PROBE, 12),
        ({}, PROBE * 3, 16),  # half of the spare cells are left to the reply
        ({"evict_every": 8}, PROBE, 4),
        ({"evict_every": 1}, PROBE, 1),
        ({"ubatch": 5}, PROBE, 12),
        ({}, (), 0),
    ],
    ids=["whole", "long", "some", "one", "pieces", "no question"],
)
def test_the_end_of_a_prompt_comes_after_the_last_compaction(opened, options, probe, n_held):
    with opened(**options) as runtime:
        loop, n_read = runtime.block_loop, []
        assert loop.read(TOKENS, lambda n: not n_read.append(n), probe)
        assert sum(n_read) == loop.cache.n_past == len(TOKENS)
        assert loop.cache.n_cells == BUDGET + n_held
        newest = list(range(len(TOKENS) - n_held, len(TOKENS)))
        for layer, heads in enumerate(loop.cache.budgets()):
            for head in range(len(heads)):
                held = loop.cache.positions(layer, head).tolist()
                assert held[len(held) - n_held :] == newest


def test_nothing_is_evicted_before_the_reply_has_the_other_half_of_the_spare_cells(opened):
    with opened() as runtime:
        loop = runtime.block_loop
        loop.read(TOKENS, lambda n: True, PROBE * 3)
        n_evictions = loop.work.evictions
        for _ in range(BLOCK // 2):
            loop.step(7)
        assert loop.work.evictions == n_evictions
        loop.step(7)
        assert loop.work.evictions == n_evictions + 1


def test_a_text_without_a_reply_is_compacted_whole(opened):
    with opened() as runtime:
        loop = runtime.block_loop
        assert loop.read(TOKENS, lambda n: True, PROBE, want_logits=False)
        assert loop.cache.n_cells == BUDGET


@pytest.mark.parametrize("n_tokens", [1, 11, 12, 13])
def test_a_prompt_no_longer_than_its_question_is_read(opened, n_tokens):
    with opened() as runtime:
        loop = runtime.block_loop
        assert loop.read(TOKENS[:n_tokens], lambda n: True, PROBE)
        assert loop.cache.n_past == loop.cache.n_cells == n_tokens
        assert np.isfinite(np.ctypeslib.as_array(runtime.context.logits(), (runtime.model.n_vocab,))).all()


@pytest.mark.parametrize("n_read", [4, 12])
def test_reading_may_stop_within_the_question(opened, n_read):
    """Tokens that were fed until then stay; at the last token of all the prompt counts as read."""
    with opened(ubatch=4) as runtime:
        loop, first = runtime.block_loop, len(TOKENS) - len(PROBE)
        is_whole = loop.read(TOKENS, lambda n: loop.cache.n_past < first + n_read, PROBE)
        assert is_whole == (n_read == len(PROBE))
        assert loop.cache.n_past == first + n_read
