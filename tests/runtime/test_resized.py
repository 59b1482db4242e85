"""A block loop that gets fewer cells, and more again, in the midst of a text: what it keeps, and what it holds."""

from __future__ import annotations

import pytest
from diagonals import by_night, diagonal
from small import words

import edgekv
from edgekv.errors import CeilingError
from edgekv.planning.moved import moved_plan

LARGE, SMALL = 192, 64
SETTINGS = {"memory": "4GiB", "block": 32, "recent": 8, "threads": 1, "probe_tokens": 16}
POLICIES = ("keydiff", "snapkv", "h2o", "keydiff+ada")
PAIRS = diagonal(POLICIES, ["f16", "q8_0"])
GREEDY = edgekv.Sampling(temperature=0)


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model(n_ctx_train=16384, head_dim=32)


def opened(model, **settings):
    return edgekv.Runtime(model, **{**SETTINGS, **settings})


def kept(rt, session):
    shape = rt.block_loop.cache.shape
    return [
        session.kept_positions(layer, head).tolist()
        for layer in range(shape.n_layer)
        for head in range(rt.block_loop.cache.layer_heads(layer)[0])
    ]


@pytest.mark.parametrize(("policy", "kv_type"), by_night(PAIRS, PAIRS[2:]))
def test_cells_given_up_before_a_text_are_as_if_they_had_never_been(model, policy, kv_type):
    found = []
    for budget in (SMALL, LARGE):
        with opened(model, budget=budget, policy=policy, kv_type=kv_type) as rt, rt.session() as session:
            rt.block_loop.resize(SMALL)
            text = "".join(session.ask(words(300), max_tokens=40, sampling=GREEDY))
            found.append((text, kept(rt, session), session.n_cells))
    assert found[0] == found[1]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_text_goes_on_with_fewer_cells_and_with_more_again(model, policy):
    with opened(model, budget=LARGE, policy=policy) as rt, rt.session() as session:
        held = []

        def resize(progress):
            held.append(session.n_cells)
            if len(held) in (8, 16):
                rt.block_loop.resize(SMALL if len(held) == 8 else LARGE)

        session.read(words(300), focus=False, progress=resize)
        assert max(held[:8]) == LARGE
        assert max(held[8:16]) <= SMALL + SETTINGS["block"]
        assert max(held[16:]) == LARGE


def test_an_idle_session_gives_its_cells_up_at_once(model):
    with opened(model, budget=LARGE) as rt, rt.session() as session:
        session.read(words(300), focus=False)
        newest = session.n_past - 1
        rt.block_loop.resize(SMALL)
        rt.block_loop.shrink()
        assert rt.block_loop.cache.n_cells == SMALL
        assert all(newest in positions for positions in kept(rt, session))


def test_a_plan_follows_its_ceiling(model):
    with opened(model, budget=8192) as rt:
        plan, options = rt.plan, rt.options
        least = options.least_budget()
        lower = moved_plan(plan, options, plan.peak_bytes - 3 * plan.cell_bytes)
        assert lower.peak_bytes <= lower.ceiling_bytes
        assert least < lower.budget_cells < 8192
        assert lower.n_cells == plan.n_cells - 8192 + lower.budget_cells
        assert moved_plan(plan, options, plan.ceiling_bytes) == plan
        assert moved_plan(plan, options, 2 * plan.ceiling_bytes).budget_cells == 8192
        with pytest.raises(CeilingError, match=f"least budget, {least} cells; name at least"):
            moved_plan(plan, options, plan.peak_bytes // 8)
