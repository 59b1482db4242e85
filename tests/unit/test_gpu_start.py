"""GPUs of this machine: they are started before a plan is made, which counts what they take of the host's memory."""

import pytest

import edgekv
from edgekv.binding import ggml_devices
from edgekv.options import Options
from edgekv.planning import estimate, planner
from edgekv.planning.device_shares import CUDA_CONTEXT_BYTES, DeviceShare, context_bytes

MIB = 1 << 20


@pytest.fixture
def processor_as_gpu(monkeypatch):
    """The processor counts as a GPU."""
    monkeypatch.setattr(ggml_devices, "GPUS", (0,))
    ggml_devices.start_gpus.cache_clear()
    yield
    ggml_devices.start_gpus.cache_clear()


def test_each_gpu_is_started_once(processor_as_gpu, monkeypatch):
    started = []
    multiply = ggml_devices._multiply
    monkeypatch.setattr(ggml_devices, "_multiply", lambda device: started.append(device) or multiply(device))
    assert [ggml_devices.start_gpus(), ggml_devices.start_gpus()] == [1, 1]
    assert len(started) == 1


def test_devices_of_servers_are_not_started_here(processor_as_gpu, monkeypatch):
    monkeypatch.setattr(ggml_devices, "backend_of", lambda device: "RPC")
    assert ggml_devices.start_gpus() == 0


def test_a_plan_counts_what_a_gpu_takes_of_the_host(tiny_model, monkeypatch):
    monkeypatch.setattr(planner, "has_gpu", lambda: True)
    monkeypatch.setattr(estimate, "start_gpus", lambda: 1)
    options = {"memory": "4GiB", "budget": 64, "block": 32}
    without, with_layers = (edgekv.plan(tiny_model(), gpu_layers=n, **options) for n in (0, 2))
    assert with_layers.parts.python - without.parts.python == estimate.GPU_KERNEL_BYTES


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        ({}, 128),
        ({"gpu_layers": 2}, 512),
        ({"gpu_layers": 2, "rpc": ["127.0.0.1:50052"], "isolated": True}, 128),
        ({"gpu_layers": 2, "ubatch": 64}, 64),
    ],
    ids=["processor", "gpu", "server", "named"],
)
def test_a_gpu_decodes_more_tokens_at_once(options, tokens):
    assert Options(block=1024, **options).n_ubatch == tokens


@pytest.mark.parametrize(
    ("name", "address", "options", "expected"),
    [
        ("CUDA0", "", {}, CUDA_CONTEXT_BYTES),
        ("Vulkan0", "", {}, 0),
        ("Vulkan0", "", {"gpu_context": "8MiB"}, 8 * MIB),
        ("CUDA0", "", {"gpu_context": 1}, 1),
        ("RPC0", "10.0.0.2:50052", {"gpu_context": "8MiB"}, 0),
    ],
)
def test_the_context_of_a_driver_is_that_of_a_gpu_here(name, address, options, expected):
    share = DeviceShare(name, address, layers=1, output=False, weights=0, kv=0, compute=0, scoring=0, serving=0)
    assert context_bytes(share, Options(**options)) == expected
