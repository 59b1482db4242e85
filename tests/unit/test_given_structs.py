"""Structs of programs that were compiled with another header: shorter, longer, or never filled in."""

from __future__ import annotations

import ctypes as c

import numpy as np
import pytest

from edgekv.binding import library, plan_structs, structs
from edgekv.errors import ConfigError, InvalidModelError

KEYS = np.arange(12, dtype=np.float32).reshape(6, 2)
POSITIONS, SCORES = np.arange(6, dtype=np.int32), np.arange(6, dtype=np.float32)
UNKNOWN = 0xA5


def pointer(struct):
    return c.cast(c.pointer(struct), c.c_void_p)


ROWS = structs.Rows(0, KEYS.ctypes.data, 6, 8, 2, 0)
POLICY, PROTECTION = structs.Policy(base=0, kernel=1), structs.Protection()
CELLS = structs.Cells.of(ROWS, None, POSITIONS, None, None, 0, 0)
QUERIES = structs.Queries.of(np.ones((1, 2, 2), np.float32), np.arange(4, 6, dtype=np.int32), 1.0, 0.0, 6)
TOVA = structs.Policy(base=5, kernel=1)
SCORE_LAYER = structs.ScoreLayer(lambda _user_data, _view, _scores: 0)
SHARING = structs.Policy(base=5, kernel=1, spread=1)


def score(policy=POLICY, cells=CELLS, queries=None):
    scores = np.empty(6, np.float32)
    library.call("edgekv_score", pointer(policy), pointer(cells), queries and pointer(queries), 4, scores.ctypes.data)
    return scores.tolist()


def score_rows(rows):
    return score(structs.Policy(base=3, kernel=1), structs.Cells.of(rows, None, POSITIONS, None, None, 0, 0))


def select(protection):
    kept, n_kept = np.empty(3, np.uint32), c.c_size_t()
    scores, positions = SCORES.ctypes.data, POSITIONS.ctypes.data
    library.call("edgekv_select", scores, positions, 6, 3, pointer(protection), kept.ctypes.data, c.byref(n_kept))
    return kept.tolist()


def allot(scored):
    budgets = np.empty(1, np.uint32)
    heads, protection = pointer(scored), pointer(PROTECTION)
    library.call("edgekv_allot", pointer(SHARING), heads, 1, protection, 4, 4, budgets.ctypes.data)
    return budgets.tolist()


def needs_of(policy, params):
    """Return what `edgekv_cache_params_for` makes of the first members of params, which it writes again."""
    library.call("edgekv_cache_params_for", pointer(policy), 8, False, pointer(params))
    return params.n_query_rows if params.n_bytes > 4 else None


def needs_of_scorer(scorer):
    policy = structs.Policy(base=8, kernel=1)
    policy.scorer = c.addressof(scorer)
    return needs_of(policy, structs.CacheParams())


def layout(made):
    library.call("edgekv_layout_for", 10, 5, 1, 0, 100, pointer(made))
    return made.n_cells, made.n_cells_max


def choose(choice):
    chosen = plan_structs.Setting()
    spare = plan_structs.SettingSpare(lambda _user_data, setting: 20 - setting.contents.budget)
    library.call("edgekv_plan_choose", pointer(choice), spare, None, c.byref(chosen))
    return chosen.as_dict()


def plan(request, plan=None):
    """Return if a request got as far as its model, which does not exist."""
    made = pointer(plan_structs.Plan() if plan is None else plan)
    with pytest.raises(InvalidModelError):
        library.call("edgekv_plan_make", b"/nowhere/model.gguf", pointer(request), made)
    return True


def plan_beside(limits, n_limits=1):
    """Plan with limits of devices, which begin at this one."""
    return plan(plan_structs.PlanRequest(**REQUESTED, limits=c.pointer(limits), n_limits=n_limits))


REQUESTED = {"ceiling_bytes": 1 << 30, "n_ubatch": 128, "n_slots": 1}
LIMIT = plan_structs.DeviceLimit(b"CUDA0", 1 << 30, 0)
CHOICE = plan_structs.Choice(
    n_layers=4, n_ctx_train=100, least_budget=8, least_block=1, block=32, kv_type=1, n_streamed=0
)
# a struct that is whole, the member that it may end before, and what takes it
TAKEN = {
    "policy": (POLICY, "pool_rows", score),
    "rows": (ROWS, "rotation", score_rows),
    "cells": (CELLS, "layer", lambda cells: score(cells=cells)),
    "queries": (QUERIES, "softcap", lambda queries: score(TOVA, queries=queries)),
    "protection": (PROTECTION, "pinned", select),
    "scored": (structs.Scored.of(SCORES, POSITIONS), None, allot),
    "scorer": (structs.Scorer(SCORE_LAYER, None, 1, 0), "n_rows", needs_of_scorer),
    "cache_params": (structs.CacheParams(), "slot", lambda params: needs_of(TOVA, params)),
    "layout": (structs.Layout(), "n_slots", layout),
    "choice": (CHOICE, "repositions", choose),
    "plan_request": (plan_structs.PlanRequest(**REQUESTED), "reserved_bytes", plan),
    "device_limit": (LIMIT, "serving_bytes", plan_beside),
}


def cut(struct, n_bytes):
    """Return a struct of so many bytes with what another begins with; behind it lies what nobody may read."""
    room = (c.c_char * (c.sizeof(struct) + 64))()
    c.memset(room, UNKNOWN, c.sizeof(room))
    c.memmove(room, c.byref(struct), min(n_bytes, c.sizeof(struct)))
    made = type(struct).from_buffer(room)
    made.n_bytes = n_bytes
    made._pointed = struct
    return made


def longer(struct, further):
    """Return a struct with further bytes, all of them of one value."""
    made = cut(struct, c.sizeof(struct) + 16)
    c.memset(c.addressof(made) + c.sizeof(struct), further, 16)
    return made


def expected(name):
    struct, _, taken = TAKEN[name]
    return taken(longer(struct, 0))


@pytest.mark.parametrize("name", [name for name in TAKEN if TAKEN[name][1]])
def test_a_shorter_struct_gets_the_defaults_of_what_it_lacks(name):
    struct, member, taken = TAKEN[name]
    assert taken(cut(struct, getattr(type(struct), member).offset)) == expected(name)


@pytest.mark.parametrize("name", TAKEN)
def test_a_longer_struct_is_refused_if_it_holds_what_nobody_knows(name):
    struct, _, taken = TAKEN[name]
    with pytest.raises(ConfigError, match=f"struct edgekv_{name} has .* bytes, of which this library knows"):
        taken(longer(struct, 1))


@pytest.mark.parametrize(
    "n_bytes", [plan_structs.DeviceLimit.serving_bytes.offset, c.sizeof(plan_structs.DeviceLimit) + 16]
)
def test_elements_of_an_array_lie_as_far_apart_as_a_program_has_them(n_bytes):
    one = bytes(longer(LIMIT, 0)) + bytes(16)
    room = (c.c_char * (3 * n_bytes)).from_buffer_copy((one[:n_bytes] * 2).ljust(3 * n_bytes, bytes([UNKNOWN])))
    for i in range(2):
        plan_structs.DeviceLimit.from_buffer(room, i * n_bytes).n_bytes = n_bytes
    limits = plan_structs.DeviceLimit.from_buffer(room)
    assert plan_beside(limits, 2)
    with pytest.raises(ConfigError, match="is not the size of a struct edgekv_device_limit"):
        plan_beside(limits, 3)


@pytest.mark.parametrize("n_bytes", [0, 3, 1 << 20, (1 << 32) - 1])
@pytest.mark.parametrize("name", TAKEN)
def test_a_struct_that_was_never_filled_in_is_refused(name, n_bytes):
    struct, _, taken = TAKEN[name]
    with pytest.raises(ConfigError, match=f"n_bytes = {n_bytes} is not the size of a struct edgekv_{name}"):
        taken(cut(struct, n_bytes))


@pytest.mark.parametrize("change", [-8, 8])
def test_a_plan_of_another_size_is_refused(change):
    """Other structs lie in it, and would lie elsewhere."""
    with pytest.raises(ConfigError, match=r"plan.n_bytes = .*, but a plan has"):
        plan(plan_structs.PlanRequest(**REQUESTED), cut(plan_structs.Plan(), c.sizeof(plan_structs.Plan) + change))


@pytest.mark.parametrize("struct", structs.Input.__subclasses__())
def test_defaults_are_written_as_far_as_a_struct_reaches(struct):
    init = getattr(library.load(), f"{struct.c_name()}_init")
    whole, short = struct(), cut(struct(), 4)
    init(c.byref(whole), c.sizeof(struct))
    init(c.byref(short), 4)
    beyond = bytes(short)[4:]
    assert (whole.n_bytes, short.n_bytes) == (c.sizeof(struct), 4)
    assert beyond == bytes([UNKNOWN]) * len(beyond)


@pytest.mark.parametrize(
    "struct", [struct for struct in structs.Input.__subclasses__() if struct is not plan_structs.Plan]
)
def test_no_struct_ends_in_padding(struct):
    """A later member would lie where an older program left anything. A plan has one size."""
    last = getattr(struct, struct._fields_[-1][0])
    assert struct._fields_[0][0] == "n_bytes"
    assert last.offset + last.size == c.sizeof(struct)
