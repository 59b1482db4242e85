"""The native test programs, plain and with sanitizers, on tiny models and every type of cache.

They are built with the option EDGEKV_BUILD_TESTS, which an editable install sets. EDGEKV_NATIVE_TESTS names the folder
they lie in when it is not `build/*/tests`.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from edgekv.options import KV_TYPES

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    [Path(os.environ["EDGEKV_NATIVE_TESTS"])] if "EDGEKV_NATIVE_TESTS" in os.environ else ROOT.glob("build/*/tests")
)
PROGRAMS = {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("edgekv_*")) if path.is_file()}
NAMES = [f"edgekv_{program}_{flavour}" for program in ("unit", "c_abi") for flavour in ("plain", "sanitized")]
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
}

# head sizes without a rotation (f16, or 32), with one run (64) and with a longer one for keys than for values (128)
MODELS = {
    "head32": {"head_dim": 32},
    "head64": {"head_dim": 64, "architecture": "qwen3"},
    "head128": {"head_dim": 128, "n_layer": 3, "n_head_kv": 4},
}


def run(name, *arguments):
    if name not in PROGRAMS:
        pytest.skip(f"{name} is not built; install in editable mode or configure native/ with EDGEKV_BUILD_TESTS=ON")
    command = [PROGRAMS[name], *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=os.environ | SANITIZERS)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1:] == ["OK"], done.stdout + done.stderr


@pytest.mark.parametrize("kv_type", KV_TYPES)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", NAMES)
def test_program(name, model, kv_type, tiny_model):
    run(name, tiny_model(**MODELS[model]), kv_type)


@pytest.mark.parametrize("name", ["edgekv_unit_plain", "edgekv_unit_sanitized"])
def test_kernels_alone(name):
    """Without a model `unit` tests what works on plain arrays."""
    run(name)
