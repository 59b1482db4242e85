"""Compare repacked weights with mapped ones: speed, time to load, planned and measured peak.

Claim (docs/memory.md): a Q4_0 model is read about twice as fast, and generates faster, in the bytes of mapped weights.

Every case runs in a fresh process, repacked and mapped ones in turn. It reads with a probe at the default focus, so
that `norm1(V W_O)` is computed, and then feeds tokens one by one. Times are of the processor: with `--threads 1` other
programs then matter less. What was predicted before anything was measured stands beside each figure.

    python bench/repacking.py --book novel.txt --model 0.5b-q4_0.gguf --threads 1
"""

from __future__ import annotations

import sys
import time

import edgekv
from edgekv.binding.model import Model
from edgekv.evals import prose
from edgekv.memory import process
from edgekv.testing import programs

PREDICTED = {
    "reading": "2.2 to 3",
    "generating": "1.5",
    "planned peak, MiB": "1",
    "peak, MiB": "1",
    "loading, s": "+0.5 s",
}
N_PROBE = 30


def run_case(case: dict[str, object]) -> dict[str, object]:
    """Read and generate in this process; tokens a second of processor time."""
    tokens, n_read = case.pop("tokens"), case.pop("read")
    with edgekv.Runtime(memory="100%", policy="keydiff", **case) as runtime:
        block_loop, block = runtime.block_loop, runtime.options.block
        probe = tokens[:N_PROBE]
        block_loop.read(tokens[:block], lambda _: True, probe)  # warms up
        started = time.process_time()
        block_loop.read(tokens[block:n_read], lambda _: True, probe)
        read = time.process_time()
        for token in tokens[n_read:]:
            block_loop.step(token)
        said = time.process_time()
        figures = {
            "repacked": runtime.plan.repack,
            "reading": (n_read - block) / (read - started),
            "generating": (len(tokens) - n_read) / (said - read),
            "planned peak, MiB": runtime.plan.peak_bytes / programs.MIB,
            "peak, MiB": process.peak_resident_bytes() / programs.MIB,
        }
        options, path = runtime.options, runtime.plan.model
    started = time.process_time()
    Model(path, options).close()
    return figures | {"loading, s": time.process_time() - started}


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--read", type=int, default=768, help="tokens read, a block of which warms up")
    parser.add_argument("--say", type=int, default=64, help="tokens fed one by one")
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=2)
    options = parser.parse_args()

    with prose.vocabulary(options.model) as model:
        tokens = prose.first_tokens(model, prose.read_book(options.book), options.read + options.say)
    case = {"model": options.model, "threads": options.threads, "budget": options.budget, "block": options.block}
    case |= {"kv_type": "f16", "tokens": tokens, "read": options.read}
    pairs = [
        tuple(programs.in_fresh_process(__file__, case | {"repack": repack}) for repack in (False, None))
        for _ in range(options.pairs)
    ]
    if not pairs[0][1]["repacked"]:
        sys.exit("this processor has no order of its own for the weights of this model")
    programs.print_pairs(("mapped", "repacked"), pairs, PREDICTED)
    programs.write_json(options.json, pairs)


if __name__ == "__main__":
    programs.run(main, run_case)
