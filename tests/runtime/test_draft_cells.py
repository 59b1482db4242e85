"""The cells of a draft: accepted ones are as if they had been fed, dropped ones as if they had never been decoded."""

from __future__ import annotations

import ctypes
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

from edgekv.binding import library
from edgekv.binding.cache import Cache
from edgekv.binding.model import Model
from edgekv.errors import ConfigError, NativeError
from edgekv.options import DRAFT_TOKENS, SHORT_DRAFT, Options
from edgekv.planning.estimate import cache_params_of

BUDGET = 48
OPTIONS = Options(block=32, recent=8, threads=1, probe_tokens=16, prompt_lookup="on")  # short drafts
LONG = replace(OPTIONS, block=128)
KINDS = [
    {"policy": "h2o"},
    {"policy": "snapkv(window=16)", "focus": False},
    {"policy": "keydiff+critical", "kv_type": "q8_0"},
    {"policy": "tova", "reposition": "always", "kv_type": "q4_0"},
    {"policy": "h2o+ada", "focus": False},
    {"policy": "tova", "focus_policy": "snapkv(window=16)+critical"},
]
TOKENS = np.random.default_rng(3).integers(3, 500, 400).tolist()
TOKEN, DRAFT, OTHER = 7, [11, 13, 17], [401, 402, 403]
PROBE = [21, 22, 23]
TURNS = (OTHER, DRAFT, OTHER)  # the last two compare: what is carried is written by compactions, and unset in new cells


@contextmanager
def opened(tiny_model, options=OPTIONS, quantization="F32", **kind):
    """A cache that has evicted, and the options it was opened with."""
    options = replace(options, **kind)
    with Model(tiny_model(n_layer=2, n_ctx_train=1024, head_dim=64, quantization=quantization), options) as model:
        context = model.new_context(BUDGET + 48, options, n_cells_max=2 * BUDGET + 48)
        cache = Cache(context, cache_params_of(options))
        try:
            for i in range(0, 80, 20):  # h2o scores by the queries of every token, and a cache keeps those of a block
                feed(cache, TOKENS[i : i + 20], 20)
                compact(cache, options)
            feed(cache, TOKENS[80:90], 10)
            yield cache, options
        finally:
            cache.close()
            context.close()


def feed(cache, tokens, n):
    for i in range(0, len(tokens), n):
        cache.feed(tokens[i : i + n], want_logits=True)


def compact(cache, options, *, probed=False):
    policy = options.parsed_focus if probed else options.parsed_policy
    reposition = options.reposition == "always"
    return cache.compact(
        policy, BUDGET, n_sink=4, recent=8, probed=probed, generating=not probed, reposition=reposition
    )


def state(cache):
    """All that later feeds and compactions read, to the byte."""
    return cache.snapshot().data.tobytes()


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 3])
def test_what_is_accepted_is_as_if_it_had_been_fed(tiny_model, kind, n):
    with opened(tiny_model, **kind) as (cache, options):
        before = cache.snapshot()
        cache.feed([TOKEN, *DRAFT], want_logits=True)
        whole = state(cache)
        cache.restore(before)
        cache.feed_draft(TOKEN, DRAFT)
        for _ in DRAFT:
            cache.accept()
        assert state(cache) == whole

        # some accepted, the rest dropped: as if others had been dropped
        after = []
        for rest in TURNS:
            cache.restore(before)
            cache.feed_draft(TOKEN, [*DRAFT[:n], *rest[n:]])
            for _ in range(n):
                cache.accept()
            found = [state(cache)]
            cache.feed(TOKENS[90:100], want_logits=True)
            found.append(state(cache))
            compact(cache, options)
            found.append(state(cache))
            after.append(found)
        assert after[1] == after[2]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_whatever_is_done_next_drops_a_draft(tiny_model, kind):
    with opened(tiny_model, **kind) as (cache, options):
        before = cache.snapshot()
        steps = {
            "feed": lambda: cache.feed([5, 6], want_logits=True),
            "compact": lambda: compact(cache, options),
            "draft": lambda: cache.feed_draft(5, OTHER),
            "snapshot": lambda: None,
        }
        if options.focus:
            steps["probe"] = lambda: (cache.probe(PROBE), compact(cache, options, probed=True))
        for name, step in steps.items():
            found = []
            for draft in TURNS:
                cache.restore(before)
                cache.feed_draft(TOKEN, draft)
                step()
                found.append(state(cache))
            assert found[1] == found[2], name
        cache.feed_draft(TOKEN, DRAFT)
        cache.restore(before)
        assert state(cache) == before.data.tobytes()
        cache.feed_draft(TOKEN, DRAFT)
        cache.clear()
        assert (cache.n_past, cache.n_cells) == (0, 0)
        cache.feed([5, 6])


def test_the_query_window_is_whole_after_a_dropped_draft(tiny_model):
    with opened(tiny_model, policy="snapkv(window=16)", focus=False) as (cache, _):
        cache.feed_draft(TOKEN, DRAFT)
        _, positions, _ = cache.queries(0)
        assert positions.tolist() == list(range(91 - 16, 91))


def test_what_cannot_be_is_refused(tiny_model):
    with opened(tiny_model) as (cache, _):
        with pytest.raises(NativeError, match="no drafted token to accept"):
            cache.accept()
        before = state(cache)
        with pytest.raises(ConfigError, match="a draft of 4 tokens, but the cache was opened for 3"):
            cache.feed_draft(TOKEN, [1, 2, 3, 4])
        with pytest.raises(ConfigError, match=r"token -1 is not in"):
            cache.feed_draft(TOKEN, [-1])
        feed(cache, [5] * (cache.n_free - 2), 16)
        with pytest.raises(NativeError, match="4 tokens need more than the 2 free cells"):
            cache.feed_draft(TOKEN, DRAFT)
        assert state(cache) != before
        cache.feed_draft(TOKEN, DRAFT[:1])
        cache.accept()
        with pytest.raises(NativeError, match="no drafted token"):
            cache.accept()


def test_a_context_with_too_few_outputs_is_refused(tiny_model):
    plain = replace(OPTIONS, prompt_lookup="off")
    with Model(tiny_model(), plain) as model:
        context = model.new_context(96, plain)
        with pytest.raises(ConfigError, match=f"drafts of {SHORT_DRAFT} tokens, but the context has n_outputs_max = 1"):
            Cache(context, cache_params_of(OPTIONS))
        context.close()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_longest_draft_is_as_if_it_had_been_fed_token_by_token(tiny_model, kind):
    """Logits are the same to the bit, and so are the cells."""
    with opened(tiny_model, options=LONG, quantization="Q8_0", **kind) as (cache, _):
        before, draft = cache.snapshot(), TOKENS[200 : 200 + DRAFT_TOKENS]
        alone = []
        for token in (TOKEN, *draft):
            cache.feed([token], want_logits=True)
            alone.append(cache._context.logits_array().copy())
        fed = state(cache)
        cache.restore(before)
        cache.feed_draft(TOKEN, draft)
        for row, logits in enumerate(alone):
            np.testing.assert_array_equal(cache._context.logits_array(row), logits)
            if row < len(draft):
                cache.accept()
        assert state(cache) == fed


@pytest.mark.parametrize("policy", ["keydiff", "snapkv(window=16)"])
def test_the_plan_counts_what_drafts_take(tiny_model, policy):
    found = {}
    for prompt_lookup in ("off", "on"):
        options = replace(LONG, prompt_lookup=prompt_lookup, policy=policy, focus=False)
        with Model(tiny_model(n_layer=2, vocab_size=8192), options) as model:
            context = model.new_context(96, options)
            cache, params = Cache(context, cache_params_of(options)), cache_params_of(options)
            shape, memory = context.shape(), context.memory()
            estimate = library.load().edgekv_cache_estimate_bytes(ctypes.byref(shape), ctypes.byref(params))
            assert cache.bookkeeping_bytes == estimate
            found[prompt_lookup] = (estimate, memory.compute_bytes, memory.output_bytes)
            cache.close()
            context.close()
    (without, *_), (with_drafts, *_) = found["off"], found["on"]
    assert with_drafts - without == (0 if policy == "keydiff" else DRAFT_TOKENS * shape.query_row_bytes)
    assert found["on"][1] > found["off"][1]  # logits are read where the graph leaves them
    assert found["on"][2] == found["off"][2]


@pytest.mark.parametrize(
    ("given", "n"),
    [
        ({}, SHORT_DRAFT),
        ({"block": 64}, 7),
        ({"block": 128}, DRAFT_TOKENS),
        ({"block": 512}, DRAFT_TOKENS),
        ({"block": 128, "ubatch": 64}, 7),
        ({"ubatch": 2}, 1),
        ({"ubatch": 1}, 0),
        ({"prompt_lookup": "off"}, 0),
    ],
)
def test_a_draft_is_a_small_part_of_a_batch(given, n):
    assert replace(OPTIONS, **given).n_draft == n


def test_unknown_values_are_refused():
    with pytest.raises(ConfigError, match="prompt_lookup='yes' is unknown; possible: auto, on, off"):
        Options(prompt_lookup="yes")
