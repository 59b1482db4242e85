"""A novel of any length under one ceiling: is a planted sentence found, and are speed and memory constant?

Every case runs in a fresh process: a text with a needle (as in needle.py) is read with the question in mind, and the
question is answered. Reported are the speed of reading in the first and in the last tenth of the text, and the peak of
memory (VmHWM on Linux): how much the text adds to it from its first tenth to its last, and what it is after the answer,
whose first logits take their own. The program fails where a peak is above the ceiling or grows by more than 0.1 % with
the text, or where the last tenth is read at less than 0.95 of the first one's speed. Needles that are not found are
counted, and fail nothing.

    python bench/novel.py --book war-and-peace.txt
    python bench/novel.py --book war-and-peace.txt --tokens 50000 --samples 3
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import common

import edgekv
from edgekv.evals import needle, prose
from edgekv.process import peak_resident_bytes
from edgekv.sampler import GREEDY

MIN_SPEED, MAX_GROWTH = 0.95, 0.001
PREDICTED = "predicted: all found, last / first tenth 1.00, growth 0.00 %"


def run_case(case: dict) -> dict[str, object]:
    """Read a text and answer, in this process."""
    path, digits, question = case.pop("path"), case.pop("digits"), case.pop("question")
    seen = []  # (tokens done, seconds, peak)

    def look(progress: edgekv.Progress) -> None:
        share = progress.tokens_done / progress.tokens_total
        wanted = (0.0, 0.1, 0.9, 1.0)[len(seen)] if len(seen) < 4 else 2.0
        if share >= wanted:
            seen.append((progress.tokens_done, time.perf_counter(), peak_resident_bytes()))

    with edgekv.Runtime(**case) as runtime, runtime.session() as session:
        pieces = session.ask(question, files=[path], instruction="", max_tokens=24, sampling=GREEDY, progress=look)
        reply = "".join(pieces)
        stats = session.stats
    (n0, t0, _), (n1, t1, early), (n2, t2, late), (n3, t3, _) = seen
    return {
        "tokens": stats.prompt_tokens,
        "found": digits in reply,
        "reply": reply,
        "first_tok_per_s": (n1 - n0) / (t1 - t0),
        "last_tok_per_s": (n3 - n2) / (t3 - t2),
        "repositions": stats.repositions,
        "early_bytes": early,
        "late_bytes": late,
        "peak_bytes": stats.peak_rss_bytes,
        "planned_bytes": runtime.plan.peak_bytes,
        "ceiling_bytes": runtime.plan.ceiling_bytes,
    }


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=200_000, help="length of the text")
    parser.add_argument(
        "--depth", type=float, action="append", help="where the needle lies; repeatable (0.1, 0.5, 0.9)"
    )
    parser.add_argument("--samples", type=int, default=1, help="texts for each depth")
    parser.add_argument("--memory", default="256MiB", help="ceiling")
    parser.add_argument("--budget", type=int, default=512, help="cells")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--policy", default="keydiff")
    options = parser.parse_args()

    case = {"model": options.model, "threads": options.threads, "memory": options.memory, "budget": options.budget}
    case |= {"block": options.block, "kv_type": options.kv_type, "policy": options.policy}
    book, results = prose.read_book(options.book), []
    for depth in options.depth or (0.1, 0.5, 0.9):
        for seed in range(options.samples):
            with tempfile.TemporaryDirectory() as folder:
                with prose.vocabulary(options.model) as model:
                    sample = needle.document(model, book, options.tokens, seed, depth)
                path = Path(folder, "text.txt")
                path.write_text(sample.text, encoding="utf-8")
                (question,) = sample.questions
                (digits,) = question.answers
                wanted = {"path": str(path), "question": question.text, "digits": digits}
                result = common.in_fresh_process(__file__, case | wanted)
            results.append({"depth": depth, "seed": seed, "digits": digits, **result})
            print(f"{depth:.0%}, text {seed}: {digits}, {result['reply']!r}", flush=True)

    speeds = [r["last_tok_per_s"] / r["first_tok_per_s"] for r in results]
    growths = [r["late_bytes"] / r["early_bytes"] - 1 for r in results]
    common.print_table(
        ["depth", "text", "tokens", "found", "first tok/s", "last tok/s", "ratio", "peak MiB", "growth", "planned MiB"],
        [
            (
                *(f"{r['depth']:.0%}", r["seed"], r["tokens"], "yes" if r["found"] else "no"),
                *(f"{r['first_tok_per_s']:.0f}", f"{r['last_tok_per_s']:.0f}", f"{speed:.3f}"),
                *(f"{r['peak_bytes'] / common.MIB:.2f}", f"{growth:+.2%}", f"{r['planned_bytes'] / common.MIB:.2f}"),
            )
            for r, speed, growth in zip(results, speeds, growths, strict=True)
        ],
    )
    print(f"found {sum(r['found'] for r in results)} of {len(results)}; {PREDICTED}")
    common.write_json(options.json, results)
    over = any(r["peak_bytes"] > r["ceiling_bytes"] for r in results)
    sys.exit(over or min(speeds) < MIN_SPEED or max(growths) > MAX_GROWTH)


if __name__ == "__main__":
    if sys.argv[1:] == ["--case"]:
        print(json.dumps(run_case(json.load(sys.stdin))))
    else:
        main()
