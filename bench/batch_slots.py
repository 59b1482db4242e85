"""A file of questions, answered by a batch with 1, 4 and 8 slots: replies a minute over those of one.

Claim (bench/RESULTS.md): 8 slots answer 200 short questions at least twice as fast as one.

Each batch is a process of its own under the same ceiling, with the same cells for each slot.

    python bench/batch_slots.py --threads 1
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from edgekv.testing import programs

SLOTS = (1, 4, 8)
PREDICTED = {1: "", 4: "1.4", 8: "2.2"}  # before anything was measured: whole replies in threads gain 1.50 and 2.45


def write_requests(path: Path, n: int, n_tokens: int) -> None:
    """Write questions that begin differently, so that no two share what is read."""
    with path.open("w") as file:
        for i in range(n):
            message = {"role": "user", "content": f"{i} travellers come to an old inn. Tell me what happens to them."}
            body = {"messages": [message], "max_tokens": n_tokens, "temperature": 0}
            row = {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--generate", type=int, default=60)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    rows, one = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        requests = Path(folder, "requests.jsonl")
        write_requests(requests, args.requests, args.generate)
        for n in SLOTS:
            results = Path(folder, f"{n}.jsonl")
            command = [sys.executable, "-m", "edgekv", "batch", str(requests), "-o", str(results), "--json"]
            command += ["--memory", args.memory, "--budget", str(args.budget), "--parallel", str(n)]
            command += [] if args.model is None else ["--model", args.model]
            command += [] if args.threads is None else ["--threads", str(args.threads)]
            started = time.perf_counter()
            told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            seconds = time.perf_counter() - started
            speed = told["answered"] / seconds * 60
            one = one or speed
            peak = told["peak_bytes"] / programs.MIB
            rows.append([n, f"{seconds:.1f} s", f"{speed:.0f}", f"x{speed / one:.2f}", PREDICTED[n], f"{peak:.0f} MiB"])
    programs.print_table(["slots", "time", "replies a minute", "of one", "predicted", "peak"], rows)


if __name__ == "__main__":
    main()
