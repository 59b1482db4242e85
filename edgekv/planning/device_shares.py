"""Bytes planned for each device, and their limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from edgekv.binding import library, structs
from edgekv.binding.ggml_devices import add_server
from edgekv.errors import ConfigError
from edgekv.options import Options

CUDA_CONTEXT_BYTES = 524 << 20  # measured once: an H200, driver 580.159, CUDA 13.0


class RemoteDevice(NamedTuple):
    """A device of a server, and the bytes that it had free when it was asked.

    address: HOST:PORT; several devices may have the same
    """

    name: str
    address: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """Bytes that a runtime will hold on one device.

    name: ggml's, such as "CUDA0" or "RPC0"
    address: HOST:PORT of the server that lends it, or ""
    layers: number of layers that have their weights and cells there
    output: the output matrix lies there, too
    weights, kv: of these layers; compute: graph buffers; scoring: what scoring and moving take there, and queries
    serving: bytes that the server holds besides while it computes
    context: bytes that the driver of a GPU of this machine takes there besides
    states: of kv, sliding windows and recurrent states
    ceiling_bytes: None = it was given none
    free_bytes: bytes that a server's device had free before; None = it was not asked
    """

    name: str
    address: str
    layers: int
    output: bool
    weights: int
    kv: int
    compute: int
    scoring: int
    serving: int
    context: int = 0
    states: int = 0
    ceiling_bytes: int | None = None
    free_bytes: int | None = None

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return self.weights + self.kv + self.compute + self.scoring + self.serving + self.context

    @property
    def allowed_bytes(self) -> int | None:
        """The most that may lie there; None = any number."""
        return min((n for n in (self.ceiling_bytes, self.free_bytes) if n is not None), default=None)

    @property
    def excess_bytes(self) -> int:
        """Bytes over `allowed_bytes`; 0 if the share fits."""
        return 0 if self.allowed_bytes is None else max(0, self.total - self.allowed_bytes)

    def __str__(self) -> str:
        return f"{self.name} ({self.address})" if self.address else self.name


def add_remote_devices(options: Options) -> tuple[RemoteDevice, ...]:
    """Add the devices of the servers of `rpc` to this process, and return them with their free bytes.

    Raises ConfigError for a public address, DeviceError for a server that does not answer, NativeError without RPC.
    """
    if not options.servers:
        return ()
    from edgekv.devices.server import TIMEOUT_S, remote_memory  # few plans need it

    asked = [(str(server), remote_memory(server, TIMEOUT_S)) for server in options.servers]
    library.load().edgekv_rpc_limit_silence(max(1, round(options.rpc_timeout * 1000)))
    return tuple(
        RemoteDevice(name, address, free)
        for address, memory in asked
        for name, (_, free) in zip(add_server(address), memory, strict=True)
    )


def share_of(usage: structs.DeviceShare, remotes: Sequence[RemoteDevice]) -> DeviceShare:
    """Return a device's usage as a share without limits."""
    addresses = {device.name: device.address for device in remotes}
    name = usage.name.decode()
    return DeviceShare(
        name=name,
        address=addresses.get(name, ""),
        layers=usage.n_layers,
        output=bool(usage.has_output),
        weights=usage.weight_bytes,
        kv=usage.kv_bytes,
        compute=usage.compute_bytes,
        scoring=usage.scoring_bytes,
        serving=usage.serving_bytes,
        context=usage.context_bytes,
        states=usage.state_bytes,
    )


def context_bytes(share: DeviceShare, options: Options) -> int:
    """Return the bytes that a driver takes of a GPU of this machine beside all buffers."""
    if share.address:
        return 0
    if options.gpu_context_bytes is not None:
        return options.gpu_context_bytes
    return CUDA_CONTEXT_BYTES if share.name.startswith("CUDA") else 0


def limited(
    shares: Sequence[DeviceShare], options: Options, remotes: Sequence[RemoteDevice]
) -> tuple[DeviceShare, ...]:
    """Return the shares with their limits: the ceilings of the options, and the free bytes of servers.

    Raises ConfigError for a ceiling of no device, for one without a name if there are several devices, and for
    proportions of more or fewer devices.
    """
    if options.split and len(options.split) != len(shares):
        raise ConfigError(
            f"tensor_split has {len(options.split)} parts, and the devices are {', '.join(map(str, shares))}; give one "
            "part for each"
        )
    ceilings = dict(_ceilings(shares, options))
    free = {device.name: device.free_bytes for device in remotes}
    return tuple(
        replace(share, ceiling_bytes=ceilings.get(share.name), free_bytes=free.get(share.name)) for share in shares
    )


def _ceilings(shares: Sequence[DeviceShare], options: Options) -> Iterator[tuple[str, int]]:
    """Yield the ceilings by ggml's names."""
    if options.device_ceiling_bytes is not None:
        if len(shares) > 1:
            size = options.device_memory
            raise ConfigError(
                f"device_memory={size} is the ceiling of one device, and there are {', '.join(map(str, shares))}; name "
                f"each, as in {shares[0].name}={size}"
            )
        yield from ((share.name, options.device_ceiling_bytes) for share in shares)
    addresses = [share.address for share in shares]
    for name, n_bytes in options.device_ceilings:
        named = [share for share in shares if name in (share.name, share.address)]
        if not named:
            raise ConfigError(
                f"device_memory names {name}, and the devices are {', '.join(map(str, shares))}; name one of them"
            )
        if len(named) > 1:
            raise ConfigError(
                f"device_memory names {name}, which lends {addresses.count(name)} devices; name each: "
                f"{', '.join(share.name for share in named)}"
            )
        yield named[0].name, n_bytes
