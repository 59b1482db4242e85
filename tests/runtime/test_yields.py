"""A runtime that yields: its ceiling follows the pressure of the system, as a source of the test tells it."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
from diagonals import HERE_BY_DAY
from small import words

import edgekv
from edgekv.memory.yielding import CALM_LOOKS

SETTINGS = {"budget": 1024, "block": 32, "threads": 1, "probe_tokens": 16}


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model(n_ctx_train=1 << 14, n_layer=8, n_head=4, n_head_kv=4, head_dim=64)


@pytest.fixture
def opened(model, monkeypatch):
    """A function that opens a runtime whose ceiling is its peak; no thread looks."""
    monkeypatch.setattr("edgekv.moving_ceiling.Watch", Mock())
    made = []

    def open_it(**settings):
        made.append(edgekv.Runtime(model, memory="1GiB", **SETTINGS, **settings))
        made[0].memory = made[0].plan.peak_bytes
        return made[0]

    yield open_it
    made[0].close()


@pytest.mark.parametrize("isolated", HERE_BY_DAY)
def test_cells_go_under_pressure_and_come_back(opened, isolated, caplog):
    rt = opened(yields=0.04, isolated=isolated)
    whole = rt.memory
    with rt.session() as session:
        session.read(words(400), focus=False)
        with caplog.at_level(logging.WARNING, "edgekv"):
            rt.note_pressure(True)
        assert "the system is short of memory: the ceiling goes from" in caplog.text
        assert rt.memory == pytest.approx(0.96 * whole, abs=1)
        assert session.n_cells <= rt.plan.budget_cells < 1024
        assert "".join(session.ask("and", max_tokens=2, ignore_eos=True))
        for _ in range(4 * CALM_LOOKS):
            rt.note_pressure(False)
        assert (rt.memory, rt.plan.budget_cells) == (whole, 1024)


@pytest.mark.parametrize(("yields", "n_locked"), [("4%", 1), (None, 0)])
def test_a_runtime_that_yields_locks_its_code(opened, monkeypatch, caplog, yields, n_locked):
    monkeypatch.setattr("edgekv.moving_ceiling.lock_code", lock := Mock(return_value=5 << 20))
    with caplog.at_level(logging.INFO, "edgekv"):
        opened(yields=yields)
    assert lock.call_count == caplog.text.count("5.0 MiB of code are not locked in memory") == n_locked


@pytest.mark.skipif(sys.platform != "linux", reason="Linux locks pages, and says how many")
@pytest.mark.parametrize("yields", ["4%", None])
def test_the_worker_of_a_runtime_that_yields_locks_its_code(opened, yields):
    import resource

    if resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == 0:
        pytest.skip("this process may lock no page")
    rt = opened(yields=yields, isolated=True)
    status = Path(f"/proc/{rt.worker_pid}/status").read_text()
    assert (int(status.split("VmLck:")[1].split()[0]) > 0) == bool(yields)


def test_it_goes_no_further_than_the_least_budget(opened):
    rt = opened(yields="90%")
    rt.note_pressure(True)
    assert rt.options.least_budget() <= rt.plan.budget_cells < 200
    least = rt.plan
    for _ in range(CALM_LOOKS - 1):
        rt.note_pressure(False)
    assert rt.plan == least


def test_a_ceiling_that_is_named_takes_the_place_of_the_one_that_was_yielded(opened):
    rt = opened(yields=0.02)
    rt.note_pressure(True)
    rt.memory = "1GiB"
    assert rt.plan.budget_cells == 1024
    rt.note_pressure(True)
    assert rt.memory == pytest.approx(0.98 * (1 << 30), abs=1)


def test_a_ceiling_that_is_named_while_one_is_yielded_counts(opened, monkeypatch):
    rt = opened(yields=0.02)
    move, moved = rt._engine.set_memory, []

    def named_meanwhile(ceiling_bytes):
        moved.append(ceiling_bytes)
        if len(moved) == 1:
            rt.memory = "1GiB"
        return move(ceiling_bytes)

    monkeypatch.setattr(rt._engine, "set_memory", named_meanwhile)
    rt.note_pressure(True)
    assert rt.memory == moved[-1] == 1 << 30


def test_a_runtime_yields_only_if_it_was_asked_for(opened):
    rt = opened()
    before = rt.plan
    rt.note_pressure(True)
    assert rt.plan == before


def test_a_closed_runtime_takes_no_pressure(opened):
    rt = opened(yields=0.02)
    rt.close()
    rt.note_pressure(True)
