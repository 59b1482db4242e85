"""Layers are divided over devices so that the least room for a layer is as large as possible."""

from __future__ import annotations

import itertools
import types
import warnings

import pytest

from edgekv.addresses import parse_servers, warn_of_networks
from edgekv.planning.assign_layers import assign_layers, layers_per_device
from edgekv.planning.choice import Request
from edgekv.planning.device_shares import DeviceShare, limited


@pytest.mark.parametrize("rooms", [(60, 30), (10, 100, 35), (50, 50, 50), (7, 0, 90)])
def test_no_other_division_leaves_more(rooms):
    n = 9
    divisions = (counts for counts in itertools.product(range(n + 1), repeat=len(rooms)) if sum(counts) == n)
    counts = layers_per_device(rooms, 1, [n] * len(rooms), n)
    assert sum(counts) == n
    assert _least_room(rooms, counts) == max(_least_room(rooms, other) for other in divisions)


def _least_room(rooms, counts):
    return min(room / count for room, count in zip(rooms, counts, strict=True) if count)


def test_only_what_fits_is_placed():
    assert layers_per_device([25, 9, 31], 10, [100, 100, 100], 100) == [2, 0, 3]
    assert layers_per_device([25, 9, 31], 10, [1, 100, 2], 100) == [1, 0, 2]
    assert layers_per_device([0, 0], 1, [5, 5], 5) == [0, 0]


class Estimates:
    """Devices with something fixed and as much for each layer, as llama.cpp divides them."""

    layer_bytes = 10.0

    def __init__(self, fixed):
        self.fixed = fixed

    def plan(self, options):
        parts = options.split or (1.0,) * len(self.fixed)
        n_items = min(options.gpu_layers, 13)
        of = [0] * len(parts)
        for item in range(n_items):
            ends = itertools.accumulate(part / sum(parts) for part in parts)
            of[next(d for d, end in enumerate(ends) if item / n_items < end - 1e-9)] += 1
        last = max(d for d, n in enumerate(of) if n)
        shares = [
            DeviceShare(f"RPC{d}", "", n - (d == last), d == last, 10 * n + 40 * (d == last), 0, fixed, 0, 0)
            for d, (n, fixed) in enumerate(zip(of, self.fixed, strict=True))
        ]
        return types.SimpleNamespace(devices=limited(shares, options, ()))


@pytest.mark.parametrize(
    ("ceilings", "expected"),
    [
        ("RPC0=1KiB,RPC1=1KiB", (6.0, 7.0)),  # the second has the output matrix as well
        ("RPC0=100B,RPC1=150B", (6.0, 7.0)),
        ("RPC0=70B,RPC1=1KiB", (0.0, 13.0)),  # there each layer has more room than one would have on the first
        ("RPC0=1KiB,RPC1=30B", (13.0, 0.0)),  # too small for the output matrix
        ("RPC0=50B,RPC1=100B", (4.0, 5.0)),  # four layers stay here
        ("RPC0=20B,RPC1=20B", (20.0, 20.0)),  # nothing fits, which a refusal has to say
    ],
)
def test_layers_go_where_they_fit(ceilings, expected):
    request = Request.of(rpc="a:1,b:2", isolated=True, device_memory=ceilings, memory="1GiB")
    assert assign_layers(Estimates((10, 10)), request).options.split == expected


def test_networks_are_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_networks(parse_servers("127.0.0.1:5"))
        with pytest.raises(UserWarning, match=r"10\.1\.2\.3:5 is not encrypted"):
            warn_of_networks(parse_servers("127.0.0.1:5,10.1.2.3:5"))
