"""A control group whose high limit is lowered step by step, with a model at work in it: does memory follow?

    python tests/stress/lowered_group.py [--yields 50%] [--steps 6] [--peer PYTHON]

A runtime with `yields` reads texts and replies, on and on. Each step lowers `memory.high` of its group by a tenth of
what the runtime held at first; in version 1 that is `memory.soft_limit_in_bytes`. The hard limit is what it held at
first and a little more. `--peer` names a Python with llama-cpp-python, whose process does the same in another group.
It needs root.

Predicted: the runtime goes under each limit that `yields` reaches, and says so; nobody is killed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from edgekv.memory.sizes import format_size
from edgekv.models.catalog import find_model
from edgekv.testing.limited_group import limited_group
from edgekv.testing.server_process import status_bytes

MORE = 32 << 20  # bytes of the hard limit above what was held at first
STEP_S = 20.0  # the longest that a step may take
OURS = """
import sys, edgekv
with edgekv.Runtime(sys.argv[1], memory="384MiB", threads=1, yields=sys.argv[2]) as rt, rt.session() as session:
    session.read("The old house by the river was red. " * 1200)
    print("ready", flush=True)
    while True:
        "".join(session.ask("And then?", max_tokens=32))
"""
PEERS = """
import sys, llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_ctx=8192, n_threads=1, verbose=False)
model("The old house by the river was red. " * 800, max_tokens=1)
print("ready", flush=True)
while True:
    model("The old house by the river was red. " * 20, max_tokens=32)
"""


def lowered(name: str, command: list[str], n_steps: int) -> bool:
    """Lower the limit of a program; returns True if it lives."""
    with limited_group(4 << 30) as group:
        child = subprocess.Popen(group.entered(command), stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n", "the program does not begin"
            first = status_bytes(child.pid, "VmRSS")
            group.set_limit(group.peak_bytes + MORE)
            for step in range(n_steps + 1):
                high = int(first * (1 - step / 10))
                group.set_high(high)
                end = time.monotonic() + STEP_S
                while (held := status_bytes(child.pid, "VmRSS")) > high and time.monotonic() < end:
                    time.sleep(0.5)
                print(f"{name}: {format_size(high)}: holds {format_size(held)}", flush=True)
            print(f"{name}: killed: {group.n_killed}", flush=True)
            return child.poll() is None
        finally:
            child.kill()
            child.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yields", default="50%")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--peer")
    options = parser.parse_args()
    model = str(find_model(None))
    lives = lowered("edgekv", [sys.executable, "-c", OURS, model, options.yields], options.steps)
    if options.peer:
        lowered("llama-cpp-python", [options.peer, "-c", PEERS, model], options.steps)
    sys.exit(not lives)


if __name__ == "__main__":
    main()
