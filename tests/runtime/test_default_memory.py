"""The ceiling of a runtime that is given none: that of the model that comes with edgekv, and of a user's own."""

from __future__ import annotations

import pytest
from command import run_here
from diagonals import HERE_BY_DAY

import edgekv
from edgekv.memory.process import GroupLimit
from edgekv.memory.sizes import MIB
from edgekv.planning import default_memory
from edgekv.planning.choice import Request

GIB = 1 << 30


@pytest.fixture(scope="module")
def model(tiny_model):
    """Path of a model whose trained context takes more than other parts of a plan."""
    return tiny_model(n_layer=2, n_ctx_train=2048)


@pytest.fixture
def free(monkeypatch):
    """A function that sets the free memory of this machine, and the limit of the control group."""

    def set_(n_bytes, limit=None):
        monkeypatch.setattr(default_memory, "available_bytes", lambda: n_bytes)
        group = None if limit is None else GroupLimit(limit, "memory.max")
        monkeypatch.setattr(default_memory, "group_limit", lambda: group)

    return set_


@pytest.mark.parametrize(
    ("available", "limit", "expected"),
    [
        (8 * GIB, None, 4 * GIB),
        (8 * GIB, 6 * GIB, 3 * GIB),
        (8 * GIB, 300 * MIB, 256 * MIB),
        (8 * GIB, 200 * MIB, 200 * MIB),
        (100 * MIB, None, 256 * MIB),
    ],
)
def test_half_of_what_is_free_or_of_the_group(free, available, limit, expected):
    free(available, limit)
    assert default_memory.most_default_bytes() == expected


@pytest.mark.parametrize("isolated", HERE_BY_DAY, ids=["here", "isolated"])
def test_a_model_of_ones_own_has_its_trained_context(model, isolated):
    """The ceiling is lowered to what that takes; a size that is named stays as it is."""
    plan = edgekv.plan(model, isolated=isolated)
    assert plan.n_cells == plan.n_ctx_train == 2048
    assert 0 <= plan.ceiling_bytes - plan.peak_bytes < default_memory.STEP_BYTES
    assert "enough for its trained context of 2,048 tokens" in default_memory.default_memory_line(plan)
    assert edgekv.plan(model, memory="3GiB", isolated=isolated).ceiling_bytes == 3 * GIB
    with edgekv.Runtime(model, isolated=isolated) as rt:
        assert rt.plan.n_cells == 2048
        assert rt.options.ceiling_bytes == rt.plan.ceiling_bytes


def test_a_budget_needs_no_more_than_it_takes(model):
    plan = edgekv.plan(model, budget=64, block=32)
    assert plan.ceiling_bytes - plan.peak_bytes < default_memory.STEP_BYTES
    assert "enough for 64 cells" in default_memory.default_memory_line(plan)


def test_a_machine_without_room_is_said(tiny_model, free):
    """A trained context that half of the free memory does not hold."""
    large = tiny_model(n_layer=2, n_ctx_train=1 << 24)
    free(8 * GIB + 8 * MIB)  # a process of tests may hold hundreds of MiB
    plan = edgekv.plan(large)
    assert plan.ceiling_bytes == 4 * GIB + 4 * MIB
    assert plan.n_cells < 1 << 24
    line = default_memory.default_memory_line(plan)
    assert f"half of what is free, with cells for {plan.budget_cells:,} of its trained context of 16,777,216" in line


def test_the_model_that_comes_with_edgekv_has_256_mib(default_model, free):
    free(64 * GIB)
    assert Request.of().of_model(default_model).options.ceiling_bytes == 256 * MIB
    assert default_memory.default_memory_line(edgekv.plan(default_model, memory="2GiB")) == ""


def test_commands_say_it_in_their_first_line(model):
    said = run_here("ask", "-m", model, "What?", "--max-tokens", "2", stdin=None)
    assert said.returncode == 0, said.stderr
    assert said.stderr.startswith("memory ")
    assert "enough for its trained context of 2,048 tokens; --memory names another" in said.stderr
    named = run_here("ask", "-m", model, "--memory", "1GiB", "What?", "--max-tokens", "2", stdin=None)
    assert "trained context" not in named.stderr
    assert "enough for its trained context" in run_here("plan", model).stdout
