"""Planning: from a ceiling in bytes to a budget in cells, before any weight is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from edgekv.binding.devices import has_gpu
from edgekv.errors import ConfigError
from edgekv.memory.limits import check_ceiling
from edgekv.options import Options

from .choice import Request, choose
from .estimate import Estimator, Plan
from .refusal import refusal


def check_device(options: Options) -> None:
    """Raise ConfigError for options that need a GPU if llama.cpp finds none."""
    if has_gpu():
        return
    named = [("gpu_layers", options.gpu_layers or None), ("device_memory", options.device_memory)]
    for name, value in named:
        if value is not None:
            raise ConfigError(
                f"{name}={value} needs a GPU, and there is none, or this build cannot use it; leave {name} out, or "
                "build edgekv for the GPU with CMAKE_ARGS=-DGGML_CUDA=ON (on macOS -DGGML_METAL=ON)"
            )


@contextmanager
def planned(path: Path, request: Request) -> Iterator[tuple[Plan, Estimator]]:
    """The plan for a model file, and the estimates it was chosen from. Given options are kept; the rest is chosen.

    Raises CeilingError where nothing fits.
    """
    check_ceiling(request.options.ceiling_bytes)
    check_device(request.options)
    with Estimator(path, request.preferred) as estimates:
        plan = choose(estimates, request)
        if plan is None:
            raise refusal(estimates, request)
        yield plan, estimates


def make_plan(path: Path, request: Request) -> Plan:
    """The plan for a model file. Raises CeilingError where nothing fits."""
    with planned(path, request) as (plan, _):
        return plan
