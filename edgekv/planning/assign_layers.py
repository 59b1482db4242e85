"""Layers divided over devices, so that each device stays under its ceiling and as many cells as possible fit.

A device holds fixed bytes, such as graph buffers and the output matrix, and equal bytes for each of its layers. A plan
tells both for one division. The next division follows from it, until the same one comes out again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from edgekv.options import Options

from .choice import Request
from .device_shares import DeviceShare
from .estimate import Estimator

ALL_LAYERS = 1 << 20  # more layers than any model has, so the output matrix is among them
SMALL_BLOCK = 32  # the smallest block that the planner chooses


def assign_layers(estimates: Estimator, request: Request) -> Request:
    """Return the request with layers divided over the devices, if that is open: all of them, or as many as fit."""
    options = request.options
    if not (options.servers or options.device_ceilings):
        return request
    open_layers = "gpu_layers" in request.open and bool(options.servers)
    if open_layers:
        request = _with(request, gpu_layers=ALL_LAYERS)
    if "tensor_split" not in request.open or not request.options.gpu_layers:
        return request
    return _divided(estimates, request, may_leave=open_layers)


def layers_per_device(rooms: Sequence[float], layer_bytes: float, most: Sequence[int], n_layers: int) -> list[int]:
    """Return the layers of each device, so that the least room for a layer is as large as possible.

    rooms: bytes of each device for layers; layer_bytes: of one layer; most: the most layers of each device

    Each layer goes to the device with most room for each of its layers (D'Hondt's method). Fewer than n_layers if no
    more fit.
    """
    counts = [0] * len(rooms)
    for _ in range(n_layers):
        left = [room / (n + 1) if n < limit else 0.0 for room, n, limit in zip(rooms, counts, most, strict=True)]
        best = max(range(len(left)), key=left.__getitem__)
        if left[best] < layer_bytes:
            break
        counts[best] += 1
    return counts


def _divided(estimates: Estimator, request: Request, *, may_leave: bool) -> Request:
    """Divide the layers until the division stays the same. may_leave: layers may stay in the host's memory"""
    small = _small(request)
    first = shares = estimates.plan(small).devices
    n_layers = sum(share.layers for share in first)
    if not n_layers or (len(first) < 2 and not may_leave):
        return request
    layer_bytes = estimates.layer_bytes + sum(share.kv for share in first) / n_layers
    most = [n_layers] * len(first)  # layers that a device may get; fewer if a plan showed that they do not fit
    counts: list[int] = []
    for _ in range(n_layers):
        rooms = [_room(share, layer_bytes) for share in shares]
        for d, share in enumerate(shares):
            if share.excess_bytes and counts:
                most[d] = max(0, counts[d] - 1)
            if share.output and rooms[d] < layer_bytes:
                most[d] = 0  # no layer fits beside the output matrix
        fitting = layers_per_device([max(0.0, room) for room in rooms], layer_bytes, most, n_layers)
        if fitting == counts:
            break
        counts = fitting
        if not sum(counts) or (sum(counts) < n_layers and not may_leave):
            return _with(request, tensor_split=_proportions(first))  # the error says what is missing
        request = _with(request, gpu_layers=sum(counts) + 1, tensor_split=_with_output(counts))
        shares = estimates.plan(_with_layers_of(small, request)).devices
    return request


def _small(request: Request) -> Options:
    """Return the smallest setting that may be chosen. A division for it leaves most bytes for cells."""
    options = request.options
    block = max(SMALL_BLOCK, options.evict_every or 1) if "block" in request.open else options.block
    return replace(options, block=block, budget=options.budget or options.least_budget())


def _room(share: DeviceShare, layer_bytes: float) -> float:
    """Return the bytes that a device has for layers."""
    allowed = math.inf if share.allowed_bytes is None else share.allowed_bytes
    return allowed - (share.total - share.layers * layer_bytes)


def _proportions(shares: Sequence[DeviceShare]) -> tuple[float, ...]:
    return tuple(float(1 if share.allowed_bytes is None else share.allowed_bytes) for share in shares)


def _with_output(counts: Sequence[int]) -> tuple[float, ...]:
    """Return proportions that give devices so many layers, and the output matrix to the last device with layers."""
    last = max(d for d, count in enumerate(counts) if count)
    return tuple(float(count + (d == last)) for d, count in enumerate(counts))


def _with(request: Request, **chosen: object) -> Request:
    return replace(request, options=replace(request.options, **chosen))  # type: ignore[arg-type]


def _with_layers_of(options: Options, request: Request) -> Options:
    placed = request.options
    return replace(options, gpu_layers=placed.gpu_layers, tensor_split=placed.tensor_split)
