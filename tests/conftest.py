"""Models that tests share: tiny random ones, made once a run, and the default model where it is installed."""

from __future__ import annotations

import gc
import os
import shutil
import sys
from unittest import mock

import pytest

# Before all that imports numpy: tests multiply small matrices, where numpy's threads wait for each other longer than
# they work. Programs that tests start have as many as those of users.
with mock.patch.dict(os.environ, OPENBLAS_NUM_THREADS="1"):
    import numpy  # noqa: F401

import served  # noqa: F401  (lets tests look behind sessions)
from diagonals import leave_to_the_night
from wheel_environment import build_wheel, install_wheel

from edgekv.memory import process
from edgekv.models import known_models
from edgekv.planning.estimate import Measured
from edgekv.testing.models.tiny import make_tiny

n_exempted = 0  # modules whose objects garbage collection does not look at
MOST_WORKERS = 4  # each has a copy of the models
# files whose tests share what is made once a session, so that one worker runs them: a wheel, and a server
WHEEL_FILES = ("tests/cli/test_wheel.py", "tests/native/test_c_example.py", "tests/desktop/test_desktop_example.py")
CLIENTS = "tests/server/clients"
ASSUMED_BYTES = 1 << 20
PROCESS_BYTES = 100 << 20  # some MiB more than an edgekv that loads nothing
FREE_BYTES = 64 << 30  # every disk of this machine has as much


for _size in ("COLUMNS", "LINES"):
    os.environ.pop(_size, None)  # terminals that tests open have sizes of their own; a worker of xdist is given one


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """Of `-n auto`."""
    n = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(n or 1, MOST_WORKERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """The tests of a file share what is made for them, so one worker runs them all.

    Files come in the order of their names, and not by how many tests they have: those of unit, the last folder, take
    the least time, so that no worker waits long for the last one.
    """
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            if file in WHEEL_FILES:
                return "wheel"
            return CLIENTS if file.startswith(CLIENTS) else file

    config.option.loadscopereorder = False
    return ByFile(config, log)


def pytest_addoption(parser):
    parser.addoption(
        "--device",
        default="host",
        metavar="host|rpc|BACKEND",
        help="where models and caches of tests lie: in this process, at an RPC server on loopback, or on the GPUs of a "
        "backend of the build, such as vulkan",
    )

    parser.addoption(
        "--real",
        metavar="MODEL",
        help="also run tests/real with this model: a path, or a name of scripts/real_models.py that was brought here",
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "two_processes: compares what a model says in two, of which one has no device")
    config.addinivalue_line("markers", "each_by_day(names, ...): the day has each value of these once (diagonals.py)")
    config.addinivalue_line("markers", "no_device: has several slots, which need cells in the host's memory")
    if config.getoption("--device") not in ("host", "rpc"):
        from lent_device import check_backend

        check_backend(config.getoption("--device"))


@pytest.hookimpl(tryfirst=True)  # before pytest leaves `nightly` out
def pytest_collection_modifyitems(config, items):
    leave_to_the_night(items)
    if config.getoption("--device") == "host":
        return
    skip = pytest.mark.skip(reason="the model of another process lies in the host's memory, not on the device")
    refused = pytest.mark.skip(reason="a device has neither means nor several slots")
    for item in items:
        isolated = "isolated" in getattr(getattr(item, "callspec", None), "id", "").split("-")
        if isolated or item.get_closest_marker("two_processes"):
            item.add_marker(skip)
        if item.get_closest_marker("no_device"):
            item.add_marker(refused)


def pytest_sessionstart(session):
    """Look for no garbage while thousands of tests are collected: all of it stays."""
    gc.disable()


def pytest_collection_finish(session):
    """Exempt the objects of thousands of tests from garbage collection, which every plan does."""
    exempt_from_collection()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """Exempt the objects of packages that this test was the first to import, too."""
    if len(sys.modules) > n_exempted:
        exempt_from_collection()


def exempt_from_collection():
    """Keep what lives now until the process ends, even if only a cycle holds it."""
    global n_exempted
    gc.collect()
    gc.freeze()
    n_exempted = len(sys.modules)


@pytest.fixture(autouse=True, scope="session")
def device(request):
    """The place of models and caches: the host, this machine's devices, or a device lent over RPC."""
    name = request.config.getoption("--device")
    if name == "host":
        yield name
        return
    from lent_device import models_on_devices, models_on_lent_device

    with models_on_lent_device() if name == "rpc" else models_on_devices():
        yield name


@pytest.fixture(autouse=True, scope="session")
def no_settings(tmp_path_factory):
    """No test, and no program that one starts, reads the settings of who runs it."""
    file = tmp_path_factory.mktemp("settings") / "config.toml"
    file.touch()
    with mock.patch.dict(os.environ, {"EDGEKV_CONFIG": str(file)}):
        yield


@pytest.fixture(autouse=True, scope="session")
def patience():
    """Workers of this process may be silent for a minute: other programs may hold all processors for some seconds."""
    with mock.patch.multiple("edgekv.worker.worker_process", START_S=60.0, SILENCE_S=60.0):
        yield


@pytest.fixture(autouse=True, scope="session")
def steady_process():
    """Let this process hold the same bytes at all times, a vocabulary and a graph take the same, and disks have room.

    Else two plans would differ by what tests between them allocated or imported, or anybody wrote, and a ceiling that
    one of them names would not hold the other. It is also quick: to measure, the kernel walks all pages of the process
    nine times a plan, which took 30 of the 45 ms in which a tiny model is opened.

    Programs and workers that tests start measure themselves, those of tests/memory among them. A test that measures
    this process imports what does so by name.
    """

    def measured():
        gc.collect()
        return Measured(PROCESS_BYTES, ASSUMED_BYTES, ASSUMED_BYTES)

    def held():
        return PROCESS_BYTES

    usage = shutil.disk_usage

    def disk_usage(folder):
        return usage(folder)._replace(free=FREE_BYTES)

    with (
        mock.patch("edgekv.planning.estimate.measured", measured),
        mock.patch.multiple(process, resident_bytes=held, peak_resident_bytes=held),
        mock.patch.object(shutil, "disk_usage", disk_usage),
    ):
        yield


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A function from `make_tiny`'s arguments to the path of such a model."""
    folder = tmp_path_factory.mktemp("models")
    made = {}

    def make(**arguments):
        key = tuple(sorted(arguments.items()))
        if key not in made:
            made[key] = make_tiny(folder / f"tiny-{len(made)}.gguf", **arguments)
        return made[key]

    return make


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """A function from a text to the path of a file that holds it."""

    def make(text):
        path = tmp_path_factory.mktemp("text") / "book.txt"
        path.write_text(text, encoding="utf-8")
        return path

    return make


@pytest.fixture(scope="session")
def default_model():
    """Path of the default model; tests that need it skip where its package is not installed."""
    path = known_models()[0].path
    if path is None:
        pytest.skip("the default model is not installed; bring it with: edgekv pull smollm2-135m-instruct")
    return path


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    """Path of a wheel of this checkout."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def environment(wheel):
    """The folder of an environment that holds the wheel and the default model."""
    return install_wheel(wheel, wheel.parent / "env")
