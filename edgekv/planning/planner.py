"""Planning: from a ceiling in bytes to a budget in cells, before any weight is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from edgekv.archive.space import disk_folder
from edgekv.binding.ggml_devices import has_gpu
from edgekv.errors import ConfigError, UnsupportedModelError
from edgekv.memory.sizes import check_ceiling
from edgekv.models.header import Header
from edgekv.options import TURNED_POLICY, Options

from .assign_layers import assign_layers
from .choice import Request
from .default_memory import lowered
from .device_shares import add_remote_devices
from .estimate import Estimator, suits_drafts
from .infeasible import infeasible_error
from .plan import Plan


def check_device(options: Options) -> None:
    """Raise ConfigError for options that need a device if llama.cpp finds none, remote ones among them."""
    named = [
        ("gpu_layers", options.gpu_layers or None),
        ("device_memory", options.device_memory),
        ("tensor_split", options.tensor_split and ",".join(f"{part:g}" for part in options.tensor_split)),
    ]
    for name, value in named:
        if value is not None and not has_gpu():
            raise ConfigError(
                f"{name}={value} needs a GPU, and there is none, or this build cannot use it; leave {name} out, or "
                "build edgekv for the GPU with CMAKE_ARGS=-DGGML_CUDA=ON (on macOS -DGGML_METAL=ON)"
            )


@contextmanager
def planned(path: Path, request: Request) -> Iterator[tuple[Plan, Estimator, Request]]:
    """Yield the plan for a model file, its estimator, and the request with its layers divided.

    Given options are kept; the rest is chosen. Raises CeilingError if nothing fits, DeviceError for a server that does
    not answer.
    """
    request, no_disk = _with_archive(request)
    request = request.of_model(path)
    check_ceiling(request.options.ceiling_bytes)
    remotes = add_remote_devices(request.options)
    check_device(request.options)
    with Estimator(path, request, remotes) as estimates:
        request = assign_layers(estimates, _settled(estimates, request))
        plan = estimates.best(request)
        if plan is None:
            raise infeasible_error(request, estimates.refusal(request))
        plan = replace(plan, archive_obstacle=no_disk)
        if "memory" in request.open:
            plan, options = lowered(plan, request.options)
            request = replace(request, options=options)
        yield plan, estimates, request


def _settled(estimates: Estimator, request: Request) -> Request:
    """Return the request with a policy that the model's cells allow, if that is open, and `prompt_lookup` settled."""
    try:
        shape = estimates.shape(request)
    except UnsupportedModelError:
        if "policy" not in request.open:
            raise
        request = replace(request, options=replace(request.options, policy=TURNED_POLICY))
        shape = estimates.shape(request)
    options = request.options
    if options.prompt_lookup != "auto":
        return request
    here = not options.gpu_layers and not options.rpc
    return replace(request, options=replace(options, prompt_lookup="on" if here and suits_drafts(shape) else "off"))


def _with_archive(request: Request) -> tuple[Request, str]:
    """Return the request without an archive="auto" that no disk takes, and why.

    Raises ConfigError for an archive of a named size: in memory it would take what the ceiling saves.
    """
    options = request.options
    if not options.archives or options.swap_dir is not None or disk_folder() is not None:
        return request, ""
    no_disk = "no folder of temporary files that can be written to lies on a disk"
    if options.archive != "auto":
        raise ConfigError(f"archive={options.archive} needs a disk, and {no_disk}; name a folder with swap_dir")
    return replace(request, options=replace(options, archive="off")), no_disk


def make_plan(path: Path, request: Request) -> Plan:
    """Return the plan for a model file. Raises CeilingError if nothing fits."""
    with planned(path, request) as (plan, *_):
        return plan


def plan_to_load(path: Path, request: Request) -> tuple[Plan, Header]:
    """Return the plan for a model file, and the header to load it with. Raises CeilingError if nothing fits."""
    with planned(path, request) as (plan, estimates, _):
        return plan, estimates.header
