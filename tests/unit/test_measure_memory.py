"""Measurements of a plan are the same whatever was allocated and freed before."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest
from children import LIMIT_S

from edgekv.planning.measure_memory import measure, taken_bytes

MIB = 1 << 20

# Memory that is asked for as zeros becomes resident where it comes from a hole, and stays untouched where it is fresh.
IN_HOLES = """
import ctypes, sys
from edgekv.planning.measure_memory import taken_bytes
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.calloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
SIZE = 60_000
chunks = [libc.malloc(SIZE) for _ in range(2000)]
for chunk in chunks:
    ctypes.memset(chunk, 1, SIZE)
for chunk in chunks[:: int(sys.argv[1])]:
    libc.free(chunk)
work = lambda: [libc.calloc(1, SIZE) for _ in range(900)]
taken_bytes(lambda: None)
print(taken_bytes(work))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at the heap of glibc")
def test_holes_in_the_heap_make_no_difference():
    figures = []
    for step in (10_000, 2):  # one hole, and 1,000 holes
        command = [sys.executable, "-c", IN_HOLES, str(step)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)
        figures.append(int(ended.stdout))
    assert abs(figures[0] - figures[1]) < MIB  # without it, 8 MB


class Thing:
    """A thing that can be closed."""

    closed = False

    def close(self):
        self.closed = True


def test_it_is_what_is_made_that_is_measured(monkeypatch):
    monkeypatch.setattr("edgekv.planning.measure_memory.taken_bytes", taken_bytes)  # other tests assume what it returns
    buffers = []

    def make():
        buffers.append(ctypes.create_string_buffer(b"x" * (8 * MIB)))
        return Thing()

    thing, n_bytes = measure(make)
    assert not thing.closed
    assert 7 * MIB < n_bytes < 20 * MIB


def test_what_is_raised_while_it_is_measured_is_raised():
    with pytest.raises(KeyError, match="missing"):
        taken_bytes(lambda: {}["missing"])
