"""Models under ceilings that their weights do not fit: speed, peak and answers from all weights in memory to none.

Claim (docs/results/speed.md): a model reads a novel under less than half of its file's bytes, finds what was planted
there, and stays under its plan. Reading keeps 0.9 of the speed of weights in memory, and generating 0.8 of what the
file's speed allows. Weights are read at 0.9 of what the file gives to a deep queue of reads.

For each ceiling a fresh process opens a runtime as a user does, asks for a sentence planted in the middle of a text,
and feeds tokens one by one. Times are of the clock, since a process that waits for a disk spends none of its own. In
cold cases another thread tells the system again and again to forget the file. What the file gives is measured before
and after a case, by threads that read pieces of it. Figures are kept in the `--json` file
case by case; a second run with the same file goes on where the first one stopped. `--picture` draws both speeds by
ceiling, as shares of those of the largest one.

Experts are read when tokens choose them. The last columns tell which share of all experts' bytes a block of the text
read, and a token alone. A model of random weights finds nothing, and is measured all the same.

    python bench/streaming.py --book novel.txt --model qwen.gguf --ceiling 400MiB --ceiling 1280MiB --cold
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import edgekv
from edgekv.binding.structs import Streaming
from edgekv.evals import prose
from edgekv.memory.process import peak_resident_bytes
from edgekv.memory.sizes import parse_size
from edgekv.options import UBATCH
from edgekv.testing import programs
from edgekv.testing.programs import MIB

SENTENCE, QUESTION, ANSWER = "The secret code is 7316.", "What is the secret code?", "7316"
N_WARM = 4  # tokens fed before those that are timed
FORGET_S = 0.002
DEEP = 16  # reads at a time
PIECE, MOST_READ = 1 << 20, 512 << 20  # bytes


@contextmanager
def forgotten(path: Path | None) -> Iterator[None]:
    """Have the system forget what it holds of a file, all the time."""
    if path is None:
        yield
        return
    done = threading.Event()

    def forget() -> None:
        file = os.open(path, os.O_RDONLY)
        while not done.wait(FORGET_S):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)

    thread = threading.Thread(target=forget)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def file_speed(path: Path, cold: bool) -> float:
    """Return the bytes a second that a file gives to a deep queue of reads."""
    n_pieces = min(path.stat().st_size, MOST_READ) // PIECE
    with open(path, "rb") as file, forgotten(path if cold else None):
        if cold:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        def read(first: int) -> None:
            piece = bytearray(PIECE)
            for i in range(first, n_pieces, DEEP):
                os.preadv(file.fileno(), [piece], i * PIECE)

        threads = [threading.Thread(target=read, args=(i,)) for i in range(DEEP)]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return n_pieces * PIECE / (time.perf_counter() - started)


def run_case(case: dict) -> dict[str, object]:
    """Ask, and feed tokens one by one, in this process."""
    text, tokens, cold = Path(case.pop("text")), case.pop("tokens"), case.pop("cold")
    with edgekv.Runtime(**case) as runtime:
        plan, model = runtime.plan, runtime.model
        with forgotten(plan.model if cold else None):
            begin = model.streaming()
            with runtime.session() as session:
                prompt = session.ask(QUESTION, files=[text], max_tokens=24)
                reply, read = next(prompt), model.streaming()
                reply += "".join(prompt)
                stats = session.stats
            loop, before = runtime.block_loop, model.streaming()
            for i, token in enumerate(tokens):
                if i == N_WARM:
                    started, before = time.perf_counter(), model.streaming()
                loop.step(token)
            seconds, after = time.perf_counter() - started, model.streaming()
        n_said, n_read = len(tokens) - N_WARM, after.read_bytes - before.read_bytes
        read_s = (after.read_ns - before.read_ns) / 1e9
        allowed = n_read and n_said / read_s
        n_batches = stats.read_tokens / min(plan.block, UBATCH)
        return {
            "cells": plan.budget_cells,
            "block": plan.block,
            "kv_type": plan.kv_type,
            "n_layers": plan.n_layers,
            "n_streamed": plan.n_streamed,
            "streamed": plan.streamed_bytes,
            "found": ANSWER in reply,
            "reading": stats.prefill_tok_per_s,
            "generating": n_said / seconds,
            "allowed": allowed,
            "read_speed": n_read and n_read / read_s,
            "experts_of_block": share_of_experts(begin, read, n_batches),
            "experts_of_token": share_of_experts(before, after, n_said),
            "waited": (after.wait_ns - before.wait_ns) / 1e9 / seconds,
            "planned": plan.peak_bytes,
            "peak": peak_resident_bytes(),
        }


def share_of_experts(before: Streaming, after: Streaming, n_batches: float) -> float:
    """Return the share of all streamed experts' bytes that a batch read between two counts; 0 if there are none."""
    if not after.expert_bytes:
        return 0.0
    n_bytes = (after.read_bytes - before.read_bytes) / n_batches
    return max(0.0, n_bytes - after.streamed_bytes) / after.expert_bytes


def draw(path: Path, done: list[dict]) -> None:
    """Draw reading and generating by ceiling, as shares of the speeds under the largest one."""
    from edgekv.evals import pictures

    largest = max((case for case in done if not case["cold"]), key=lambda case: parse_size(case["memory"]))
    lines: dict[str, dict[int, float]] = {}
    for case in done:
        for what in ("reading", "generating"):
            line = lines.setdefault(f"{what}, {'cold' if case['cold'] else 'hot'}", {})
            line[parse_size(case["memory"]) // MIB] = case[what] / largest[what]
    title, label = Path(done[0]["model"]).stem, f"speed over that under {largest['memory']}"
    pictures.history_lines(path, lines, title=title, label=label, of="memory ceiling, MiB")


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--ceiling", action="append", required=True, help="a size; repeatable")
    parser.add_argument("--read", type=int, default=4000, help="tokens of the text")
    parser.add_argument("--say", type=int, default=40, help="tokens fed one by one")
    parser.add_argument(
        "--cold", action="store_true", help="measure from the disk, too, and not from the system's memory alone"
    )
    parser.add_argument("--picture", type=Path, help="a PNG file for the curves")
    options = parser.parse_args()
    done = json.loads(options.json.read_text()) if options.json and options.json.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        with prose.vocabulary(options.model) as model:
            file = model.path
            tokens = prose.first_tokens(model, prose.read_book(options.book), options.read)
            text = Path(folder, "text.txt")
            text.write_text(prose.plant(prose.text_of(model, tokens), [(0.5, SENTENCE)]), encoding="utf-8")
        for ceiling in options.ceiling:
            for cold in (False, True)[: 1 + options.cold]:
                key = {"model": options.model, "memory": ceiling, "threads": options.threads, "cold": cold}
                if any(key.items() <= old.items() for old in done):
                    continue
                case = key | {"text": str(text), "tokens": tokens[: options.say]}
                before = file_speed(file, cold)
                figures = programs.in_fresh_process(__file__, case)
                gives = (before + file_speed(file, cold)) / 2
                done.append(key | figures | {"file_speed": gives})
                programs.write_json(options.json, done)
    programs.print_table(
        [
            "ceiling",
            "file",
            "streamed",
            "cells",
            "planned MiB",
            "peak MiB",
            "reading",
            "generating",
            "allowed",
            "share",
            "GB/s",
            "of file",
            "found",
            "experts",
        ],
        [
            [case["memory"], "cold" if case["cold"] else "hot", f"{case['n_streamed']}/{case['n_layers']}"]
            + [f"{case['cells']} {case['kv_type']}", f"{case['planned'] / MIB:.1f}", f"{case['peak'] / MIB:.1f}"]
            + [f"{case[name]:.1f}" for name in ("reading", "generating", "allowed")]
            + [
                f"{case['generating'] / case['allowed']:.2f}" if case["allowed"] else "-",
                f"{case['read_speed'] / 1e9:.2f}" if case["allowed"] else "-",
                f"{case['read_speed'] / case['file_speed']:.2f}" if case["allowed"] else "-",
                "yes" if case["found"] else "no",
                f"{case['experts_of_block']:.2f}, {case['experts_of_token']:.2f}" if case["experts_of_block"] else "-",
            ]
            for case in done
        ],
    )
    if options.picture:
        draw(options.picture, done)
    wrong = [case for case in done if not case["peak"] <= case["planned"] <= parse_size(case["memory"])]
    print(f"over their plan or ceiling: {len(wrong)} of {len(done)}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    programs.run(main, run_case)
