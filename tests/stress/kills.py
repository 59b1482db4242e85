"""Worker processes killed at random moments: the host lives, is told within a second, and a new session answers.

Claim (bench/RESULTS.md): a host outlives 50 workers that are killed, and is told within a second.

Workers are killed while they load, read, generate, or wait for the host, by SIGKILL, SIGABRT, SIGSEGV and
SIGSTOP in turn.

    python tests/stress/kills.py
    python tests/stress/kills.py --kills 200 --seed 7 --model smollm2-135m-instruct
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path

import edgekv
from edgekv.testing import programs
from edgekv.testing.models.tiny import make_tiny
from edgekv.worker import worker_process

MOMENTS = ("load", "read", "generate", "wait")
SIGNALS = ("SIGKILL", "SIGKILL", "SIGKILL", "SIGABRT", "SIGKILL", "SIGKILL", "SIGSEGV", "SIGKILL", "SIGKILL", "SIGSTOP")
PREDICTION_S = 0.5  # a stopped process shows when it misses a beat; a closed pipe shows at once
LIMIT_S = 1.0
PROMPT = "word " * 400


class Killer:
    """Kills the next worker that is started, `delay` seconds after `begin`, and notes when."""

    def __init__(self, name: str, delay: float) -> None:
        self.killed_at = 0.0
        self.pid = 0
        self._name = name
        self._delay = delay
        self._thread = threading.Thread(target=self._kill, daemon=True)

    def begin(self) -> None:
        self._thread.start()

    def wait(self) -> None:
        self._thread.join()

    def _kill(self) -> None:
        time.sleep(self._delay)
        self.killed_at = time.perf_counter()
        os.kill(self.pid, getattr(signal, self._name))


def provoke(moment: str, killer: Killer, model: Path) -> tuple[float, Exception]:
    """Open a runtime, use it until it fails; returns when it failed and how."""
    start = worker_process._start

    def start_and_tell(*ends: object) -> object:
        worker = start(*ends)
        killer.pid = worker.pid
        if moment == "load":
            killer.begin()
        return worker

    worker_process._start = start_and_tell
    runtime = None
    try:
        runtime = open_runtime(model)
        session = runtime.session()
        if moment == "wait":
            killer.begin()
            killer.wait()
            killer.killed_at = time.perf_counter()  # what failed in silence is told when it is used
        if moment == "generate":
            list(session.generate("word", max_tokens=2))
        if moment in ("read", "generate"):
            killer.begin()
        prompt, n_tokens = (PROMPT, 2) if moment == "read" else ("word", 400)
        while True:
            for _ in session.generate(prompt, max_tokens=n_tokens, allow_loops=True):
                pass
    except Exception as error:
        return time.perf_counter(), error
    finally:
        worker_process._start = start
        if runtime is not None:
            runtime.close()


def open_runtime(model: Path) -> edgekv.Runtime:
    settings = {"memory": "1TiB", "budget": 128, "block": 32, "threads": 1, "allow_beyond_trained": True}
    return edgekv.Runtime(model, isolated=True, **settings)


def answers(model: Path) -> bool:
    """Return whether a new session generates text."""
    with open_runtime(model) as runtime, runtime.session() as session:
        return bool("".join(session.generate("word", max_tokens=3)))


def summary(name: str, rows: list[dict[str, object]]) -> tuple[object, ...]:
    """Return a row of the table: the kills, how many raised WorkerError, how many were followed by a reply, and
    the longest time until the error."""
    n_typed, n_answers = (sum(bool(row[what]) for row in rows) for what in ("typed", "answers"))
    return name, len(rows), n_typed, n_answers, f"{max((float(str(row['seconds'])) for row in rows), default=0):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="path or known name of a GGUF model (default: a tiny one, made for this)")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    rng = random.Random(options.seed)

    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or make_tiny(Path(folder, "tiny.gguf"), n_layer=2, n_ctx_train=2048)
        with open_runtime(model) as runtime:
            longest_delay = {"load": runtime.load_s, "read": 0.3, "generate": 0.3, "wait": 0.05}
        for i in range(options.kills):
            name, moment = SIGNALS[i % len(SIGNALS)], MOMENTS[rng.randrange(len(MOMENTS))]
            killer = Killer(name, rng.uniform(0, longest_delay[moment]))
            failed_at, error = provoke(moment, killer, model)
            seconds = max(0.0, failed_at - killer.killed_at)
            row = {"signal": name, "moment": moment, "seconds": seconds, "typed": isinstance(error, edgekv.WorkerError)}
            rows.append(row | {"answers": answers(model)})
            print(f"{i + 1}: {name} ({moment}): told after {seconds:.3f} s: {error}", flush=True)

    groups = [summary(name, [row for row in rows if row["signal"] == name]) for name in sorted(set(SIGNALS))]
    everything = summary("all", rows)
    programs.print_table(
        ["signal", "kills", "typed error", "a new session answers", "longest s"],
        [group for group in groups if group[1]] + [everything],
    )
    print(f"this host lives; predicted {PREDICTION_S} s, at most {LIMIT_S} s are meant")
    programs.write_json(options.json, rows)
    _, n, n_typed, n_answers, longest = everything
    sys.exit(not n == n_typed == n_answers or float(str(longest)) > LIMIT_S)


if __name__ == "__main__":
    main()
