"""A ceiling that moves, with a family of each kind of layer: cells go and come back, and the session goes on."""

from __future__ import annotations

import pytest
from evicting import HEADS, by_turns

import edgekv
from edgekv.memory import process

CELLS = 320
TEXT = "the old house by the river stood empty since the flood of that year " * 9


@pytest.mark.parametrize("name", by_turns(2))
def test_cells_are_given_up_and_come_back(family_model, name, monkeypatch):
    monkeypatch.setattr(process, "resident_bytes", lambda: 0)  # other tests may have grown this process
    with edgekv.Runtime(family_model(name), memory="4GiB", budget=CELLS, block=32, threads=1, probe_tokens=16) as rt:
        opened, evicts = rt.plan, HEADS.get(name) != {}
        with rt.session() as session:
            session.read(TEXT, focus=False)
            n_past = session.n_past
            assert session.n_cells == (CELLS if evicts else 0)
            rt.memory = opened.peak_bytes - opened.cell_bytes  # takes whole pages
            assert rt.plan.peak_bytes <= rt.memory
            assert (rt.plan.budget_cells < CELLS) == evicts
            assert session.n_cells <= rt.plan.budget_cells
            session.read(TEXT, focus=False)
            assert session.n_cells <= rt.plan.budget_cells + rt.plan.block
            assert session.n_past > 1.9 * n_past
            rt.memory = "4GiB"
            assert rt.plan == opened
            session.read(TEXT, focus=False)
            assert session.n_cells == (CELLS if evicts else 0)
