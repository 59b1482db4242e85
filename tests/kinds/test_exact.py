"""Logits of every family that runs, against llama.cpp's own cache in which the same cells are masked.

Nothing evicted: edgekv reads the same rows in another layout and sums in float32. llama.cpp does so from 64 tokens on,
so only the order of sums differs. Shorter batches it sums in f16, 11 bits. Where llama.cpp rounds queries and edgekv
does not (quantised rows), the float64 nodes say what is right.

Something evicted: attention_nodes.py computes in float64 what a head reads of the cells that it kept. Limits on the
largest error over the deviation of the logits are those of tests/runtime/test_exactness.py. A quantised cache is held
to a share of what its rounding does to the logits. Both runs send tokens to the same experts (expert_routes.py).
"""

from __future__ import annotations

import math
from contextlib import contextmanager

import numpy as np
import pytest
from diagonals import by_night, diagonal
from evicting import HEADS, OF_EACH_KIND, RUN, architecture_of, by_layer, heads_of
from exactness import distance, error
from expert_routes import SORTING, ExpertRoutes
from graph_nodes import NodeCallback
from own_cache import own_cache, watched_by
from recorded import recorded_runtime

N_READ, N_STEPS, N_CELLS = 320, 12, 384
BUDGET, BLOCK = 64, 64
# llama.cpp's own cache sums short batches in f16, and was measured to be 4.3e-2 off.
WHOLE_TILES, SHORT_BATCHES, OWN_SHORT_BATCHES = 5e-3, 4e-2, 6e-2
# Errors of layers add up as those of a random walk do: exaone4 has 64 layers, the others about 8.
DEEP_SHORT_BATCHES = SHORT_BATCHES * math.sqrt(64 / 8)
# gemma4 has a norm over what attention gives, so over its error too: llama.cpp's own cache is 4.6e-2 from float64.
NORMED_SHORT_BATCHES = 8e-2
# Of the effect of rounding, root mean square. A value at a rounding boundary is stored a step off, and every later
# layer adds some: of exaone4's 64 layers 0.34 was measured, of three and four layers at most 0.04.
OF_ROUNDING, OF_ROUNDING_DEEP = 0.3, 0.45
# One model of each kind of layer; other pairs of a model, and a block or a policy, stand on the diagonal.
WHOLE = ("lfm2", "gemma3", "gpt-oss", "deepseek2", "phi3")
# A wrong set for one head of one layer is further off than so many limits.
WRONG = 2
# By how much an expert may be better than the one before it, over the deviation of what a router gives experts. Sums in
# f16 were measured to be 0.12 off; a token that goes to another expert is 1.2 off.
TIE = 0.4


def tokens_of(n=N_READ + N_STEPS):
    return np.random.default_rng(1).integers(3, 250, n).tolist()


def logits(run, tokens):
    """(1 + N_STEPS, n_vocab): after reading N_READ tokens, and after each of the others."""
    return np.array([run.read(tokens[:N_READ]), *map(run.step, tokens[N_READ:])])


@contextmanager
def routed_runtime(name, path, **options):
    """As recorded_runtime, of a family, and the routes of its tokens."""
    routes = ExpertRoutes()
    with (
        watched_by(NodeCallback({SORTING: routes.note})),
        recorded_runtime(path, **options, **heads_of(name)) as run,
    ):
        yield run, routes


def own_logits(path, tokens, routes, *, tie=TIE, **options):
    """The logits of llama.cpp's own cache, whose routers may choose others of two experts that are so near."""
    taken = routes.taken()
    with own_cache(path, n_cells=N_CELLS, routes=taken, **options) as own:
        found = logits(own, tokens)
    assert taken.largest_step_up() < tie
    return found


def short_batches(name):
    if name == "gemma4":
        return NORMED_SHORT_BATCHES
    return DEEP_SHORT_BATCHES if max(HEADS[name], default=0) > 9 else SHORT_BATCHES


def assert_close(found, expected, *, whole_tiles, short):
    assert error(found[0], expected[0]) < (WHOLE_TILES if whole_tiles else short)
    assert max(map(error, found[1:], expected[1:])) < short


BLOCKS = diagonal(RUN, [32, 128], whole=WHOLE)
# what evicts reads as well, with each kind of layer
DAILY_BLOCKS = [(name, 32) for name in WHOLE] + [case for case in BLOCKS if case[0] in OF_EACH_KIND[::3]]


@pytest.mark.parametrize(("name", "block"), by_night(BLOCKS, DAILY_BLOCKS))
def test_what_evicts_nothing_is_llama_cpps_own_cache(family_model, name, block):
    path, tokens = family_model(name), tokens_of()
    with routed_runtime(name, path, budget=N_CELLS, block=block) as (run, routes):
        found = logits(run, tokens)
        assert run.compactions == []
        cache = run.runtime.block_loop.cache
        assert cache.repositions == (architecture_of(name).repositions and not cache.shape.window_cells)
    short = max(OWN_SHORT_BATCHES, short_batches(name))
    expected = own_logits(path, tokens, routes, block=block)
    assert_close(found, expected, whole_tiles=block >= 64, short=short)


ATTENDING = [name for name in RUN if HEADS[name]]


@pytest.mark.parametrize("name", by_night(ATTENDING, WHOLE))
def test_one_wrong_cell_is_noticed(family_model, name):
    """The cell that a head attends to most, gone from the last block: the logits move by more than the limit."""
    path, tokens = family_model(name), tokens_of()
    layer, n_head_kv = min(HEADS[name].items())
    with own_cache(path, n_cells=N_CELLS, visible={}) as own:
        expected, cell = own.read(tokens[:N_READ]), own.favourites[layer]
    visible = np.ones((n_head_kv, N_READ, N_READ), dtype=bool)
    visible[-1, -128:, cell] = False
    with own_cache(path, n_cells=N_CELLS, visible={layer: visible}) as own:
        assert error(own.read(tokens[:N_READ]), expected) > WRONG * WHOLE_TILES


EVICTED = diagonal([name for name in RUN if HEADS[name]], ["keydiff", "snapkv"])
# heads that share their cells, beside windows and beside recurrent states
EVICTED += [(name, policy) for name in ("gemma3", "lfm2") for policy in ("keydiff+ada", "snapkv+ada")]


@pytest.mark.parametrize(("name", "policy"), by_night(EVICTED, [case for case in EVICTED if case[0] in OF_EACH_KIND]))
def test_evicted_cells_are_as_if_masked(family_model, name, policy):
    path, tokens = family_model(name), tokens_of()
    short = short_batches(name)
    found, routes, visible, wrong = evicted(name, path, tokens, policy, "f16")
    expected = own_logits(path, tokens, routes, block=BLOCK, visible=visible)
    assert_close(found, expected, whole_tiles=True, short=short)
    if name in WHOLE:  # test_one_wrong_cell_is_noticed has every model
        shifted = own_logits(path, tokens, routes, tie=math.inf, block=BLOCK, visible=wrong)
        assert max(map(error, found, shifted)) > WRONG * short


# How rows are stored does not depend on the family: one of each width.
@pytest.mark.parametrize("name", by_night(ATTENDING, (*WHOLE, "minicpm3")))
def test_quantised_rows_of_evicted_cells_too(family_model, name):
    path, tokens = family_model(name), tokens_of()
    found, routes, visible, wrong = evicted(name, path, tokens, "snapkv", "q8_0")

    def own(seen, kv_type, tie=TIE):
        return own_logits(path, tokens, routes, tie=tie, block=BLOCK, visible=seen, kv_type=kv_type)

    expected, exact = own(visible, "q8_0"), own(visible, "f16")
    limit = (OF_ROUNDING_DEEP if max(HEADS[name]) > 9 else OF_ROUNDING) * distance(expected, exact)
    assert distance(found, expected) < limit
    assert distance(found, own(wrong, "q8_0", tie=math.inf)) > WRONG * limit


MOVED = [name for name in RUN if HEADS[name] and architecture_of(name).repositions]


@pytest.mark.parametrize("name", by_night(MOVED, OF_EACH_KIND))
def test_moved_keys_meet_the_same_distances(family_model, name):
    """A head that keeps the newest tokens alone has its keys moved as a whole, which no distance shows."""
    path, tokens = family_model(name), tokens_of()
    options = {"policy": "sink(n_sink=0)", "n_sink": 0, "budget": BUDGET, "block": BLOCK}

    def move(cache, policy, budget, keywords):
        keywords |= {"reposition": True}

    with routed_runtime(name, path, before_compaction=move, **options) as (run, routes):
        found = logits(run, tokens)
        assert run.runtime.block_loop.cache.rope_past < BUDGET + BLOCK < run.runtime.block_loop.cache.n_past
    visible = by_layer(name, run.visible(len(tokens)))
    expected = own_logits(path, tokens, routes, block=BLOCK, visible=visible)
    # keys are rounded to f16 once more at each of nine evictions
    assert max(map(error, found, expected)) < SHORT_BATCHES


def evicted(name, path, tokens, policy, kv_type):
    """The logits under a budget, routes, what heads saw, and the same with a wrong set for one head of one layer."""
    options = {"policy": policy, "budget": BUDGET, "block": BLOCK, "kv_type": kv_type, "recent": 8}
    with routed_runtime(name, path, **options) as (run, routes):
        found = logits(run, tokens)
        assert len(run.compactions) >= N_READ // BLOCK - 2
    visible = by_layer(name, run.visible(len(tokens)))
    layer, (fed, _) = min(visible), run.compactions[0]
    wrong = visible[layer].copy()
    wrong[0, fed:, :fed] = np.roll(wrong[0, fed:, :fed], fed // 2, axis=1)
    return found, routes, visible, visible | {layer: wrong}
