"""Times of the processor that a text and its continuation take if rows lie on a device which this processor computes.

Claim (docs/results/devices.md): few submissions read with less of the processor than many, and generate with less if
heads are even. Both take a third of what llama.cpp's own cache of all cells takes.

The device is an RPC server of this machine, started for each run; or a GPU of the build that EDGEKV_LIB_PATH names,
such as lavapipe. Times are of the processor alone, of this program and its server: *reading* all tokens, and
*generating* 200 more, one by one. All sides have the same model: one of random weights with the heads of the default
model, unless `--model` names another. `--before` names the checkout of another version, whose environment runs the
same program. The side *archive* is edgekv with an archive, whose rows come to the host.

    python bench/device_time.py --layers 3 --before ../earlier
    EDGEKV_LIB_PATH=build/vulkan GGML_VK_VISIBLE_DEVICES=0 python bench/device_time.py --device here
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path

import numpy as np

import edgekv
from edgekv.binding.ggml_devices import add_server
from edgekv.binding.model import Model
from edgekv.evals.stock import Peer
from edgekv.models.catalog import find_model
from edgekv.options import Options
from edgekv.testing import programs
from edgekv.testing.models.tiny import make_tiny

ALL_LAYERS = 1 << 10
SHAPE = {"n_head": 9, "n_head_kv": 3, "head_dim": 64}
FIGURES = ("reading", "generating")
Figures = dict[str, float]


@contextmanager
def rpc_server() -> Iterator[int]:
    """Lend this machine's processor to this process, by one thread; yields the process of the server."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "edgekv", "rpc-server", "--port", str(port), "--threads", "1"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with closing(socket.socket()) as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        add_server(f"127.0.0.1:{port}")
        yield server.pid
    finally:
        server.kill()
        server.wait()


def seconds_of(pid: int) -> float:
    """Return the processor's seconds of another process."""
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def timed(
    case: dict, read: Callable[[list[int]], object], step: Callable[[int], object], clock: Callable[[], float]
) -> Figures:
    """Read random tokens, and feed further ones one by one."""
    tokens = np.random.default_rng(1).integers(3, 250, case["tokens"] + case["generate"]).tolist()
    started = clock()
    read(tokens[: case["tokens"]])
    has_read = clock()
    for token in tokens[case["tokens"] :]:
        step(token)
    return {"reading": has_read - started, "generating": clock() - has_read}


def run_case(case: dict) -> Figures:
    """Time one side in this process, with all layers on the device."""
    with rpc_server() if case["device"] == "rpc" else nullcontext() as server:

        def clock() -> float:
            return time.process_time() + (seconds_of(server) if server else 0)

        if case["side"] == "llama.cpp":
            peer = Peer.alike(Options(block=128, ubatch=128, threads=1, gpu_layers=ALL_LAYERS))
            n_cells = case["tokens"] + case["generate"]
            with Model(Path(case["model"]), peer.options) as model, closing(peer.loop(model, n_cells)) as own:
                return timed(case, own.read, own.step, clock)
        options = {"budget": case["budget"], "block": 128, "kv_type": "f16", "policy": case["policy"], "threads": 1}
        options |= {"archive": "off"} if hasattr(Options, "archive") else {}  # earlier checkouts have no archive
        with edgekv.Runtime(case["model"], memory="100%", gpu_layers=ALL_LAYERS, **options) as runtime:
            loop = runtime.block_loop
            if case["side"] == "archive":
                from edgekv.archive.session_archive import Archive
                from edgekv.archive.space import ArchiveSpace

                loop.archive = Archive(ArchiveSpace(None, 1 << 40))
            return timed(case, lambda tokens: loop.read(tokens, lambda _n: True), loop.step, clock)


def in_checkout(folder: Path, case: dict) -> Figures:
    """Time a case with the environment of a checkout."""
    command = [str(folder / ".venv/bin/python"), str(Path(__file__).resolve()), "--case"]
    child = subprocess.run(command, input=json.dumps(case), stdout=subprocess.PIPE, text=True, check=True, cwd=folder)
    return json.loads(child.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="path or known name (default: a model of random weights)")
    parser.add_argument("--layers", type=int, default=30, help="of the model of random weights (default: 30)")
    parser.add_argument("--device", choices=["rpc", "here"], default="rpc")
    parser.add_argument("--before", type=Path, help="the checkout of an earlier version")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--generate", type=int, default=200)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--policy", default="keydiff+ada")
    parser.add_argument("--sides", nargs="+", default=["llama.cpp", "edgekv", "archive"])
    parser.add_argument("--json", type=Path, help="write the figures to this file too, side by side as they come")
    args = parser.parse_args()
    here, found = Path(__file__).resolve().parents[1], {}
    with tempfile.TemporaryDirectory() as folder:
        shape = {"n_layer": args.layers, "n_embd": 192, "n_ff": 384, "n_ctx_train": 1 << 14} | SHAPE
        model = find_model(args.model) if args.model else make_tiny(Path(folder, "m.gguf"), **shape)
        case = {name: getattr(args, name) for name in ("device", "tokens", "generate", "budget", "policy")}
        case["model"] = str(Path(model).resolve())
        sides = [(side, here, side) for side in args.sides]
        sides += [("before", args.before, "edgekv")] if args.before else []
        for name, checkout, side in sides:
            found[name] = in_checkout(checkout, case | {"side": side})
            programs.write_json(args.json, found)
    base = found["edgekv"]
    rows = [
        (name, *(f"{times[what]:.1f} s (x{base[what] / times[what]:.2f})" for what in FIGURES))
        for name, times in found.items()
    ]
    programs.print_table(["side (edgekv by it)", *FIGURES], rows)


if __name__ == "__main__":
    programs.run(main, run_case)
