"""The native test programs, plain and with sanitizers, on tiny models and every type of cache.

An install does not build them. The first test that needs them does, in the build folder of the editable install, whose
llama.cpp they link; that takes some minutes once, and compiles what changed afterwards. EDGEKV_NATIVE_BUILD names
another build folder, such as one for another processor with an emulator for its programs (scripts/test_arm64.sh).
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from diagonals import diagonal

from edgekv.options import KV_TYPES
from edgekv.testing.models.families import make_family

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("unit", "c_abi")
BUILD_SECONDS = 3600  # a limit against hanging; two cores take two minutes
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks={leaks}:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}

# head sizes without a rotation (f16, or 32), with one run (64) and with a longer one for keys than for values (128);
# the weights of the last are repacked where the processor has an order of its own
MODELS = {
    "head32": {"head_dim": 32},
    "head64": {"head_dim": 64, "architecture": "qwen3"},
    "head128": {"head_dim": 128, "n_layer": 3, "n_head_kv": 4, "quantization": "Q4_0"},
}
DEFAULT_SHAPE = {"n_layer": 30, "n_head": 9, "n_head_kv": 3, "head_dim": 64, "n_ctx_train": 4096}
FEW_LAYERS = DEFAULT_SHAPE | {"n_layer": 8, "n_head": 3}


def tool(cache, key, command):
    """Return the path of a tool of the build that CMakeCache.txt names, or of the one in PATH if that one is gone."""
    (kept,) = re.findall(rf"^{key}:\w+=(.*)$", cache.read_text(), re.MULTILINE)
    path = shutil.which(kept) or shutil.which(command)  # a cross compiler may be kept by its name alone
    if path is None:
        pytest.skip(f"{kept} has built edgekv and is gone; install {command} to build the native tests")
    return path


@pytest.fixture(scope="session")
def programs(request):
    """The folder of the programs, built from the sources as they are."""
    named = os.environ.get("EDGEKV_NATIVE_BUILD")
    found = [Path(named) / "CMakeCache.txt"] if named else ROOT.glob("build/py3-none-*/CMakeCache.txt")
    caches = sorted(found, key=lambda cache: cache.stat().st_mtime)
    if not caches:
        pytest.skip("edgekv is not installed in editable mode, in whose build folder the native tests are built")
    build, cmake = caches[-1].parent, tool(caches[-1], "CMAKE_COMMAND", "cmake")
    settings = {
        "CMAKE_MAKE_PROGRAM": tool(caches[-1], "CMAKE_MAKE_PROGRAM", "ninja"),
        "CMAKE_CXX_COMPILER": tool(caches[-1], "CMAKE_CXX_COMPILER", "c++"),
        "Python_EXECUTABLE": sys.executable,  # the install's own Python existed during the install alone
    }
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\nbuilding the native tests: some minutes the first time", flush=True)
    for command in (
        [cmake, "-S", ROOT / "native", "-B", build, *(f"-D{name}={value}" for name, value in settings.items())],
        [cmake, "--build", build, "--target", "edgekv_tests", "--parallel", str(os.cpu_count())],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_SECONDS)
        if done.returncode != 0:
            line = " ".join(map(str, command))
            pytest.fail(f"the native tests do not build: {line}\n{done.stdout[-6000:]}{done.stderr}")
    return build / "tests"


def emulator(program):
    """Return the command that runs a program of another processor: what its build names, or nothing."""
    cache = (program.parents[1] / "CMakeCache.txt").read_text()
    found = re.search(r"^CMAKE_CROSSCOMPILING_EMULATOR:\w+=(.+)$", cache, re.MULTILINE)
    return found[1].split(";") if found else []


def run(program, *arguments):
    of_windows = program.with_suffix(".exe")
    command = [*emulator(program), of_windows if of_windows.is_file() else program, *arguments]
    leaks = 0 if emulator(program) else 1  # the search for them stops a program's threads, which an emulator cannot
    options = {name: value.format(leaks=leaks) for name, value in SANITIZERS.items()}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env=os.environ | options)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1:] == ["OK"], done.stdout + done.stderr
    return done.stdout


FIRST, *OTHERS = KV_TYPES
# Models and types of cache by day; `unit`, which is dear, has each type once, and heads with rotated rows.
PAIRS = diagonal(list(MODELS), [*OTHERS, FIRST])
DAILY = {"edgekv_unit_plain": PAIRS[1:], "edgekv_unit_sanitized": [("head64", "q8_0")]}
FAILING = {"edgekv_unit_plain": [("head64", "q4_0")], "edgekv_unit_sanitized": []}


def matrix(programs, daily):
    """Every program on every pair of a model and a type of cache, of which most are for the night."""
    for program, model, kv_type in itertools.product(programs, MODELS, KV_TYPES):
        for name in (f"edgekv_{program}_plain", f"edgekv_{program}_sanitized"):
            marks = [] if (model, kv_type) in daily.get(name, PAIRS) else pytest.mark.nightly
            yield pytest.param(name, model, kv_type, marks=marks)


@pytest.mark.parametrize(("name", "model", "kv_type"), list(matrix(PROGRAMS, DAILY)))
def test_program(programs, name, model, kv_type, tiny_model):
    run(programs / name, tiny_model(**MODELS[model]), kv_type)


@pytest.mark.parametrize(("name", "model", "kv_type"), list(matrix(["unit"], FAILING)))
def test_every_allocation_fails_in_turn(programs, name, model, kv_type, tiny_model):
    """Allocations that fail in turn take longer than all other tests of a cache together."""
    run(programs / name, tiny_model(**MODELS[model]), kv_type, "failures")


@pytest.mark.parametrize(
    ("name", "kv_type"),
    [*(("edgekv_c_abi_plain", kv_type) for kv_type in KV_TYPES), ("edgekv_c_abi_sanitized", "q8_0")],
)
def test_a_cache_of_latents(programs, name, kv_type, tmp_path):
    run(programs / name, make_family(tmp_path / "model.gguf", "deepseek2"), kv_type)


@pytest.mark.parametrize(
    "name", ["edgekv_unit_plain", pytest.param("edgekv_unit_sanitized", marks=pytest.mark.nightly)]
)
def test_kernels_alone(programs, name):
    """Without a model `unit` tests what works on plain arrays; with one it does not test that again."""
    run(programs / name)


@pytest.mark.parametrize("name", ["edgekv_late_plain", "edgekv_late_sanitized"])
@pytest.mark.parametrize("family", ["lfm2", "falcon-h1", "mamba2"])
def test_a_device_that_computes_late(programs, name, family, tiny_model, tmp_path):
    run(programs / name, make_family(tmp_path / "model.gguf", family), tiny_model(n_layer=2, n_head_kv=2))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("edgekv_counts_plain", FEW_LAYERS),
        pytest.param("edgekv_counts_plain", DEFAULT_SHAPE, marks=pytest.mark.nightly),
        pytest.param("edgekv_counts_sanitized", DEFAULT_SHAPE, marks=pytest.mark.nightly),
    ],
    ids=["few layers", "default", "sanitized"],
)
def test_what_a_device_is_told_to_do(programs, name, shape, tiny_model):
    """The limits are those of the default model's layers and heads. Eight layers show what is told to each of them."""
    print(run(programs / name, tiny_model(**shape)))


def test_a_compiler_cache_compares_no_path_of_the_checkout(programs):
    """Paths below the cache's base folder are compared by content; any other path misses in every other folder."""
    build = programs.parent
    ninja = tool(build / "CMakeCache.txt", "CMAKE_MAKE_PROGRAM", "ninja")
    command = [ninja, "-C", build, "-t", "commands", "edgekv"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    cached = [line for line in listed.splitlines() if "CCACHE_BASEDIR=" in line and " -c " in line]
    if not cached:
        pytest.skip("the library was built without ccache")
    for line in cached:
        (base,) = re.findall(r"CCACHE_BASEDIR=(\S+)", line)
        folders = map(Path, re.findall(r"(?:-I|-isystem |-map=)(/[^\s=]+)", line))
        assert [folder for folder in folders if folder.is_relative_to(ROOT) and not folder.is_relative_to(base)] == []
