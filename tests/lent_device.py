"""Tests whose models and caches lie in memory that is not the host's: at an RPC server of this machine, or on a GPU."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
from children import SUITE_S, started

import edgekv
from edgekv.binding.ggml_devices import add_server
from edgekv.binding.model import Model
from edgekv.devices import devices
from edgekv.planning.native_request import NativeRequest

ALL_LAYERS = 1 << 10


@contextmanager
def reserved_port():
    """A port that the system gives to nobody else. Nothing answers there, unless the block starts an RPC server.

    On Linux a server may listen where a socket is merely bound, if both may reuse the address. Elsewhere it may not, so
    the port is given up.
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        if sys.platform != "linux":
            reserved.close()
        yield port


def wait_for(address, process):
    """Wait until a server answers."""
    while True:
        try:
            return devices(address)
        except edgekv.DeviceError:
            assert process.poll() is None, "the server has ended"
            time.sleep(0.05)


def server_command(port):
    return [sys.executable, "-m", "edgekv", "rpc-server", "--port", str(port), "--threads", "1"]


@contextmanager
def lent_device():
    """HOST:PORT of a server, and its process. Many tests may share it."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with reserved_port() as port, started(server_command(port), limit_s=SUITE_S, **quiet) as process:
        address = f"127.0.0.1:{port}"
        wait_for(address, process)
        yield address, process


@contextmanager
def models_on_lent_device():
    """Every model that this process loads meanwhile lies at a server, as on devices. It runs as long as this."""
    with lent_device() as (address, _):
        add_server(address)
        with models_on_devices():
            yield


@contextmanager
def models_on_devices():
    """Every model that this process loads meanwhile lies on its devices, with its cache, or as many layers as
    are asked for."""
    load, ask = Model.__init__, NativeRequest.__init__

    def load_there(self, path, options, **keywords):
        load(self, path, replace(options, gpu_layers=options.gpu_layers or ALL_LAYERS), **keywords)

    def ask_there(self, *arguments, **keywords):
        ask(self, *arguments, **keywords)
        self.fields.gpu_layers = self.fields.gpu_layers or ALL_LAYERS

    with mock.patch.object(Model, "__init__", load_there), mock.patch.object(NativeRequest, "__init__", ask_there):
        yield


def check_backend(name):
    """Raise UsageError where this build has no GPU that the backend drives. Case does not matter."""
    found = {device.backend.lower() for device in devices() if "gpu" in device.kind}
    if found != {name.lower()}:
        raise pytest.UsageError(
            f"--device {name}: this build finds GPUs of {', '.join(sorted(found)) or 'no backend'}; use host, rpc, or "
            "a build that finds GPUs of that backend alone"
        )
