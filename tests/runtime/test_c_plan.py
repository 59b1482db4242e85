"""The plan that a C program makes is the one that Python makes: the setting, the cells, and every part in bytes."""

from __future__ import annotations

import ctypes as c
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from unittest import mock

import pytest
from children import LIMIT_S
from diagonals import diagonal
from rope_models import ROPE_MODELS
from unsupported_models import make_zeros

import edgekv
from edgekv.binding import library, plan_structs, structs
from edgekv.binding.policy import NativePolicy
from edgekv.grammar.masks import planned_bytes
from edgekv.options import DEFAULT_FOCUS, DRAFT_TOKENS, KV_NAMES, KV_TYPES, MOST_THREADS
from edgekv.planning.choice import Request
from edgekv.planning.estimate import Measured, cache_params_of
from edgekv.planning.native_request import NativeRequest
from edgekv.policies import parse_policy
from edgekv.testing.models.families import make_family

MIB = ASSUMED_BYTES = 1 << 20
HEADER = Path(__file__).resolve().parents[2] / "native" / "include" / "edgekv.h"
# Names in C -> names in Python, if they differ.
NAMES = {
    "host": "python",
    "graph": "graphs",
    "weight": "weights",
    "repack": "repacking",
    "slot": "slots",
    "output": "outputs",
    "reserved": "grammars",
}


def default_request():
    request = plan_structs.PlanRequest()
    library.load().edgekv_plan_request_init(c.byref(request), c.sizeof(request))
    return request


def request_of(**fields):
    """Return a request of C; other fields are its defaults, and a policy is one of `structs`. It assumes what is
    measured, so plans can be compared.
    """
    request = default_request()
    assumed = {"host_bytes": 50 * MIB, "vocabulary_bytes": ASSUMED_BYTES, "graph_bytes": ASSUMED_BYTES}
    for name, value in {"n_threads": 1, **assumed, **fields}.items():
        setattr(request, name, c.pointer(value) if isinstance(value, structs.Policy) else value)
    return request


def c_plan(path, **fields):
    """Return the plan of edgekv_plan_make."""
    request, plan = request_of(**fields), plan_structs.Plan()
    library.call("edgekv_plan_make", str(path).encode(), c.byref(request), c.byref(plan))
    return plan


def parts_of(plan):
    """The parts of a plan of C, by the names of Python's."""
    native = {name.removesuffix("_bytes"): n for name, n in plan.parts.as_dict().items()}
    return {NAMES.get(name, name): n for name, n in native.items()}


def planned_alike(path, of_c, **options):
    """Python's plan under the same ceiling, for a process that holds what C found this one to hold.

    C takes the same policy for every model, makes no drafts and plans no archive, unless the program names another.
    """
    found = Measured(of_c.parts.host_bytes, ASSUMED_BYTES, ASSUMED_BYTES)
    options = {"policy": "keydiff", "prompt_lookup": "off", "threads": 1, "swap_bytes": 0, "archive": "off"} | options
    with mock.patch("edgekv.planning.estimate.measured", return_value=found):
        return edgekv.plan(path, memory=of_c.ceiling_bytes, **options)


def check_equal(of_c, of_python):
    setting = of_c.setting
    assert (setting.budget, setting.block) == (of_python.budget_cells, of_python.block)
    assert (KV_NAMES[setting.kv_type], bool(setting.repack)) == (of_python.kv_type, of_python.repack)
    assert (of_c.layout.n_cells, of_c.layout.n_cells_max) == (of_python.n_cells, of_python.n_cells_max)
    assert (of_c.cell_bytes, of_c.n_ctx_train) == (of_python.cell_bytes, of_python.n_ctx_train)
    parts = parts_of(of_c)
    assert parts == asdict(of_python.parts)
    assert of_c.peak_bytes == sum(parts.values()) == of_python.peak_bytes <= of_c.ceiling_bytes


def ceiling_of(path, budget, *, spare=0, **fields):
    """Bytes that a budget needs, and spare ones."""
    return c_plan(path, ceiling_bytes=1 << 40, budget=budget, **fields).peak_bytes + spare


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_named_type_has_the_same_cells(tiny_model, kv_type):
    path, number = tiny_model(n_layer=2, head_dim=32, n_ctx_train=1 << 14), KV_TYPES[kv_type]
    plan = c_plan(path, ceiling_bytes=ceiling_of(path, 700, kv_type=number), kv_type=number)
    assert plan.setting.budget > 512
    check_equal(plan, planned_alike(path, plan, kv_type=kv_type))


@pytest.mark.parametrize(("budget", "quantization"), diagonal([150, 400, 4000], ["F32", "Q4_0"]))
def test_what_is_left_open_is_chosen_alike(tiny_model, quantization, budget):
    path = tiny_model(n_layer=8, n_head_kv=4, head_dim=128, n_ctx_train=1 << 14, quantization=quantization)
    ceiling = ceiling_of(path, budget, kv_type=KV_TYPES["f16"], block=32, spare=MIB // 4)
    plan = c_plan(path, ceiling_bytes=ceiling)
    assert plan.probe_policy.as_dict() == NativePolicy(parse_policy(DEFAULT_FOCUS)).fields.as_dict()
    check_equal(plan, planned_alike(path, plan))


@pytest.mark.parametrize("spec", ["h2o", "snapkv+critical", "keydiff+caote", "snapkv+ada", "ahakv+pyramid+ada"])
def test_policies_without_probes(tiny_model, spec):
    path, policy = tiny_model(n_layer=2, head_dim=32, n_ctx_train=1 << 14), parse_policy(spec)
    fields = {
        "policy": NativePolicy(policy).fields,
        "n_probe": 0,
        "n_recent": edgekv.Options(policy=policy).recent_cells(512),
    }
    plan = c_plan(path, ceiling_bytes=ceiling_of(path, 600, **fields), **fields)
    check_equal(plan, planned_alike(path, plan, policy=policy, focus=False))


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({"n_draft": DRAFT_TOKENS}, {"prompt_lookup": "on"}),
        ({"n_draft": DRAFT_TOKENS, "block": 64}, {"prompt_lookup": "on", "block": 64}),
        ({"n_slots": 4}, {"parallel": 4}),
        ({"n_recalled": 64}, {"archive": "1GiB"}),
        ({"n_recalled": 64, "probe_scores": 0, "n_spare": 20}, {"archive": "1GiB", "evict_every": 20, "focus": False}),
        ({"swap_memory_bytes": 64 * MIB}, {"swap_memory": "64MiB"}),
        ({"swap_disk_bytes": 1 << 30, "swap_buffer_bytes": MIB // 2}, {"swap_bytes": "1GiB"}),
        ({"n_ubatch": 32, "least_block": 32}, {"ubatch": 32}),
        ({"reserved_bytes": planned_bytes(512, 1)}, {"grammars": True}),
    ],
    ids=str,
)
def test_what_a_program_holds_beside_its_cells(tiny_model, fields, options):
    path = tiny_model(n_layer=2, head_dim=32, n_ctx_train=1 << 14)
    plan = c_plan(path, ceiling_bytes=ceiling_of(path, 600, **fields), **fields)
    check_equal(plan, planned_alike(path, plan, **options))


# sliding windows, recurrent states, nothing to evict, latents, layers that read the rows of others
@pytest.mark.parametrize("name", ["gemma3", "granitehybrid", "mamba2", "deepseek2", "gemma3n"])
def test_every_kind_of_memory(tmp_path, name):
    path = make_family(tmp_path / "model.gguf", name)
    plan = c_plan(path, ceiling_bytes=ceiling_of(path, 60))
    of_python = planned_alike(path, plan)
    check_equal(plan, of_python)
    options = of_python.resolve(edgekv.Options(threads=1, archive="off"))
    assert plan.cache.as_dict() | {"repositions": 1} == cache_params_of(options).as_dict()
    with edgekv.Runtime(path, memory="4GiB", budget=60, block=32, threads=1) as runtime:
        limit = runtime.block_loop.repositioning.limit
        assert plan.cache.repositions == runtime.block_loop.cache.repositions
    assert plan.n_tokens_max == (0xFFFFFFFF if limit is None else limit)


def test_what_is_opened_takes_what_was_planned(tiny_model):
    path = tiny_model(n_layer=2, head_dim=32, n_ctx_train=1 << 14)
    plan = c_plan(path, ceiling_bytes=ceiling_of(path, 300))
    lib, llama = library.load(), library.bindings()
    model, ctx, cache = c.c_void_p(), c.c_void_p(), c.c_void_p()
    library.call("edgekv_plan_open", str(path).encode(), c.byref(plan), c.byref(model), c.byref(ctx), c.byref(cache))
    memory = structs.Memory()
    library.call("edgekv_context_memory", ctx, c.byref(memory))
    assert lib.edgekv_cache_bytes(cache) == plan.parts.bookkeeping_bytes
    assert (memory.kv_bytes, memory.compute_bytes) == (plan.parts.kv_bytes, plan.parts.compute_bytes)
    assert lib.edgekv_cache_n_free(cache) == plan.layout.n_cells
    lib.edgekv_cache_free(cache)
    llama.llama_free(ctx)
    llama.llama_model_free(model)


# C programs name a ceiling, take one thread for each processor, and swap out and archive by themselves.
OF_PYTHON = {"ceiling_bytes", "n_threads", "swap_disk_bytes", "swap_buffer_bytes", "n_recalled"}
POLICIES, POINTERS = {"policy", "probe_policy"}, {"scratch", "limits", "tensor_split"}


def test_defaults_are_those_of_python(tiny_model):
    def plain(fields):
        pointers = {name: bool(getattr(fields, name)) for name in POINTERS}
        return {name: n for name, n in fields.as_dict().items() if name not in OF_PYTHON | POLICIES} | pointers

    of_python = NativeRequest(Request.of(), 0).fields
    assert plain(default_request()) == plain(of_python)
    plan = c_plan(tiny_model(n_layer=2, head_dim=32), ceiling_bytes=1 << 40)
    for name in POLICIES:
        assert getattr(plan, name).as_dict() == getattr(of_python, name).contents.as_dict()
    (limit,) = re.findall(r"#define EDGEKV_HEAD_LIMIT (\d+)", HEADER.read_text())
    assert int(limit) == structs.HEAD_LIMIT


# ---- refusals ----


def refused(path, **fields):
    """Status, message and plan of a request that fails."""
    request = request_of(**{"ceiling_bytes": 1 << 40} | fields)
    plan, err = plan_structs.Plan(), c.create_string_buffer(1024)
    status = library.load().edgekv_plan_make(str(path).encode(), c.byref(request), c.byref(plan), err, 1024)
    return library.load().edgekv_status_name(status).decode(), err.value.decode(), plan


def test_a_ceiling_that_holds_nothing(tiny_model):
    path = tiny_model(n_layer=2, head_dim=32, n_ctx_train=1 << 14)
    status, message, plan = refused(path, ceiling_bytes=MIB)
    assert status == "over ceiling"
    assert message.startswith(f"ceiling_bytes = {MIB} (1.0 MiB) does not hold {path.name} with a budget of 37 cells")
    assert f"raise ceiling_bytes to {plan.peak_bytes}, or choose a smaller model" in message
    assert plan.setting.budget == 37
    assert c_plan(path, ceiling_bytes=plan.peak_bytes).setting.budget >= 37


def test_a_budget_that_does_not_fit(tiny_model):
    path = tiny_model(n_layer=2, head_dim=32, n_ctx_train=1 << 14)
    status, message, plan = refused(path, ceiling_bytes=ceiling_of(path, 300), budget=100_000)
    assert status == "over ceiling"
    (fitting,) = re.findall(r"lower budget to (\d+), or raise ceiling_bytes", message)
    assert plan.setting.budget == 100_000
    assert 300 <= int(fitting) < 100_000


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ceiling_bytes": 0}, "ceiling_bytes = 0 is not possible; give a number in [1, "),
        ({"block": 5000}, "block = 5000 is not possible; give a number in [0, 4096]"),
        ({"kv_type": 3}, "kv_type = 3 is unknown; give GGML_TYPE_F16"),
        ({"budget": 36}, "budget = 36 does not hold the protected cells: 4 sinks and 32 recent; raise it"),
        ({"n_threads": 1000}, "n_threads = 1000 is not possible"),
    ],
)
def test_requests_that_cannot_work(tiny_model, fields, message):
    status, found, _ = refused(tiny_model(), **fields)
    assert (status, found[: len(message)]) == ("invalid argument", message)


def test_more_processors_than_threads_that_can_be(tiny_model, tmp_path):
    """One for every processor, up to the most that ggml takes."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not sys.platform.startswith("linux") or compiler is None:
        pytest.skip("a library that is loaded before the C library needs Linux and a C compiler")
    source, many = tmp_path / "many.c", tmp_path / "many.so"
    source.write_text("int get_nprocs(void) { return 600; }\n")
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", many], check=True)
    code = (
        f"import sys; sys.path[:] = {sys.path!r}; from test_c_plan import c_plan; "
        f"print(c_plan({str(tiny_model())!r}, ceiling_bytes=1 << 40, n_threads=0).n_threads)"
    )
    environment = os.environ | {"LD_PRELOAD": str(many)}
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, timeout=LIMIT_S, check=True, stdout=subprocess.PIPE
    )
    assert int(told.stdout) == MOST_THREADS


def test_a_type_that_the_model_cannot_have(tiny_model):
    path = tiny_model(n_layer=2, head_dim=48, n_ctx_train=1 << 14)
    status, message, _ = refused(path, kv_type=KV_TYPES["q8_0"])
    assert (status, "multiple of 32 elements, but those of the model have 48" in message) == ("invalid argument", True)
    assert c_plan(path, ceiling_bytes=ceiling_of(path, 100)).setting.kv_type == KV_TYPES["f16"]


def test_a_model_whose_keys_cannot_be_turned(tmp_path):
    path = make_zeros(tmp_path / "gpt2.gguf", "gpt2", ROPE_MODELS["gpt2"])
    plan = c_plan(path, ceiling_bytes=1 << 32, budget=64, block=32)
    assert (plan.cache.repositions, plan.n_tokens_max) == (0, plan.n_ctx_train)
    status, message, _ = refused(path, budget=64, block=32, repositions=2)
    assert (status, "architecture 'gpt2' has no RoPE" in message) == ("unsupported", True)


def test_files_that_are_no_models(tmp_path, tiny_model):
    cut, text = tmp_path / "cut.gguf", tmp_path / "text.gguf"
    cut.write_bytes(tiny_model().read_bytes()[:4000])
    text.write_text("no model")
    for path in (cut, text, tmp_path / "none.gguf"):
        status, message, _ = refused(path)
        assert status == "model invalid"
        assert message.startswith(f"{path} is refused: ")
        assert message.endswith("; give the path of a whole GGUF file")


def test_policies_that_compare_values_of_latents(tmp_path):
    path = make_family(tmp_path / "model.gguf", "deepseek2")
    status, message, _ = refused(path, policy=NativePolicy(parse_policy("keydiff+caote")).fields)
    assert status == "invalid argument"
    assert "compares the values of a head, but model.gguf keeps latents" in message
