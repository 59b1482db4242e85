"""List the devices that a build of the library can compute on: its own, and those of servers."""

from __future__ import annotations

import ctypes as c
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edgekv.addresses import parse_servers
from edgekv.binding.ggml_devices import KINDS, all_devices, backend_of, functions

from .server import TIMEOUT_S, remote_memory


@dataclass(frozen=True, slots=True)
class Device:
    """A device as ggml names it.

    name: such as "CPU", "CUDA0", "Vulkan0", or "RPC0" for the first one that a server lends
    description: its maker's; HOST:PORT of a server's device
    kind: "cpu", "gpu", "integrated gpu", "accelerator", or "remote"
    backend: the part of ggml that drives it, such as "CPU", "CUDA" or "RPC"
    total_bytes, free_bytes: its memory; the machine's for the host's processor
    """

    name: str
    description: str
    kind: str
    backend: str
    total_bytes: int
    free_bytes: int


def devices(rpc: str | Sequence[str] = (), *, timeout_s: float = TIMEOUT_S) -> list[Device]:
    """Return the devices of this build, then those of the servers, in order.

    rpc: HOST:PORT of each server, as a list or between commas
    timeout_s: seconds that each server has to answer

    Raises ConfigError for an invalid or public address, DeviceError for a server that does not answer.
    """
    servers = parse_servers(rpc)
    found = list(_own())
    for server in servers:
        for total, free in remote_memory(server, timeout_s):
            number = sum(device.kind == "remote" for device in found)
            found.append(Device(f"RPC{number}", str(server), "remote", "RPC", total, free))
    return found


def _own() -> Iterator[Device]:
    ggml = functions()
    for device in all_devices():
        free, total = c.c_size_t(), c.c_size_t()
        ggml.ggml_backend_dev_memory(device, c.byref(free), c.byref(total))
        yield Device(
            name=ggml.ggml_backend_dev_name(device).decode(),
            description=ggml.ggml_backend_dev_description(device).decode(errors="replace"),
            kind=KINDS.get(ggml.ggml_backend_dev_type(device), "other"),
            backend=backend_of(device),
            total_bytes=total.value,
            free_bytes=free.value,
        )
