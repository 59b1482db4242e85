"""Times a recall: both rounds of scans over all archived keys, by one thread, and the rows that it loads.

Claim (docs/results/speed.md): 8,000 archived tokens of a 1.5B model in 0.5 s, 50,000 in 3 s.

The model has the heads of Qwen2.5-1.5B (28 layers, 2 KV heads of 128, groups of 6) and random weights, and is small
elsewhere. Cells and archive are F16. Times are the processor's, which other programs change little; *wall* is what a
clock shows. Probes do not count, since their time is that of the model. Between two recalls stand, in the same process:

    reading     as many bytes of the same file as both rounds read, each once, in pieces of 1 MiB
    products    of as many queries with as many keys as both rounds have, each once, by numpy's BLAS with one thread

Medians of all repetitions, and of the ratios within one.

    python bench/recall_speed.py
    python bench/recall_speed.py --rows 22 --tokens 8000
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import edgekv
from edgekv.archive.recalling import AFTER, BEFORE, MOST_RECALLED, ROUNDS
from edgekv.archive.space import disk_folder
from edgekv.binding.row_archive import RowArchive
from edgekv.store.temp_array import temp_file
from edgekv.testing import programs
from edgekv.testing.models.tiny import make_tiny

N_LAYER, N_HEAD, N_HEAD_KV, DIM = 28, 12, 2, 128
VOCABULARY = 512
PIECE = 1 << 20
N_KEYS = 4_096  # multiplied at once


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor's seconds, which other programs do not change much."""
    started = time.process_time()
    work()
    return time.process_time() - started


def read_file(fd: int, n_bytes: int) -> None:
    """Read so many bytes of a file, from its beginning."""
    piece = bytearray(PIECE)
    for place in range(0, n_bytes, PIECE):
        os.preadv(fd, [piece], place)


def multiply(n_tokens: int, n_rows: int) -> None:
    """Multiply as many keys and queries as all heads have, of which some lie in memory."""
    numbers = np.random.default_rng(0)
    keys, queries = (numbers.normal(size=(n, DIM)).astype("f4") for n in (N_KEYS, N_HEAD // N_HEAD_KV * n_rows))
    products = np.empty((N_KEYS, len(queries)), "f4")
    for _ in range(0, n_tokens * N_LAYER * N_HEAD_KV, N_KEYS):
        np.matmul(keys, queries.T, out=products)


class Archived:
    """A runtime whose cache was fed random tokens, and the archive of all of them."""

    def __init__(self, runtime: edgekv.Runtime, fd: int) -> None:
        self._runtime = runtime
        self._numbers = np.random.default_rng(0)
        self.cache = runtime.block_loop.cache
        self.rows = RowArchive(self.cache, fd, 0, 1 << 50)

    def _tokens(self, n: int) -> list[int]:
        return self._numbers.integers(3, VOCABULARY // 2, n).tolist()

    def grow(self, n_tokens: int) -> None:
        """Feed and archive until there are so many tokens."""
        options = self._runtime.options
        while (left := n_tokens - self.rows.end) > 0:
            self.cache.compact(options.parsed_policy, self._runtime.block_loop.budget)
            self.cache.feed(self._tokens(min(left, options.block)))
            self.rows.append(self.cache)
        self.cache.compact(options.parsed_policy, self._runtime.block_loop.budget)

    def recall(self, n_rows: int) -> dict[str, float]:
        """Recall in as many rounds as a session does; returns the seconds of all of them, without their probes."""
        seconds, wall = 0.0, 0.0
        for _ in range(ROUNDS):
            self.cache.probe(self._tokens(n_rows))
            started = time.perf_counter()
            seconds += seconds_of(
                lambda: self.rows.recall(self.cache, MOST_RECALLED, before=BEFORE, after=AFTER, with_rest=True)
            )
            wall += time.perf_counter() - started
        return {"recall": seconds, "wall": wall}


def repetition(archived: Archived, fd: int, n_rows: int) -> dict[str, float]:
    """Return the seconds of a recall, of the reading and of the products."""
    n_tokens = archived.rows.end
    n_key_bytes = n_tokens * N_LAYER * N_HEAD_KV * DIM * 2
    return archived.recall(n_rows) | {
        "tokens": n_tokens,
        "reading": seconds_of(lambda: [read_file(fd, n_key_bytes) for _ in range(ROUNDS)]),
        "products": seconds_of(lambda: multiply(ROUNDS * n_tokens, n_rows)),
    }


def measured(case: dict) -> dict[str, list[dict[str, float]]]:
    """Return the seconds of each repetition; of every number of tokens one more warms up."""
    with (
        edgekv.Runtime(case["model"], memory="100%", budget=128, policy="sink", threads=1, archive="auto") as runtime,
        temp_file(disk_folder()) as file,
    ):
        archived, done = Archived(runtime, file.fileno()), []
        for n_tokens in case["tokens"]:
            archived.grow(n_tokens)
            done += [repetition(archived, file.fileno(), case["rows"]) for _ in range(1 + case["repetitions"])][1:]
        archived.rows.close()
    return {"repetitions": done}


def main() -> None:
    """Measure in a process of one thread, and print medians and ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8_000, 50_000], help="archived ones, ascending")
    parser.add_argument("--rows", type=int, default=32, help="tokens of a probe: with blocks of 128 it has 32 at most")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    args = parser.parse_args()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as folder:
        heads = {"n_layer": N_LAYER, "n_head": N_HEAD, "n_head_kv": N_HEAD_KV, "head_dim": DIM}
        model = make_tiny(Path(folder, "m.gguf"), **heads, n_ff=32, vocab_size=VOCABULARY, n_ctx_train=1 << 17)
        case = {name: getattr(args, name) for name in ("tokens", "rows", "repetitions")} | {"model": str(model)}
        figures = programs.in_fresh_process(__file__, case)["repetitions"]
    rows = []
    for n_tokens in args.tokens:
        of_size = [it for it in figures if it["tokens"] == n_tokens]
        seconds = [programs.median([it[what] for it in of_size]) for what in ("recall", "wall", "reading", "products")]
        ratios = [programs.median([it["recall"] / it[what] for it in of_size]) for what in ("reading", "products")]
        rows.append([f"{n_tokens:,}", *(f"{it:.3f} s" for it in seconds), *(f"x{it:.2f}" for it in ratios)])
    programs.print_table(["tokens", "recall", "wall", "reading", "products", "x reading", "x products"], rows)
    programs.write_json(args.json, figures)


if __name__ == "__main__":
    programs.run(main, measured)
