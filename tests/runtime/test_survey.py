"""A survey agrees with plans, on real estimates of a tiny model."""

from __future__ import annotations

import ctypes
import re
from dataclasses import asdict

import pytest

import edgekv
from edgekv.binding import library
from edgekv.planning.alternatives import MORE_BYTES
from edgekv.planning.choice import Request
from edgekv.planning.estimate import Estimator, cache_params_of

MIB = 1 << 20


@pytest.fixture(scope="module")
def model(tiny_model):
    return tiny_model(n_layer=2, head_dim=32, n_ctx_train=1 << 16)


def budget(model, memory, **options):
    return edgekv.plan(model, memory=memory, **options).budget_cells


def test_a_survey_is_its_plan_and_what_other_plans_say(model):
    memory = edgekv.plan(model, memory="1GiB", budget=3000, kv_type="q8_0").peak_bytes
    survey = edgekv.survey(model, memory=memory)
    assert survey.plan == edgekv.plan(model, memory=memory)
    assert (survey.bound_by, survey.plan.budget_cells) == ("memory", 3000)
    assert survey.with_more == edgekv.plan(model, memory=memory + MORE_BYTES)
    assert survey.with_more.budget_cells > 3000
    assert len(survey.alternatives) == 9
    for other in survey.alternatives:
        assert other.budget_cells == budget(model, memory, kv_type=other.kv_type, block=other.block)


def test_a_named_budget_is_what_was_asked_for(model):
    survey = edgekv.survey(model, memory="1GiB", budget=500)
    assert (survey.bound_by, survey.plan.budget_cells) == ("budget", 500)
    assert survey.with_more.budget_cells > 500
    setting = [(plan.kv_type, plan.block, plan.n_streamed) for plan in (survey.plan, survey.with_more)]
    assert setting[0] == setting[1]
    parts = {name: n for name, n in asdict(survey.plan.parts).items() if name not in ("weights", "repacking")}
    assert survey.largest_part == max(parts, key=parts.__getitem__)


@pytest.mark.parametrize("named", [{}, {"budget": 3000}, {"budget": 6000, "resident": 0}, {"kv_type": "q4_0"}], ids=str)
def test_more_memory_is_never_said_to_give_fewer_cells(model, named):
    smallest = edgekv.plan(model, memory="1GiB", **{"budget": 40, "kv_type": "q8_0", "resident": 0} | named)
    for more in (1 << 17, 3 << 20, 1 << 24, 1 << 26):
        survey = edgekv.survey(model, memory=smallest.peak_bytes + more, **named)
        assert survey.with_more.budget_cells >= survey.plan.budget_cells


def test_enough_cells_may_be_bound_by_speed(model):
    """With a shorter block than the fastest, they leave memory free."""
    memory = edgekv.plan(model, memory="1GiB", budget=2048, kv_type="q8_0", block=512).peak_bytes
    assert edgekv.survey(model, memory=memory).bound_by == "memory"
    survey = edgekv.survey(model, memory=memory - 1)
    assert (survey.bound_by, survey.plan.budget_cells, survey.plan.block) == ("speed", 2048, 128)
    assert survey.with_more.block == 512


def test_a_cache_of_4_bits_is_not_shown_for_a_model_that_it_spoils(tiny_model):
    spoilt = tiny_model(architecture="qwen2", n_layer=2, n_embd=128, head_dim=32, n_ctx_train=1 << 14)
    types = {other.kv_type for other in edgekv.survey(spoilt, memory="1GiB").alternatives}
    assert types == {"f16", "q8_0"}
    for use in (edgekv.survey, edgekv.plan, edgekv.Runtime):
        with pytest.warns(UserWarning, match=r"kv_type=q4_0 may spoil what tiny-\d+.gguf says.* use kv_type=q8_0"):
            found = use(spoilt, memory="1GiB", budget=100, kv_type="q4_0")
        if use is edgekv.survey:
            assert {other.kv_type for other in found.alternatives} == {"f16", "q8_0", "q4_0"}
    found.close()


def test_ceilings_below_every_setting_are_refused(model):
    with pytest.raises(edgekv.CeilingError, match="raise the ceiling to"):
        edgekv.survey(model, memory="51MiB")


@pytest.mark.parametrize("named", [{}, {"kv_type": "f16"}, {"block": 64}, {"kv_type": "q8_0", "block": 128}])
def test_the_budget_that_a_refusal_names_is_the_largest_that_fits(model, named):
    """The budget is right whatever type of cache and block were left open."""
    small = edgekv.plan(model, memory="1GiB", budget=100, kv_type="f16").peak_bytes
    with pytest.raises(edgekv.CeilingError, match="lower the budget to") as refused:
        edgekv.plan(model, memory=small, budget=60_000, **named)
    largest = int(re.search(r"lower the budget to (\d+)", str(refused.value))[1])
    assert edgekv.plan(model, memory=small, budget=largest, **named).budget_cells == largest
    with pytest.raises(edgekv.CeilingError):
        edgekv.plan(model, memory=small, budget=largest + 1, **named)


def test_a_runtime_runs_what_was_planned(model):
    memory = edgekv.plan(model, memory="1GiB", budget=100, kv_type="q8_0", block=32).peak_bytes
    with edgekv.Runtime(model, memory=memory, threads=None) as runtime:
        plan, options = runtime.plan, runtime.options
        assert (plan.kv_type, plan.block) != ("f16", 128)
        assert (options.kv_type, options.block, options.budget) == (plan.kv_type, plan.block, plan.budget_cells)
        assert runtime.context.memory().kv_bytes == plan.parts.kv


def test_ceilings_change_no_part_of_a_plan(model):
    options = edgekv.Options(budget=100)
    with Estimator(model, Request(options, frozenset())) as estimates:
        first = estimates.plan(options)
        again = estimates.plan(edgekv.Options(budget=100, memory="1GiB", device_memory="1MiB"))
    assert (again.parts, again.ceiling_bytes) == (first.parts, 1 << 30)


@pytest.fixture
def made(model):
    """Lines of llama.cpp's log, which say what it makes."""
    llama, lines = library.bindings(), []
    before, data = llama.llama_log_callback(), ctypes.c_void_p()
    llama.llama_log_get(ctypes.byref(before), ctypes.byref(data))
    noted = llama.llama_log_callback(lambda _level, text, _data: lines.append(text))
    llama.llama_log_set(noted, None)
    yield lines
    llama.llama_log_set(before, data)


def test_a_plan_loads_the_vocabulary_once(model, made):
    """A model with nothing to repack is the same with repacked weights and without."""
    plan = edgekv.plan(model, memory="1GiB", budget=100)
    assert plan.repack is False
    edgekv.survey(model, memory="1GiB", budget=100)
    assert sum(b"loaded meta data" in line for line in made) == 2


def test_queries_on_a_device_are_counted_there(model):
    """Queries lie beside the keys. If an estimate is told of a device that is not there, only they move."""
    native = library.load()
    unprobed = {"focus": False, "archive": "off", "prompt_lookup": "off"}
    with edgekv.Runtime(model, memory="1GiB", budget=100, policy="snapkv(window=24)", **unprobed) as runtime:
        shape, params = runtime.context.shape(), cache_params_of(runtime.options)

    def estimate():
        arguments = (ctypes.byref(shape), ctypes.byref(params))
        return native.edgekv_cache_estimate_bytes(*arguments), native.edgekv_cache_estimate_device_bytes(*arguments)

    here, on_no_device = estimate()
    shape.device_query_row_bytes, shape.query_row_bytes = shape.query_row_bytes, 0
    there, moved = estimate()
    assert on_no_device == 0
    assert moved == here - there == 24 * 2 * 4 * 32 * 4  # rows, layers, heads, elements, bytes


def test_more_rows_than_can_be_counted_are_refused(model):
    with pytest.raises(
        edgekv.ConfigError, match=r"cells for each of 4 KV heads .* 4294967295 can be counted; lower the"
    ):
        edgekv.plan(model, memory="1GiB", budget=1 << 30)
