"""Measure reading in small blocks against blocks of 128: ratios of processor time, of runs that take turns.

Claim (docs/results/speed.md): blocks of 32 take at most 1.25 times the time of blocks of 128.

    python bench/small_blocks.py --book novel.txt --kv-type q8_0
    python bench/small_blocks.py --book novel.txt --model qwen.gguf --archive off
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from pathlib import Path

import edgekv

MEASURED = 128  # the block that others are compared with


def seconds_a_token(runtime: edgekv.Runtime, text: str) -> float:
    """Read a text in a session of its own; returns processor time."""
    with runtime.session() as session:
        started = time.process_time()
        session.read(text)
        return (time.process_time() - started) / session.stats.read_tokens


def main() -> None:
    """Print the ratio of each pair of runs, and their median."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--book", type=Path, required=True, help="text to read the beginning of")
    parser.add_argument("--model", help="model file; the default model if left out")
    parser.add_argument("--chars", type=int, default=9000, help="characters of the text that are read")
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--budget", type=int, default=512, help="cells of each head")
    parser.add_argument("--kv-type", default="f16", help="type of the cells")
    parser.add_argument("--archive", default="64MiB", help="the most that the archive takes, or off")
    parser.add_argument("--pairs", type=int, default=5)
    given = parser.parse_args()
    text = given.book.read_text(encoding="utf-8")[: given.chars]
    with ExitStack() as stack:
        small, measured = (
            stack.enter_context(
                edgekv.Runtime(
                    given.model,
                    budget=given.budget,
                    block=block,
                    kv_type=given.kv_type,
                    archive=given.archive,
                    threads=1,
                    memory="16GiB",  # holds both
                )
            )
            for block in (given.block, MEASURED)
        )
        for runtime in (small, measured):
            seconds_a_token(runtime, text[:1000])  # weights come in
        ratios = []
        for _ in range(given.pairs):
            ratios.append(seconds_a_token(small, text) / seconds_a_token(measured, text))
            print(f"blocks of {given.block}: {ratios[-1]:.3f} times the time of blocks of {MEASURED}", flush=True)
        print(f"median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
