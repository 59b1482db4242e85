"""A control group whose limits go down step by step, with a model at work in it: does memory follow?

    python tests/stress/lowered_group.py [--model tiny] [--yields 50%] [--steps 4] [--archive off] [--peer PYTHON]

A runtime with `yields` reads a text, then replies on and on. Each step lowers `memory.high` of its
group by a share of what the group held at first. At its end `memory.max` goes down to that and a little more: a program
that did not follow is killed. Pages of files that nobody maps are not counted, since the kernel drops them. `--peer`
names a Python with llama-cpp-python, which does the same in another group, with a context of as many cells.

Control groups of version 1 have `memory.soft_limit_in_bytes` in place of `memory.high`, which throttles nobody, and
refuse a hard limit below what is held. `scripts/run_in_uml.sh` has version 2 on any machine. It needs root.

Predicted: the runtime goes under each limit that `yields` reaches, and says so; it is not killed. The peer is.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from edgekv.memory.sizes import format_size
from edgekv.models.catalog import find_model
from edgekv.testing.limited_group import limited_group
from edgekv.testing.models.tiny import make_tiny

FREE_BYTES = 4 << 30  # the hard limit at first
MORE = 24 << 20  # bytes of the hard limit above the high one
TINY = {"n_layer": 8, "n_head": 8, "n_head_kv": 8, "head_dim": 128}  # 32 KiB a cell
TEXT = "The old house by the river was red. "
OURS = f"""
import sys, edgekv
model, n_cells, yields, archive = sys.argv[1:]
settings = {{"budget": int(n_cells), "block": 64, "threads": 1, "yields": yields, "archive": archive}}
with edgekv.Runtime(model, memory="2GiB", **settings) as rt:
    rt.memory = rt.plan.peak_bytes + (8 << 20)
    with rt.session() as session:
        session.read({TEXT!r} * (int(n_cells) // len(rt.tokenize({TEXT!r})) + 1), focus=False)
        print("ready", flush=True)
        while True:
            "".join(session.ask("And then?", max_tokens=8, ignore_eos=True))
            print("reply", flush=True)
"""
PEERS = f"""
import sys, llama_cpp
model, n_cells = sys.argv[1:]
llama = llama_cpp.Llama(model, n_ctx=int(n_cells), n_threads=1, n_threads_batch=1, verbose=False)
tokens = llama.tokenize(({TEXT!r} * int(n_cells)).encode())[:int(n_cells) - 8]
llama.eval(tokens)
print("ready", flush=True)
while True:
    llama.n_tokens = len(tokens)
    for _ in range(8):
        llama.eval([llama.sample(temp=0)])
    print("reply", flush=True)
"""


class Program:
    """A program in a group. It prints "ready", then "reply" after each reply; the rest is what it says of itself."""

    def __init__(self, command: list[str]) -> None:
        self._child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()
        begun = [self._lines.get()]
        while begun[-1] not in ("ready\n", ""):
            begun.append(self._lines.get())
        if not begun[-1]:
            raise SystemExit(f"the program does not begin: {''.join(begun)}")

    def _listen(self) -> None:
        assert self._child.stdout is not None
        for line in self._child.stdout:
            self._lines.put(line)
        self._lines.put("")

    @property
    def is_alive(self) -> bool:
        return self._child.poll() is None

    def said(self) -> tuple[int, list[str]]:
        """Return the replies since the last call, and all other lines."""
        lines = [self._lines.get() for _ in range(self._lines.qsize())]
        return lines.count("reply\n"), [line.strip() for line in lines if line not in ("reply\n", "")]

    def end(self) -> None:
        """Kill it."""
        self._child.kill()
        self._child.wait()


def lowered(name: str, command: list[str], options: argparse.Namespace) -> bool:
    """Lower the limits of a program; returns True if it went under each of them and was not killed."""
    with limited_group(FREE_BYTES) as group:
        program, followed = Program(group.entered(command)), True
        try:
            first = group.held_bytes
            print(f"{name} holds {format_size(first)} in a control group of version {group.version}", flush=True)
            for step in range(1, options.steps + 1):
                high = int(first * (1 - step * options.step))
                group.set_high(high)
                seconds = _until(lambda high=high: group.held_bytes <= high, options.seconds)
                n_replies, lines = program.said()
                followed &= seconds is not None
                under = "not under it" if seconds is None else f"under it in {seconds:.1f} s"
                held = format_size(group.held_bytes)
                print(f"  high limit {format_size(high)}: {under}, holds {held}, {n_replies} replies", flush=True)
                print(*(f"    says: {line}\n" for line in lines), sep="", end="", flush=True)
                try:
                    group.set_limit(high + MORE)
                except OSError:  # version 1
                    print(f"    hard limit {format_size(high + MORE)}: the kernel refuses it", flush=True)
                if group.n_killed:
                    print(f"    hard limit {format_size(high + MORE)}: the kernel killed it", flush=True)
                    return False
            return followed and program.is_alive
        finally:
            program.end()


def _until(holds: Callable[[], bool], step_s: float) -> float | None:
    """Wait for the length of a step; returns the seconds after which a condition held, None = never."""
    began, met = time.monotonic(), None
    while (now := time.monotonic() - began) < step_s:
        if met is None and holds():
            met = now
        time.sleep(0.1)
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct", help='a path, a name, or "tiny"')
    parser.add_argument("--cells", default="8192")
    parser.add_argument("--yields", default="50%")
    parser.add_argument("--archive", default="auto")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--step", type=float, default=0.1, help="share of what is held at first (0.1)")
    parser.add_argument("--seconds", type=float, default=30, help="length of a step (30)")
    parser.add_argument("--peer")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.model == "tiny":
            model = make_tiny(Path(folder) / "tiny.gguf", n_ctx_train=1 << 16, **TINY)
        else:
            model = find_model(options.model)
        ours = [sys.executable, "-c", OURS, str(model), options.cells, options.yields, options.archive]
        lives = lowered("edgekv", ours, options)
        if options.peer:
            peers = [options.peer, "-c", PEERS, str(model), options.cells]
            lowered("llama-cpp-python", peers, options)
    sys.exit(not lives)


if __name__ == "__main__":
    main()
