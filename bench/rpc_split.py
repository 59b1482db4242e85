"""A model over two RPC servers of this machine: three processes, each under a ceiling of its own; then one server dies.

Claim (docs/devices.md): no process holds more than its ceiling, and a server that dies is an error in a host that
lives.

The host's ceiling is for the worker process; those of A and B are for what the servers hold beyond what they held
before they had a client. The worker reads the book and answers a question. Then server A is killed in the midst of a
second reading.

Predicted before the first run, for the default model, 8,000 tokens and a budget of 512 cells in f16, in MiB: the host
112, A 52 and B 76 planned (B has the output matrix, of 29); measured at most 6 % less, and never more. The error comes
within a second of the kill, and names A.

    python bench/rpc_split.py --book BOOK
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import edgekv
from edgekv.devices import devices
from edgekv.evals import prose
from edgekv.testing import programs
from edgekv.testing.server_process import status_bytes

PREDICTED = {"host": 112, "A": 52, "B": 76}


class LocalServer:
    """An `edgekv rpc-server` of this machine."""

    def __init__(self, port: int, threads: int) -> None:
        self.address = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "edgekv", "rpc-server", "--port", str(port), "--threads", str(threads)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while True:
            try:
                devices(self.address)
                break
            except edgekv.DeviceError:
                if self.process.poll() is not None:
                    raise
                time.sleep(0.05)
        self.before_bytes = status_bytes(self.process.pid, "VmRSS")

    @property
    def peak_bytes(self) -> int:
        """The most that it held beyond what it held without a client."""
        return status_bytes(self.process.pid, "VmHWM") - self.before_bytes

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--host-memory", default="120MiB", help="ceiling of the worker process")
    parser.add_argument("--a-memory", default="62MiB", help="ceiling of what server A holds")
    parser.add_argument("--b-memory", default="84MiB", help="ceiling of what server B holds")
    parser.add_argument("--ports", type=int, nargs=2, default=(50061, 50062))
    parser.add_argument("--question", default="Who is the hero of this story?")
    options = parser.parse_args()
    with ExitStack() as stack:
        text = Path(stack.enter_context(tempfile.TemporaryDirectory()), "book.txt")
        with prose.vocabulary(options.model) as model:
            tokens = prose.first_tokens(model, prose.read_book(options.book), options.tokens)
            text.write_text(prose.text_of(model, tokens), encoding="utf-8")
        a, b = (LocalServer(port, options.threads or 1) for port in options.ports)
        stack.callback(a.close)
        stack.callback(b.close)
        setting = {
            "memory": options.host_memory,
            "rpc": [a.address, b.address],
            "device_memory": {a.address: options.a_memory, b.address: options.b_memory},
            "policy": "keydiff",
            "budget": options.budget,
            "block": 128,
            "kv_type": "f16",
            "threads": options.threads,
            "isolated": True,
        }
        with edgekv.Runtime(options.model, **setting) as runtime:
            holds = measured(runtime, text, options.question, a, b)
        dies = killed(setting | {"model": options.model}, text, a)
    programs.write_json(options.json, holds | dies)
    if not all(peak <= row["ceiling"] for row in holds.values() for peak in (row["planned"], row["measured"])):
        sys.exit("a process held more than its ceiling")


def measured(runtime: edgekv.Runtime, text: Path, question: str, a: LocalServer, b: LocalServer) -> dict[str, dict]:
    """Read and answer; planned and measured peaks by process."""
    with runtime.session() as session:
        answer = "".join(session.ask(question, files=[text], max_tokens=48))
        stats = session.stats
    plan = runtime.plan
    rows = {"host": {"ceiling": plan.ceiling_bytes, "planned": plan.peak_bytes, "measured": stats.peak_rss_bytes}}
    for name, server, share in zip("AB", (a, b), plan.devices, strict=True):
        rows[name] = {"ceiling": share.ceiling_bytes, "planned": share.total, "measured": server.peak_bytes}
        rows[name] |= {"layers": share.layers, "output": share.output, "before": server.before_bytes}
    print(f"{stats.prompt_tokens:,} tokens read, {stats.prefill_tok_per_s:.0f} and {stats.decode_tok_per_s:.0f} tok/s")
    print(f"answer: {answer}")
    programs.print_table(
        ["process", "layers", "ceiling MiB", "predicted", "planned", "measured"],
        [
            [name, row.get("layers", 0), f"{row['ceiling'] / programs.MIB:.1f}", PREDICTED[name]]
            + [f"{row[key] / programs.MIB:.1f}" for key in ("planned", "measured")]
            for name, row in rows.items()
        ],
    )
    return rows


def killed(setting: dict[str, object], text: Path, server: LocalServer) -> dict[str, object]:
    """Kill a server while a text is read; what the host is told, and how soon."""
    killed_at = 0.0

    def kill(progress: edgekv.Progress) -> None:
        nonlocal killed_at
        if not killed_at and progress.tokens_done > progress.tokens_total // 2:
            killed_at = time.perf_counter()
            os.kill(server.process.pid, signal.SIGKILL)

    with edgekv.Runtime(**setting) as runtime, runtime.session() as session:
        told = []
        for _ in range(2):
            try:
                session.read(files=[text], progress=kill)
            except edgekv.WorkerError as error:
                told.append(str(error))
        told_s = time.perf_counter() - killed_at
    print(f"server A killed; both uses were told so within {told_s:.2f} s: {told[0]}")
    if len(told) != 2 or server.address not in told[0]:
        sys.exit(f"the host was told {told}")
    return {"told": told, "told_s": told_s}


if __name__ == "__main__":
    main()
