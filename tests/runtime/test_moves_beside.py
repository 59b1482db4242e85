"""A ceiling that moves beside memory that the program took, which no plan knows."""

from __future__ import annotations

import pytest
from driven_loop import driven

from edgekv.errors import CeilingError
from edgekv.loop.loop_messages import MoveCeiling
from edgekv.memory import process
from edgekv.planning.moved import PAGES

CELLS = 512
SETTINGS = {"memory": "1GiB", "budget": CELLS, "block": 32, "recent": 8, "threads": 1, "probe_tokens": 16}


@pytest.fixture
def engine_loop(tiny_model):
    with driven(tiny_model(n_ctx_train=1 << 14, n_layer=4, n_head=4, n_head_kv=4, head_dim=64), **SETTINGS) as loop:
        yield loop


@pytest.mark.parametrize("n_unused", [0, 100, 300])
def test_cells_make_way_for_what_the_program_took(engine_loop, monkeypatch, n_unused):
    """The first cells that go bring nothing back, if nobody has used them yet."""
    engine = engine_loop.engine
    opened = engine.plan
    taken = 200 * opened.cell_bytes
    used = opened.peak_bytes - n_unused * opened.cell_bytes
    monkeypatch.setattr(process, "resident_bytes", lambda: min(engine.plan.peak_bytes, used) + taken)
    ceiling = process.resident_bytes() - 100 * opened.cell_bytes
    plan = engine_loop.ask(MoveCeiling(ceiling))
    assert process.resident_bytes() <= ceiling == plan.ceiling_bytes
    assert plan.peak_bytes <= ceiling
    assert n_unused + 100 <= CELLS - plan.budget_cells <= n_unused + 100 + PAGES // opened.cell_bytes + 2


def test_a_ceiling_below_what_the_program_took_is_refused(engine_loop, monkeypatch):
    before = engine_loop.engine.plan
    monkeypatch.setattr(process, "resident_bytes", lambda: before.peak_bytes)
    with pytest.raises(CeilingError, match="least budget"):
        engine_loop.ask(MoveCeiling(before.peak_bytes - before.cell_bytes))
    assert engine_loop.engine.plan == before
