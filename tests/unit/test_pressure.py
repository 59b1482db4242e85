"""Pressure: what each system's source reads, and how far and how slowly a ceiling follows it."""

from __future__ import annotations

import ctypes
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

import edgekv
from edgekv.errors import ConfigError
from edgekv.memory import yielding
from edgekv.memory.pressure import LinuxPressure, mac_pressure, windows_pressure
from edgekv.memory.yielding import CALM_LOOKS, STEPS, Watch, Yielding


class Kernel:
    """Files of a kernel: pressure of the machine, and control groups of both versions."""

    def __init__(self, folder):
        self.proc, self.groups, self.mount = folder / "memory", folder / "cgroup", folder / "fs"
        self.new, self.old = self.mount / "app", self.mount / "memory" / "app"
        for group in (self.new, self.old):
            group.mkdir(parents=True)
        self.groups.write_text("4:memory:/app\n1:name=systemd:/\n0::/app\n")

    def source(self):
        return LinuxPressure(self.proc, self.groups, self.mount)

    def hold(self, **n_bytes):
        (self.new / "memory.stat").write_text("".join(f"{name} {n}\n" for name, n in n_bytes.items()))

    def throttle(self, n_times, high):
        (self.new / "memory.high").write_text(f"{high}\n")
        (self.new / "memory.events").write_text(f"low 0\nhigh {n_times}\nmax 0\noom 0\n")

    @staticmethod
    def stall(file, percent):
        file.write_text(f"some avg10={percent} avg60=0.00 avg300=0.00 total=1\nfull avg10=99.00 avg60=0.00 total=1\n")


@pytest.fixture
def kernel(tmp_path):
    return Kernel(tmp_path)


@pytest.mark.parametrize("where", ["proc", "new"])
def test_linux_tells_that_tasks_wait_for_memory(kernel, where):
    file = kernel.proc if where == "proc" else kernel.new / "memory.pressure"
    source = kernel.source()
    found = []
    for percent in ("0.00", "9.99", "10.00", "55.20", "0.00"):
        kernel.stall(file, percent)
        found.append(source())
    assert found == [False, False, True, True, False]


def test_linux_tells_that_a_group_went_above_its_high_limit_since_the_last_look(kernel):
    kernel.hold(anon=600, file_mapped=310, file=5000)
    kernel.throttle(7, high=1000)
    source = kernel.source()
    found = [source()]
    for n in (8, 8, 9):
        kernel.throttle(n, high=1000)
        found.append(source())
    assert found == [False, True, False, True]


def test_linux_does_not_count_that_a_limit_went_below_what_an_idle_group_holds(kernel):
    kernel.hold(anon=600, file_mapped=310, file=5000)
    kernel.throttle(7, high=1000)
    source = kernel.source()
    found = []
    for high in (910, 909, 909, 1000):
        kernel.throttle(7, high)
        found.append(source())
    assert found == [False, True, True, False]


@pytest.mark.parametrize("high", ["1000", "max"])
def test_linux_drops_pages_of_files_that_were_read_before_anything_is_short(kernel, high):
    kernel.hold(anon=600, file_mapped=200, file=5000)
    kernel.throttle(7, high)
    source = kernel.source()
    kernel.throttle(8, high)
    assert not source()


def test_linux_tells_that_a_group_of_version_1_is_above_its_soft_limit(kernel):
    (kernel.old / "memory.stat").write_text("cache 9000\nrss 1\ntotal_rss 600\ntotal_mapped_file 300\n")
    found = []
    for limit in (1000, 900, 899):
        (kernel.old / "memory.soft_limit_in_bytes").write_text(str(limit))
        found.append(kernel.source()())
    assert found == [False, False, True]


def test_linux_without_these_files_is_never_short(tmp_path):
    assert not LinuxPressure(tmp_path / "no", tmp_path / "none", tmp_path)()


@pytest.mark.parametrize("text", ["", "some\n", "some avg10=much\n"])
def test_linux_files_that_say_nothing_are_left_out(kernel, text):
    kernel.proc.write_text(text)
    (kernel.new / "memory.events").write_text("high\n")
    assert not kernel.source()()


@pytest.mark.parametrize(("level", "failed", "expected"), [(1, 0, False), (2, 0, True), (4, 0, True), (4, -1, False)])
def test_macos_tells_its_level(level, failed, expected):
    def sysctlbyname(name, value, size, new, n_new):
        assert (name, size._obj.value, new, n_new) == (b"kern.memorystatus_vm_pressure_level", 4, None, 0)
        value._obj.value = level
        return failed

    assert mac_pressure(SimpleNamespace(sysctlbyname=sysctlbyname))() is expected


@pytest.mark.parametrize(("is_low", "worked", "expected"), [(0, 1, False), (1, 1, True), (1, 0, False)])
def test_windows_tells_that_memory_is_low(is_low, worked, expected):
    def create(kind):
        assert kind == 0
        return 77

    def query(handle, found):
        assert (type(handle), handle.value) == (ctypes.c_void_p, 77)
        found._obj.value = is_low
        return worked

    library = SimpleNamespace(CreateMemoryResourceNotification=create, QueryMemoryResourceNotification=query)
    assert windows_pressure(library)() is expected


def test_a_ceiling_goes_down_at_once_and_comes_back_in_steps():
    yields = Yielding(0.4)
    assert not yields.look(is_short=False)
    assert yields.ceiling(1000) == 1000
    assert yields.look(is_short=True)
    assert yields.ceiling(1000) == 600
    assert not yields.look(is_short=True)
    moves = [yields.ceiling(1000) for _ in range(STEPS * CALM_LOOKS + 5) if yields.look(is_short=False)]
    assert moves == [700, 800, 900, 1000]


def test_pressure_on_the_way_back_begins_the_calm_again():
    yields = Yielding(0.4)
    yields.look(is_short=True)
    assert not any(yields.look(is_short=False) for _ in range(CALM_LOOKS - 1))
    assert not yields.look(is_short=True)
    assert not any(yields.look(is_short=False) for _ in range(CALM_LOOKS - 1))
    assert yields.look(is_short=False)
    assert yields.look(is_short=True)
    assert yields.ceiling(1000) == 600
    yields.begin()
    assert yields.ceiling(1000) == 1000


def test_a_watch_tells_what_its_source_says_and_ends_with_its_owner(monkeypatch):
    monkeypatch.setattr(yielding, "LOOK_S", 0)
    said, told = SimpleQueue(), SimpleQueue()
    owners = [told.put]
    watch = Watch(lambda: owners[0] if owners else None, said.get)
    for is_short in (True, False, True):
        said.put(is_short)
        assert told.get() is is_short
    owners.clear()
    said.put(True)
    watch._thread.join()
    assert told.empty()


def test_a_closed_watch_ends(monkeypatch):
    monkeypatch.setattr(yielding, "LOOK_S", 3600)
    watch = Watch(lambda: None, lambda: False)
    watch.close()
    watch._thread.join()


@pytest.mark.parametrize("share", ["-1%", "101%", 2, "much", True])
def test_a_share_that_cannot_be_is_refused(share):
    with pytest.raises(ConfigError, match=r"yields=.* is not possible; give a share from 0 to 1"):
        edgekv.Options(yields=share)


def test_a_runtime_with_layers_on_a_device_does_not_yield():
    with pytest.raises(ConfigError, match="leave yields out, or gpu_layers"):
        edgekv.Options(yields="25%", gpu_layers=1)
