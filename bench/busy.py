"""Generation beside busy processes: how much of its fair share of the processors it turns into tokens.

Claim (bench/RESULTS.md): what part of its fair share generation reaches beside one and beside three busy processes.
The program fails below 0.8, which is what is meant; beside three it is not reached yet.

With T threads on P processors beside K busy processes, the fair share is min(1, P / (T + K)) of the speed alone. Each
run is a fresh process; runs alone and beside competitors take turns, and the table shows medians of a turn's ratios.

    python bench/busy.py --book novel.txt
    python bench/busy.py --book novel.txt --competitors 1 --competitors 3 --turns 9
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import edgekv
from edgekv.generation.sampler import GREEDY, Sampler
from edgekv.options import default_threads
from edgekv.testing import programs

READ_CHARS = 1000  # characters of the book, read before tokens are generated
N_TOKENS = 96
BUSY = "while True: pass"
LEAST_OF_FAIR = 0.8


def run_case(case: dict) -> dict[str, float]:
    """Tokens a second of one generation, in this process."""
    options = {"memory": "100%", "policy": "keydiff", "budget": 512, "focus": False}
    options |= {"model": case["model"], "threads": case["threads"]}
    with edgekv.Runtime(**options) as runtime:
        block_loop = runtime.block_loop
        with runtime.session() as session:
            session.read(case["text"])
            with closing(Sampler(GREEDY)) as sampler:
                token = runtime.model.tokenize(" the")[-1]
                started = time.perf_counter()
                for _ in range(N_TOKENS):
                    block_loop.step(token)
                    token = sampler.sample(runtime.context)
        return {"tok_per_s": N_TOKENS / (time.perf_counter() - started)}


@contextmanager
def busy_processes(n: int) -> Iterator[None]:
    """n processes that never rest."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(n)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    """Print speeds alone and beside competitors, and what they are of the fair share."""
    parser = programs.arguments(__doc__ or "")
    parser.add_argument("--competitors", type=int, action="append", help="busy processes beside it (default: 1 and 3)")
    parser.add_argument("--turns", type=int, default=7)
    args = parser.parse_args()
    counts = [0, *(args.competitors or (1, 3))]
    processors, threads = default_threads(), args.threads or default_threads()
    case = {"model": args.model, "threads": threads, "text": args.book.read_text(encoding="utf-8")[:READ_CHARS]}

    speeds: dict[int, list[float]] = {n: [] for n in counts}
    for turn in range(args.turns):
        for n in counts if turn % 2 else reversed(counts):
            with busy_processes(n):
                speeds[n].append(float(programs.in_fresh_process(str(Path(__file__)), case)["tok_per_s"]))  # type: ignore[arg-type]

    rows, figures = [], []
    for n in counts:
        fair = min(1.0, processors / (threads + n))
        of_alone = programs.median([ours / alone for ours, alone in zip(speeds[n], speeds[0], strict=True)])
        ratios = [f"x{ratio:.2f}" for ratio in (of_alone, fair, of_alone / fair)]
        rows.append([n, f"{programs.median(speeds[n]):.1f}", *ratios])
        figures.append({"competitors": n, "tok_per_s": speeds[n], "of_alone": of_alone, "fair": fair})
    programs.print_table(["busy processes", "tok/s", "of alone", "fair share", "of fair share"], rows)
    programs.write_json(args.json, figures)
    missed = [figure for figure in figures if figure["of_alone"] < LEAST_OF_FAIR * figure["fair"]]
    if missed:
        counts_missed = ", ".join(str(figure["competitors"]) for figure in missed)
        raise SystemExit(f"below {LEAST_OF_FAIR} of the fair share beside {counts_missed} busy processes")


if __name__ == "__main__":
    programs.run(main, run_case)
