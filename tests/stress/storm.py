"""Two sessions in two threads, cancelled at random moments: no reply hangs, and no memory is lost.

Claim (bench/RESULTS.md): 200 cancelled replies leave nothing hanging, and no memory lost.

In this process and isolated, each in a fresh process: two runtimes answer in two threads, a third thread cancels either
at random moments. Resident memory after the storm is compared with that before it; both follow a storm of as many
cancels, which fills what stays filled.

    python tests/stress/storm.py
    python tests/stress/storm.py --cancels 2000 --seed 7
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import edgekv
from edgekv.memory import process
from edgekv.testing import programs
from edgekv.testing.models.tiny import make_tiny

LIMIT_S = 300
GROWTH_LIMIT = programs.MIB


def storm(runtimes: list[edgekv.Runtime], n_cancels: int, rng: random.Random) -> dict[str, int]:
    """Cancel replies of both runtimes; returns how often replies ended how. Ends the program where one hangs."""
    reasons: dict[str, int] = {}
    over = threading.Event()
    sessions = [runtime.session() for runtime in runtimes]

    def answer(session: edgekv.Session) -> None:
        while not over.is_set():
            for _ in session.generate("word " * 200, max_tokens=200, allow_loops=True):
                pass
            reason = session.stats.finish_reason
            reasons[reason] = reasons.get(reason, 0) + 1

    threads = [threading.Thread(target=answer, args=(session,), daemon=True) for session in sessions]
    for thread in threads:
        thread.start()
    pause = threading.Event()
    for _ in range(n_cancels):
        pause.wait(rng.uniform(0, 0.1))
        rng.choice(sessions).cancel()
    over.set()
    for thread, session in zip(threads, sessions, strict=True):
        session.cancel()
        thread.join(LIMIT_S)
        if thread.is_alive():
            sys.exit(f"a reply hangs after {LIMIT_S} s")
        session.close()
    return reasons


def resident() -> int:
    gc.collect()
    process.return_freed_memory()
    return process.resident_bytes()


def run_case(case: dict[str, object]) -> dict[str, object]:
    """Two storms in this process; what the second one left in memory."""
    rng = random.Random(case["seed"])
    settings = {"memory": "1TiB", "budget": 128, "block": 32, "threads": 1, "allow_beyond_trained": True}
    runtimes = [edgekv.Runtime(case["model"], isolated=case["isolated"], **settings) for _ in range(2)]
    storm(runtimes, case["cancels"], rng)
    before = resident()
    reasons = storm(runtimes, case["cancels"], rng)
    grown = resident() - before
    for runtime in runtimes:
        runtime.close()
    return {"isolated": case["isolated"], "reasons": reasons, "before": before, "grown": grown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cancels", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny(Path(folder, "tiny.gguf"), n_layer=2, n_ctx_train=2048)
        for isolated in (False, True):
            case = {"model": str(model), "isolated": isolated, "cancels": options.cancels, "seed": options.seed}
            child = subprocess.run(
                [sys.executable, __file__, json.dumps(case)], stdout=subprocess.PIPE, text=True, check=True
            )
            results.append(json.loads(child.stdout))
    programs.print_table(
        ["", "replies cancelled", "others", "resident MiB", "grown KiB"],
        [
            (
                "isolated" if r["isolated"] else "in the process",
                r["reasons"].get("cancelled", 0),
                sum(r["reasons"].values()) - r["reasons"].get("cancelled", 0),
                f"{r['before'] / programs.MIB:.1f}",
                f"{r['grown'] / 1024:.0f}",
            )
            for r in results
        ],
    )
    grows = any(r["grown"] > GROWTH_LIMIT for r in results)
    print(f"no reply hangs; memory grows: {'yes' if grows else 'no'} (at most 1 MiB is meant)")
    programs.write_json(options.json, results)
    sys.exit(grows)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        print(json.dumps(run_case(json.loads(sys.argv[1]))))
    else:
        main()
