"""The guard on faked figures of the system: what counts as exceeded, how often, and what the message says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from faked_estimates import Estimates, best_plan

from edgekv import CeilingExceededError
from edgekv.cells import memory_guard
from edgekv.cells.memory_guard import MemoryGuard

MIB = 1 << 20
CEILING = 256 * MIB


@pytest.fixture
def system(monkeypatch):
    """Replace the system's figures: `system.peak` and `system.now` bytes."""

    class System:
        peak = now = 40 * MIB

    monkeypatch.setattr(memory_guard.process, "peak_resident_bytes", lambda: System.peak)
    monkeypatch.setattr(memory_guard.process, "resident_bytes", lambda: System.now)
    return System


@pytest.fixture
def plan():
    return best_plan(Estimates(), memory=CEILING, budget=300)


def test_a_peak_at_the_ceiling_is_none_too_high(system, plan):
    watch = MemoryGuard(plan)
    system.peak = CEILING
    assert watch.check() is None
    assert watch.n_exceeded == 0


def test_a_peak_above_it_is_told_once(system, plan):
    watch = MemoryGuard(plan)
    system.peak, system.now = CEILING + 4 * MIB, 200 * MIB
    error = watch.check()
    assert isinstance(error, CeilingExceededError)
    assert (error.measured_bytes, error.ceiling_bytes) == (CEILING + 4 * MIB, CEILING)
    assert error.planned_bytes == plan.peak_bytes
    assert watch.check() is None  # it has gone back
    system.peak += 1
    assert watch.check() is not None
    assert watch.n_exceeded == 2


def test_the_hosts_earlier_peak_does_not_count(system, plan):
    system.peak, system.now = 2 * CEILING, 40 * MIB
    watch = MemoryGuard(plan)
    system.now = CEILING
    assert watch.check() is None
    system.now = CEILING + 1
    assert watch.check().measured_bytes == CEILING + 1
    assert watch.check() is not None  # the process still is above


def test_the_message_says_whose_bytes_they_are(system, plan):
    watch = MemoryGuard(plan)
    system.peak = CEILING + 4 * MIB
    own = plan.peak_bytes - plan.parts.python
    message = str(watch.check())
    for words in (
        "held 260.0 MiB, above memory=256.0 MiB: 40.0 MiB before the model was loaded",
        f"{own / MIB:.1f} MiB planned since",
        f"{(CEILING + 4 * MIB - 40 * MIB - own) / MIB:.1f} MiB beyond that",
        "raise the ceiling to 260MiB",
        "report it as a fault of edgekv",
        "lower the budget (300 cells)",
    ):
        assert words in message


def test_the_peak_is_that_of_the_time_since_the_ceiling_moved(system, plan):
    watch = MemoryGuard(plan)
    system.peak, system.now = 250 * MIB, 200 * MIB
    assert watch.peak_bytes == 250 * MIB
    system.now = 120 * MIB
    watch.go_under(replace(plan, ceiling_bytes=160 * MIB))
    assert watch.peak_bytes == 120 * MIB
    for system.now in (130 * MIB, 110 * MIB):
        assert watch.check() is None
    assert watch.peak_bytes == 130 * MIB
    system.peak = 251 * MIB
    assert watch.peak_bytes == 251 * MIB
