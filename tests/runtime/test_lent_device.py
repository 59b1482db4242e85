"""Devices of RPC servers: what they lend, and a cache that lies there.

`pytest --device rpc` runs other tests so; a few of them run here, in a pytest of their own. With `--device vulkan` they
run on a GPU, or on a driver that makes one of the processor.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from children import LIMIT_S
from lent_device import check_backend, lent_device, reserved_port
from recorded import recorded_runtime
from test_exactness import SHAPES, assert_exact
from test_kept_sets import read_and_check

import edgekv
from edgekv.addresses import private_address
from edgekv.binding import library
from edgekv.devices import devices
from edgekv.planning.estimate import cache_params_of

HERE = Path(__file__).parent
SELECTED = [
    "test_exactness.py::test_logits_equal_a_transformer_that_masks_the_same_triples[llama-q8_0]",
    "test_reposition.py::test_always_and_never",  # its heads are shorter than the runs that attention reads
    "test_lent_device.py::test_the_cache_lies_on_the_device",
    "test_lent_device.py::test_a_plan_counts_what_a_driver_takes_of_a_device",
    "test_lent_device.py::test_heads_begin_where_the_device_can_read[q8_0]",
    "test_lent_device.py::test_layers_here_and_there[keydiff+ada-q8_0]",
    "test_kept_sets.py::test_heads_that_share_keep_what_the_reference_keeps[keydiff+pyramid+ada-q8_0]",
    "test_snapshot.py::test_a_restored_session_goes_on_as_one_that_never_left[snapkv+ada-q8_0]",
    "test_archive.py::test_recalled_rows_are_to_the_bit_those_that_were_evicted[snapkv+ada-q8_0]",
]
BY_NIGHT = [
    "test_archive.py::test_what_is_recalled_is_what_the_reference_finds_best[off-0-f16]",
    "../kinds/test_device_reads.py::test_attention_reads_from_where_a_device_can[q8_0]",
    "../kinds/test_exact.py::test_quantised_rows_of_evicted_cells_too[deepseek2]",
]


@pytest.fixture(scope="module")
def server():
    with lent_device() as (address, _):
        yield address


def edgekv_command(*arguments):
    command = [sys.executable, "-m", "edgekv", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


@pytest.mark.parametrize(
    "selected", [SELECTED, pytest.param(BY_NIGHT, marks=pytest.mark.nightly)], ids=["day", "night"]
)
def test_some_tests_run_over_rpc(device, selected):
    if device != "host":
        pytest.skip("these tests run on another device already")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device", "rpc"]
    run = subprocess.run(
        [*command, *(str(HERE / name) for name in selected)], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(selected)} passed" in run.stdout, run.stdout


def test_the_cache_lies_on_the_device(tiny_model, device):
    if device == "host":
        pytest.skip("run by test_some_tests_run_over_rpc, with --device rpc")
    with edgekv.Runtime(tiny_model(n_layer=2), memory="4GiB", budget=64, block=32) as runtime:
        assert runtime.context.shape().staged
        assert runtime.plan.parts.kv == 0
        assert runtime.plan.device_bytes > runtime.plan.kv_bytes
        assert runtime.context.memory().device_bytes <= runtime.plan.device_bytes
        context, params = runtime.context, cache_params_of(runtime.options)
        (share,) = runtime.plan.devices
        shape = context.shape()
        scoring = library.load().edgekv_cache_estimate_device_bytes(c.byref(shape), c.byref(params))
        assert share.scoring == scoring > 0
        assert share.total == context.memory().device_bytes + scoring
        assert (share.layers, share.output) == (2, True)


def test_a_plan_counts_what_a_driver_takes_of_a_device(tiny_model, device):
    if device == "host":
        pytest.skip("run by test_some_tests_run_over_rpc, with --device rpc")
    path = tiny_model(n_layer=2)
    setting = {"memory": "4GiB", "budget": 64, "block": 32, "gpu_layers": 3}
    (without,), (with_context,) = (
        edgekv.plan(path, gpu_context=n_bytes, **setting).devices for n_bytes in (None, "8MiB")
    )
    assert with_context == replace(without, context=8 << 20)
    assert edgekv.plan(path, gpu_context="8MiB", device_memory=with_context.total, **setting).fits
    with pytest.raises(edgekv.CeilingError, match="does not hold"):
        edgekv.plan(path, gpu_context="8MiB", device_memory=with_context.total - 1, **setting)


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
def test_heads_begin_where_the_device_can_read(tiny_model, device, kv_type):
    """Also where their rows are no multiple of its alignment."""
    if device == "host":
        pytest.skip("run by test_some_tests_run_over_rpc, with --device rpc")
    shape = {"n_layer": 2, "n_embd": 128, "n_head": 4, "n_head_kv": 2, "head_dim": 64}
    n_kept = read_and_check(tiny_model(**shape, n_ctx_train=1024), shape, "keydiff", kv_type=kv_type, budget=67)
    assert (n_kept[-1] == 67).all()


def test_a_backend_that_the_build_lacks_is_named():
    with pytest.raises(pytest.UsageError, match="--device cpu: this build finds GPUs of"):
        check_backend("cpu")


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("policy", ["keydiff", "keydiff+ada"])
def test_layers_here_and_there(tiny_model, device, policy, kv_type):
    """One layer of three lies on the device. Attention reads beyond the heads there, and not beyond those here."""
    if device == "host":
        pytest.skip("run by test_some_tests_run_over_rpc, with --device rpc")
    path = tiny_model(n_layer=3, n_ctx_train=1024, **SHAPES["llama"])
    tokens = np.random.default_rng(4).integers(3, 250, 256 + 20).tolist()
    options = {"policy": policy, "budget": 90, "block": 64, "kv_type": kv_type, "gpu_layers": 2}  # the output is one
    with recorded_runtime(path, n_layer=3, n_head_kv=2, **options) as run:
        prefill = run.read(tokens[:256])
        decoded = [run.step(token) for token in tokens[256:]]
        assert 0 < run.runtime.plan.parts.kv < run.runtime.plan.kv_bytes
        assert len(run.compactions) >= 2
    assert_exact(path, tokens, run, 256, prefill, decoded, kv_type)


def test_own_devices_begin_the_list(server):
    own = devices()
    assert [(device.kind, device.backend) for device in own if device.name == "CPU"] == [("cpu", "CPU")]
    assert all(device.total_bytes > 0 for device in own if device.kind == "cpu")
    listed = devices(server)
    assert [device.name for device in listed[: len(own)]] == [device.name for device in own]
    (lent,) = listed[len(own) :]
    assert (lent.name, lent.kind, lent.backend, lent.description) == ("RPC0", "remote", "RPC", server)
    assert 0 < lent.free_bytes <= lent.total_bytes


def test_a_command_lists_them(server):
    run = edgekv_command("devices", "--rpc", server, "--json")
    assert run.returncode == 0, run.stderr
    assert [device["description"] for device in json.loads(run.stdout) if device["kind"] == "remote"] == [server]
    table = edgekv_command("devices").stdout
    assert "CPU" in table
    assert "RPC" not in table


def test_a_server_that_is_not_there_is_named():
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"
        with pytest.raises(edgekv.DeviceError, match=f"{address} does not answer as an RPC server"):
            devices(address)
        run = edgekv_command("devices", "--rpc", address)
    assert run.returncode == 1
    assert address in run.stderr
    assert "Traceback" not in run.stderr


def test_a_server_that_says_nothing_is_named():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(edgekv.DeviceError, match=f"{address} does not answer within 0\\.2 s"):
            devices(address, timeout_s=0.2)


def test_a_killed_server_is_named():
    with lent_device() as (address, process):
        os.kill(process.pid, signal.SIGKILL)
        process.wait(LIMIT_S)
        with pytest.raises(edgekv.DeviceError, match=f"{address} does not answer"):
            devices(address)


@pytest.mark.parametrize("answer", [b"\xff" * 64, b"\x1c" + bytes(7) + b"\x06" + bytes(27), b"HTTP/1.1 400"])
def test_what_answers_as_no_server_of_this_version_is_refused(answer):
    with socket.create_server(("127.0.0.1", 0)) as other:

        def say():
            connection, _ = other.accept()
            with connection:
                connection.recv(64)
                connection.sendall(answer)

        thread = threading.Thread(target=say)
        thread.start()
        try:
            with pytest.raises(edgekv.DeviceError, match=r"does not answer as|speaks version"):
                devices(f"127.0.0.1:{other.getsockname()[1]}", timeout_s=20)
        finally:
            thread.join(LIMIT_S)


@pytest.mark.parametrize(
    "address", ["", "localhost", ":50052", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "::1:5"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(edgekv.ConfigError, match="is no HOST:PORT"):
        devices(address)


def test_public_addresses_are_refused():
    with pytest.raises(edgekv.ConfigError, match=r"8\.8\.8\.8 is the public address"):
        devices("8.8.8.8:50052")
    with pytest.raises(edgekv.ConfigError, match=r"public address 0\.0\.0\.0"):
        private_address("0.0.0.0")
    run = edgekv_command("rpc-server", "--host", "0.0.0.0")
    assert run.returncode == 2
    assert "public address" in run.stderr


def test_a_server_is_named_once():
    with pytest.raises(edgekv.ConfigError, match="named twice"):
        devices("127.0.0.1:5,127.0.0.1:5")


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        run = edgekv_command("rpc-server", "--port", str(port))
    assert run.returncode == 1
    assert f"nothing can listen at 127.0.0.1:{port}" in run.stderr
