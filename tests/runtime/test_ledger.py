"""The ledger: what each owner holds, and what a lower ceiling takes from whom, in which order."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from diagonals import HERE_BY_DAY
from small import words

import edgekv
from edgekv.memory import process
from edgekv.memory.sizes import MIB

CELLS = 512
SETTINGS = {"memory": "1GiB", "budget": CELLS, "block": 32, "recent": 8, "threads": 1, "probe_tokens": 16}


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model(n_ctx_train=1 << 14, n_layer=4, n_head=4, n_head_kv=4, head_dim=64)


def opened(model, **settings):
    return edgekv.Runtime(model, **{**SETTINGS, **settings})


def held(rt):
    return {entry.owner: entry.held_bytes for entry in rt.ledger}


def read(rt, n, **settings):
    """Return n sessions that have read more than the cells."""
    sessions = [rt.session(**settings) for _ in range(n)]
    for session in sessions:
        session.read(words(400), focus=False)
    return sessions


@pytest.mark.parametrize("isolated", HERE_BY_DAY)
def test_every_part_of_the_plan_has_an_owner(model, isolated):
    with opened(model, isolated=isolated) as rt, rt.session() as session:
        session.read(words(50), focus=False)
        ledger = rt.ledger
        assert {entry.owner: entry.planned_bytes for entry in ledger} == asdict(rt.plan.parts)
        assert [entry.owner for entry in sorted(ledger, key=lambda it: it.rank) if entry.rank] == ["swap", "kv"]
        assert held(rt)["kv"] == session.n_cells * rt.plan.cell_bytes
        if not isolated:
            assert sum(held(rt).values()) == process.resident_bytes()


def test_sessions_without_the_cells_hold_what_they_take_in_memory(model):
    with opened(model) as rt:
        (first,) = read(rt, 1)
        assert held(rt)["swap"] == 0
        sessions = read(rt, 2)
        assert held(rt)["swap"] >= 2 * CELLS * rt.plan.cell_bytes
        first.close()
        sessions.append(rt.session())
        assert held(rt)["swap"] < 2.5 * CELLS * rt.plan.cell_bytes


@pytest.mark.parametrize("named", [pytest.param(None, marks=pytest.mark.nightly), 8 * MIB])
def test_sessions_go_to_the_disk_before_cells_go(model, named):
    with opened(model, swap_memory=named) as rt:
        plan = rt.plan
        sessions = read(rt, 4)
        before = held(rt)["swap"]
        rt.memory = plan.peak_bytes - (0 if named is None else 8 * MIB)
        assert rt.plan.budget_cells == CELLS
        assert rt.plan.peak_bytes <= rt.memory
        assert held(rt)["swap"] <= plan.session_bytes < before
        for session in sessions:
            n_past = session.n_past
            assert "".join(session.ask("and", max_tokens=2, ignore_eos=True))
            assert session.n_past > n_past


def test_cells_go_at_once_if_nothing_may_go_to_the_disk(model):
    with opened(model, swap_memory=8 * MIB, swap_bytes=0) as rt:
        rt.memory = rt.plan.peak_bytes - MIB // 2
        assert rt.plan.budget_cells < CELLS
        assert rt.plan.parts.swap >= 8 * MIB


def test_a_closed_runtime_has_no_ledger(model):
    with opened(model) as rt:
        pass
    with pytest.raises(edgekv.SessionError):
        rt.ledger  # noqa: B018
