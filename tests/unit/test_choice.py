"""Choices of the planner, on faked estimates: the order of preference, options that a user named, and refusals."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from diagonals import by_night
from faked_estimates import CELL_BYTES, Estimates, best_plan

import edgekv
from edgekv.binding import plan_structs
from edgekv.errors import CeilingError, ConfigError
from edgekv.options import GPU_UBATCH, KV_TYPES
from edgekv.planning import planner
from edgekv.planning.choice import Request
from edgekv.planning.estimate import Refusal
from edgekv.planning.infeasible import infeasible_error

FIXED = 100_000
BLOCK_BYTES = 400
TO_REPACK = 60_000  # bytes of FIXED
LAYER_BYTES = 8_000  # likewise

# native/src/plan/settings.cpp
ENOUGH_CELLS = 2048
FEW_CELLS = 512
LONG_BLOCK = 512


def bytes_for(cells, kv_type="f16", block=128, *, fixed=FIXED, block_bytes=BLOCK_BYTES):
    return fixed + (cells + block) * CELL_BYTES[kv_type] + block * block_bytes


def chosen(memory, estimates=None, **named):
    plan = best_plan(estimates or Estimates(), memory=memory, **named)
    return None if plan is None else (plan.kv_type, plan.block, plan.budget_cells)


# ---- the order of preference ----


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (bytes_for(3000, "q8_0", LONG_BLOCK), ("q8_0", LONG_BLOCK, 3000)),
        (bytes_for(ENOUGH_CELLS, "q8_0", LONG_BLOCK), ("q8_0", LONG_BLOCK, ENOUGH_CELLS)),
        (bytes_for(ENOUGH_CELLS, "q8_0", LONG_BLOCK) - 1, ("q8_0", 128, ENOUGH_CELLS)),
        (bytes_for(ENOUGH_CELLS, "q8_0") - 1, ("q8_0", 64, ENOUGH_CELLS)),
        (bytes_for(ENOUGH_CELLS, "q8_0", 64) - 1, ("q8_0", 32, ENOUGH_CELLS)),
        (bytes_for(ENOUGH_CELLS, "q8_0", 32) - 1, ("q8_0", 32, ENOUGH_CELLS - 1)),  # none has enough: the most cells
        (bytes_for(37, "q8_0", 32), ("q8_0", 32, 37)),  # the protected cells and one more
        (bytes_for(37, "q8_0", 32) - 1, None),  # q4_0 has to be named
    ],
)
def test_cells_before_speed_until_there_are_enough(memory, expected):
    assert edgekv.Options().least_budget() == 37
    assert chosen(memory) == expected


def test_what_a_slower_setting_leaves_free_goes_to_a_more_exact_type():
    """The compute buffer binds here."""
    estimates, least = Estimates(block_bytes=50_000), bytes_for(ENOUGH_CELLS, block=64, block_bytes=50_000)
    assert chosen(least, estimates) == ("f16", 64, ENOUGH_CELLS)
    assert chosen(least - 1, estimates) == ("q8_0", 64, ENOUGH_CELLS)


def test_f16_where_it_holds_as_much_of_the_trained_context():
    small = Estimates(n_ctx_train=4000)
    most = 4000 - LONG_BLOCK - 64
    assert chosen(bytes_for(most, block=LONG_BLOCK), small) == ("f16", LONG_BLOCK, most)
    assert chosen(bytes_for(most, block=LONG_BLOCK) - 1, small) == ("q8_0", LONG_BLOCK, most)
    assert chosen(bytes_for(most, "q8_0", LONG_BLOCK) - 1, small) == ("q8_0", LONG_BLOCK, most - 1)


SHAPED = [
    (400, {}, {}),
    (20_000, {"n_layers": 10}, {"focus": False}),
    (400, {"n_layers": 10}, {"resident": "50%"}),
    (400, {"n_layers": 10, "n_ctx_train": 300}, {}),
    (400, {"to_repack": TO_REPACK}, {"reposition": "never", "evict_every": 64}),
    (400, {"n_layers": 10}, {"block": 64}),
]
MORE_SHAPED = [
    (0, {"n_layers": 10}, {}),
    (400, {"n_layers": 10}, {}),
    (400, {"n_layers": 10}, {"policy": "snapkv+ada"}),
    (20_000, {"n_layers": 10, "n_ctx_train": 2500}, {}),
    (400, {"n_layers": 1}, {"kv_type": "f16"}),
    (400, {}, {"gpu_layers": 9}),
]


@pytest.mark.parametrize(("block_bytes", "shape", "named"), by_night(SHAPED + MORE_SHAPED, SHAPED), ids=str)
def test_more_memory_never_means_fewer_cells(block_bytes, shape, named):
    estimates = Estimates(block_bytes=block_bytes, **shape)
    cells = []
    for memory in np.geomspace(101_000, 4_000_000 + 520 * block_bytes, 60).astype(int).tolist():
        plan = best_plan(estimates, memory=memory, **named)
        cells.append(0 if plan is None else plan.budget_cells)
        assert plan is None or plan.fits
    assert cells == sorted(cells)
    assert cells[-1] > cells[0]


def test_the_whole_trained_context_is_enough():
    small = Estimates(n_ctx_train=300)
    stay = {"reposition": "never"}
    assert chosen(bytes_for(10_000), small, **stay) == ("f16", 128, 300)
    assert chosen(bytes_for(300), small, **stay) == ("f16", 128, 300)
    assert chosen(bytes_for(300) - 1, small, **stay) == ("q8_0", 128, 300)


def test_cells_a_block_and_a_probe_have_positions_in_the_trained_context():
    small = Estimates(n_ctx_train=300)
    assert chosen(bytes_for(10_000), small) == ("f16", 128, 300 - 128 - 64)
    assert chosen(bytes_for(10_000), small, focus=False, block=32) == ("f16", 32, 300 - 32 - 64)
    assert chosen(bytes_for(10_000), small, focus=False, block=32, archive="off") == ("f16", 32, 300 - 32)
    assert chosen(bytes_for(10_000), small, policy="snapkv+ada", block=32) == ("f16", 32, (300 - 32 - 64) // 3)


def test_blocks_are_longer_where_a_probe_follows_each_and_cells_abound():
    memory = bytes_for(ENOUGH_CELLS, block=LONG_BLOCK)
    assert chosen(memory)[1] == LONG_BLOCK
    assert chosen(memory, focus=False)[1] == chosen(memory, block=128)[1] == 128
    assert chosen(memory, budget=ENOUGH_CELLS) == ("f16", LONG_BLOCK, ENOUGH_CELLS)
    assert chosen(memory, budget=ENOUGH_CELLS - 1) == ("f16", 128, ENOUGH_CELLS - 1)
    short = Estimates(n_ctx_train=ENOUGH_CELLS + LONG_BLOCK + 64)
    assert chosen(memory, short)[1:] == (LONG_BLOCK, ENOUGH_CELLS)
    short = Estimates(n_ctx_train=ENOUGH_CELLS + LONG_BLOCK + 63)  # has no positions for them
    assert chosen(memory, short)[1:] == (128, short.n_ctx_train - 128 - 64)


def test_blocks_are_longer_where_a_gpu_decodes_more_tokens_at_once():
    gpu = {"gpu_layers": 9, "focus": False}
    once, twice = GPU_UBATCH, 2 * GPU_UBATCH
    assert chosen(bytes_for(3000, "q8_0", twice), **gpu) == ("q8_0", twice, 3000)
    assert chosen(bytes_for(ENOUGH_CELLS, "q8_0", twice) - 1, **gpu) == ("q8_0", once, ENOUGH_CELLS)
    assert chosen(bytes_for(ENOUGH_CELLS, "q8_0", once) - 1, **gpu) == ("q8_0", 128, ENOUGH_CELLS)
    assert chosen(bytes_for(64, block=twice), budget=64, **gpu) == ("f16", twice, 64)
    assert chosen(bytes_for(64, block=twice), budget=64, block=32, **gpu) == ("f16", 32, 64)
    short = Estimates(n_ctx_train=ENOUGH_CELLS + once + 64)  # has no positions for the longest, and for a probe
    assert chosen("1GiB", short, **gpu) == ("f16", once, ENOUGH_CELLS)
    assert chosen("1GiB", budget=64, gpu_layers=9, ubatch=128)[1] == 128
    assert chosen("1GiB", budget=64, gpu_layers=9, rpc="127.0.0.1:50052", isolated=True)[1] == 128


# ---- what is named stays ----


def test_what_a_user_names_stays():
    short = bytes_for(100)
    assert chosen(short, kv_type="f16") == ("f16", 32, 234)
    assert chosen(short, block=128) == ("q8_0", 128, 301)
    assert chosen(short, kv_type="f16", block=128) == ("f16", 128, 100)
    assert chosen(bytes_for(3000), kv_type="q4_0", focus=False) == ("q4_0", 128, 11003)
    assert chosen(bytes_for(3000, "q8_0", 7), block=7) == ("q8_0", 7, 3000)
    assert chosen(bytes_for(37, "q4_0", 32), kv_type="q8_0") is None


def test_a_named_budget_is_held_as_exactly_as_it_fits():
    assert chosen(bytes_for(1000), budget=1000) == ("f16", 128, 1000)
    assert chosen(bytes_for(1000) - 1, budget=1000) == ("q8_0", 128, 1000)
    assert chosen(bytes_for(1000, "q8_0", 128) - 1, budget=1000) == ("q8_0", 64, 1000)
    assert chosen(bytes_for(1000, "q8_0", 32) - 1, budget=1000) is None
    assert chosen(bytes_for(1000) - 1, budget=1000, kv_type="f16", block=128) is None


def test_evictions_every_so_often_need_a_block_of_as_many():
    assert chosen(bytes_for(200, "q8_0", 32), evict_every=64) == ("q8_0", 64, 143)


@pytest.mark.parametrize("named", [{"ubatch": 40}, {"parallel": 40}], ids=str)
def test_a_block_is_no_shorter_than_what_is_decoded_at_once(named):
    assert chosen(bytes_for(200, "q8_0", 32), **named) == ("q8_0", 64, 143)
    assert chosen(bytes_for(37, "q8_0", 32), **named) is None


def test_types_that_a_model_cannot_have_are_passed_over_unless_named():
    odd = Estimates(impossible=("q8_0", "q4_0"))
    assert chosen(bytes_for(100), odd) == ("f16", 32, 234)
    with pytest.raises(ConfigError, match="use kv_type=f16"):
        chosen(bytes_for(100), odd, kv_type="q8_0")


@pytest.mark.parametrize("keys_turn_back", [True, False])
def test_one_policy_is_the_default_of_all_models_and_cells(default_model, tmp_path, monkeypatch, keys_turn_back):
    """But keys that cannot be turned back are scored as they are. A policy that is named stays."""

    class Estimated(Estimates):
        def shape(self, request):
            if not keys_turn_back and request.options.parsed_policy.base.before_rope:
                raise edgekv.UnsupportedModelError("no")
            return super().shape(request)

    monkeypatch.setattr(planner, "Estimator", lambda *_: contextlib.nullcontext(Estimated()))
    own = tmp_path / "model.gguf"
    own.touch()
    options = ({}, {"budget": 40}, {"budget": 2000}, {"kv_type": "q4_0"}, {"archive": "off"})
    found = {
        planner.make_plan(model, Request.of(memory="1GiB", **given)).policy
        for model in (default_model, own)
        for given in options
    }
    assert found == {"keydiff(rope=off)" if keys_turn_back else "keydiff"}
    assert planner.make_plan(own, Request.of(memory="1GiB", policy="tova")).policy == "tova"


def test_options_become_what_was_planned():
    request = Request.of(memory=bytes_for(100), policy="tova")
    assert request.open == {"block", "kv_type", "repack", "resident", "gpu_layers", "tensor_split"}
    plan = Estimates().best(request)
    resolved = plan.resolve(request.options)
    assert (resolved.block, resolved.kv_type, resolved.budget) == (plan.block, plan.kv_type, plan.budget_cells)
    assert resolved.parsed_policy.spec == "tova"
    again = Estimates().best(Request(resolved, frozenset()))
    assert again == plan


# ---- streaming ----


def streamed(memory, estimates=None, **named):
    plan = best_plan(estimates or Estimates(n_layers=10), memory=memory, **named)
    return None if plan is None else (plan.n_streamed, plan.kv_type, plan.block, plan.budget_cells)


SHORT = bytes_for(ENOUGH_CELLS, "q8_0", 32)  # the least memory in which all weights leave enough cells


LARGE = 50_000_000
LARGE_LAYER = 4_000_000


def streamed_all(cells, block):
    """Return the least memory that holds so many cells, if all ten layers are streamed, through two slots."""
    return bytes_for(cells, "q8_0", block, fixed=LARGE) - 8 * LARGE_LAYER


@pytest.mark.parametrize(
    ("memory", "expected"),
    [
        (bytes_for(ENOUGH_CELLS, "q8_0", 32, fixed=LARGE), (0, "q8_0", 32, ENOUGH_CELLS)),
        # There are two slots, so the third layer frees memory.
        (bytes_for(ENOUGH_CELLS, "q8_0", 32, fixed=LARGE) - 1, (3, "f16", LONG_BLOCK, ENOUGH_CELLS)),
        (streamed_all(ENOUGH_CELLS, 128) + 3 * LARGE_LAYER, (7, "q8_0", 128, ENOUGH_CELLS)),
        (streamed_all(ENOUGH_CELLS, 128), (10, "q8_0", 128, ENOUGH_CELLS)),
        # Fewer cells come before a shorter block.
        (streamed_all(ENOUGH_CELLS, 128) - 1, (10, "f16", 128, ENOUGH_CELLS // 2)),
        (streamed_all(ENOUGH_CELLS // 2, 128), (10, "q8_0", 128, ENOUGH_CELLS // 2)),
        (streamed_all(ENOUGH_CELLS // 2, 128) - 1, (10, "q8_0", 128, FEW_CELLS)),
        (streamed_all(FEW_CELLS, 128), (10, "q8_0", 128, FEW_CELLS)),
        (streamed_all(FEW_CELLS, 128) - 1, (10, "q8_0", 64, FEW_CELLS)),
        (streamed_all(FEW_CELLS, 32), (10, "q8_0", 32, FEW_CELLS)),
        (streamed_all(FEW_CELLS, 32) - 1, (10, "q8_0", 32, FEW_CELLS - 1)),
    ],
)
def test_as_few_layers_are_streamed_as_leave_enough_cells_in_full_blocks(memory, expected):
    assert streamed(memory, Estimates(n_layers=10, fixed=LARGE, layer_bytes=LARGE_LAYER)) == expected


def test_blocks_are_shorter_before_cells_are_fewer_where_no_token_comes_back():
    estimates = Estimates(n_layers=10, fixed=LARGE, layer_bytes=LARGE_LAYER)
    memory = streamed_all(ENOUGH_CELLS, 128) - 1
    assert streamed(memory, estimates, archive="off") == (10, "q8_0", 64, ENOUGH_CELLS)
    assert streamed(streamed_all(ENOUGH_CELLS, 32) - 1, estimates, archive="off") == (10, "q8_0", 32, ENOUGH_CELLS - 1)


def test_what_a_layer_leaves_free_goes_to_longer_blocks_and_a_more_exact_type():
    """More cells would be lost when the layer comes back."""
    estimates = Estimates(n_layers=10, fixed=LARGE, layer_bytes=LARGE_LAYER)
    least = bytes_for(ENOUGH_CELLS, "q8_0", 128, fixed=LARGE) - 5 * LARGE_LAYER
    assert streamed(least, estimates) == (7, "q8_0", 128, ENOUGH_CELLS)
    more = bytes_for(ENOUGH_CELLS, "f16", LONG_BLOCK, fixed=LARGE) - 5 * LARGE_LAYER
    assert streamed(more, estimates) == (7, "f16", LONG_BLOCK, ENOUGH_CELLS)
    assert streamed(least + LARGE_LAYER, estimates) == (6, "q8_0", 128, ENOUGH_CELLS)


def test_a_full_block_where_layers_are_streamed():
    """A short block would have them read again more often."""
    estimates = Estimates(n_layers=10, block_bytes=0)
    assert streamed(SHORT - 32 * 400 - 1, estimates)[:3] == (9, "q8_0", 128)
    assert streamed(SHORT - 32 * 400 - 1, estimates, block=64)[:3] == (5, "q8_0", 64)


def test_layers_that_a_user_names_or_rules_out():
    assert streamed(SHORT - 1, resident="50%")[0] == 5
    assert streamed(SHORT * 10, resident=0)[0] == 10
    assert streamed(SHORT - 1, resident=1) == streamed(SHORT - 1, mmap=True) == (0, "q8_0", 32, ENOUGH_CELLS - 1)
    assert streamed(SHORT - 1, kv_type="q4_0")[0] == 0  # the type that is named gives enough
    assert streamed(SHORT - 1, budget=100)[0] == 0  # likewise the budget
    assert streamed(bytes_for(140, "q8_0", 32) - 1, budget=140, kv_type="q8_0")[0] == 3


# ---- repacking ----


@pytest.mark.parametrize(
    ("given", "repacked"),
    [
        ({}, True),
        ({"budget": 300}, True),
        ({"mmap": False}, True),
        ({"focus": False, "policy": "snapkv+critical"}, True),
        ({"repack": True}, True),
        ({"repack": False}, False),
        ({"mmap": True}, False),
    ],
    ids=str,
)
def test_weights_are_repacked_unless_a_user_says_otherwise(given, repacked):
    request = Request.of(memory=bytes_for(1000, "q8_0", 32), **given)
    plan = Estimates(to_repack=TO_REPACK).best(request)
    assert (plan.repack, plan.mmap) == (repacked, not repacked)
    resolved = plan.resolve(request.options)
    assert (resolved.repack, resolved.mmap) == (repacked, not repacked)
    assert plan.budget_cells == given.get("budget", 1000)


@pytest.mark.parametrize("memory", [bytes_for(5000), bytes_for(ENOUGH_CELLS, "q8_0") - 1, bytes_for(37, "q8_0", 32)])
def test_repacking_takes_neither_cells_nor_types_nor_blocks(memory):
    assert chosen(memory, Estimates(to_repack=TO_REPACK)) == chosen(memory, repack=False)


def test_weights_stay_mapped_where_only_they_fit():
    estimates = Estimates(to_repack=TO_REPACK, more=bytes_for(1000))
    memory = bytes_for(1000, "q8_0", 32)
    mapped = best_plan(estimates, memory=memory, repack=False)
    assert best_plan(estimates, memory=memory) == mapped
    assert mapped.budget_cells == 1000
    assert best_plan(estimates, memory=memory, repack=True) is None


@pytest.mark.parametrize("given", [{}, {"mmap": False}])
def test_a_model_with_nothing_to_repack_is_planned_as_before(given):
    plan = best_plan(Estimates(), memory=bytes_for(1000), **given)
    assert plan == best_plan(Estimates(), memory=bytes_for(1000), repack=False, **given)
    assert (plan.repack, plan.mmap) == (False, not given)


def test_repacked_weights_are_not_mapped():
    assert not edgekv.Options(repack=True).maps_weights
    with pytest.raises(ConfigError, match="hold the weights twice"):
        edgekv.Options(repack=True, mmap=True)


# ---- refusals, and a device's ceiling ----


def refused(plan, request, **remedies):
    error = infeasible_error(request, Refusal(plan, plan_structs.Remedies(**remedies)))
    assert isinstance(error, CeilingError)
    return error


def test_a_refusal_names_what_is_least_over_and_what_would_fit():
    request = Request.of(memory=bytes_for(100), budget=5000)
    least = Estimates().plan(replace(request.options, kv_type="q8_0", block=32))
    error = refused(least, request, budget=301)
    assert error.required_bytes == bytes_for(5000, "q8_0", 32)
    assert error.ceiling_bytes == bytes_for(100)
    assert "with a budget of 5000 cells (kv_type=q8_0, block=32)" in str(error)
    assert "lower the budget to 301, or raise the ceiling to 3MiB" in str(error)
    error = refused(least, request, budget=1999, kv_type=KV_TYPES["q8_0"], block=32)
    assert "lower the budget to 1999, or use kv_type=q8_0, or use block=32, or raise the ceiling" in str(error)
    small = Request.of(memory=FIXED * 3 // 4)
    error = refused(Estimates().plan(replace(small.options, budget=37)), small)
    assert "choose a smaller model" in str(error)
    assert "lower the budget" not in str(error)


def test_a_device_has_a_ceiling_of_its_own():
    device = Estimates(on_device=1)
    rows = (300 + 128) * 1000
    named = {"device_memory": rows, "kv_type": "f16", "block": 128, "gpu_layers": 9}
    assert chosen("1MiB", device, **named) == ("f16", 128, 300)
    request = Request.of(memory="1MiB", budget=301, **named)
    assert device.best(request) is None
    error = refused(device.plan(request.options), request, budget=300)
    assert (error.required_bytes, error.ceiling_bytes) == (rows + 1000, rows)
    of = "9 layers of model.gguf with a budget of 301 cells: "
    assert str(error).startswith(f"device_memory=0.4 MiB of CUDA0 does not hold {of}")
    remedies = ("lower the budget to 300", "raise the ceiling of CUDA0 to 1MiB", "fewer than gpu_layers=9 layers")
    for remedy in remedies:
        assert remedy in str(error)
    assert chosen("1MiB", device, device_memory=None, budget=301, block=128, gpu_layers=9) == ("f16", 128, 301)
    assert chosen("1MiB", Estimates(), device_memory=1, budget=301) == ("f16", 128, 301)  # nothing lies on a device
