"""Memory that threads freed serves the next thread, in processes of edgekv's own."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="heaps are those of glibc")

# Threads are alive together and work one after another. Each keeps its last block, so its freed ones stay below that.
PROGRAM = """
import sys, threading
from edgekv.memory import process
if sys.argv[1] == "one":
    process.use_one_heap()
N_BLOCKS, BLOCK = 160, 100_000
kept, turn, done = [], threading.Lock(), threading.Barrier(5)
def work():
    with turn:
        blocks = [bytearray(b"x" * BLOCK) for _ in range(N_BLOCKS)]
        kept.append(blocks.pop())
        del blocks
    done.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
before = process.resident_bytes()
for thread in threads:
    thread.start()
done.wait()
print(process.resident_bytes() - before)
"""


def grown(heaps):
    ended = subprocess.run([sys.executable, "-c", PROGRAM, heaps], capture_output=True, text=True, check=True)
    return int(ended.stdout)


def test_threads_share_one_heap():
    one_thread = 160 * 100_000
    assert grown("one") < 1.2 * one_thread
    assert grown("several") > 2 * one_thread
