"""A long mixed run with budgets that change at every eviction: memory must not grow, and sums must be exact.

Claim (bench/RESULTS.md): 100,000 tokens and 795 evictions leave the peak as it was, and every sum exact.

Reads passages of a book and says something after each, in one session that never ends. After every eviction the cells
that heads keep must sum up to the budget times their number, and what keys and values take must be what was planned.
The program fails where they do not, or where the peak of memory (VmHWM on Linux) grows by more than 0.1 % after the
first tenth of the tokens.

    python tests/stress/soak.py --book novel.txt
    python tests/stress/soak.py --book novel.txt --policy "h2o+ada" --tokens 20000
"""

from __future__ import annotations

import sys
import time

import numpy as np

import edgekv
from edgekv.evals import prose
from edgekv.generation.sampler import Sampler, Sampling
from edgekv.memory.process import peak_resident_bytes
from edgekv.testing import programs

MAX_GROWTH = 0.001
PREDICTED = {"growth of the peak": "0.00 %", "wrong sums": "0", "different budgets": "all"}


class Watched:
    """The compactions of a runtime: budgets are looked at after each."""

    def __init__(self, runtime: edgekv.Runtime) -> None:
        self.cache, self.total = runtime.block_loop.cache, 0
        self.n_heads, self.budget = self.cache.shape.n_head_total, runtime.plan.budget_cells
        self.seen: set[bytes] = set()
        self.wrong = 0
        self._compact, self.cache.compact = self.cache.compact, self.compact

    def compact(self, *arguments, **keywords):
        result = self._compact(*arguments, **keywords)
        if result.n_evicted:
            budgets = np.array(self.cache.budgets())
            self.total += 1
            self.seen.add(budgets.tobytes())
            # early on, layers that may keep much have not seen as much yet
            self.wrong += budgets.sum() != self.n_heads * self.budget and self.cache.n_past > 4 * self.budget
        return result


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--policy", default="snapkv+pyramid+ada")
    parser.add_argument("--budget", type=int, default=512, help="cells")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--read", type=int, default=1000, help="tokens of a passage")
    parser.add_argument("--say", type=int, default=250, help="tokens said after each")
    options = parser.parse_args()

    settings = {"model": options.model, "threads": options.threads, "policy": options.policy, "focus": False}
    settings |= {"budget": options.budget, "block": options.block, "kv_type": options.kv_type}
    book = prose.read_book(options.book)
    with edgekv.Runtime(memory="100%", repack=False, **settings) as runtime:
        share = options.read / (options.read + options.say)
        passages = iter(prose.first_tokens(runtime.model, book, round(options.tokens * share) + options.read))
        block_loop, watched = runtime.block_loop, Watched(runtime)
        sampler = Sampler(Sampling(temperature=1.0, repeat_penalty=1.0, seed=1))
        early, started = 0, time.perf_counter()
        while block_loop.cache.n_past < options.tokens:
            block_loop.read([next(passages) for _ in range(options.read)], lambda _: True)
            for _ in range(options.say):
                block_loop.step(sampler.sample(runtime.context))
            if not early and block_loop.cache.n_past >= options.tokens / 10:
                early = peak_resident_bytes()
        sampler.close()
        growth = peak_resident_bytes() / early - 1
        kv_planned, kv_held = runtime.plan.kv_bytes, runtime.context.memory().kv_bytes
        figures = {
            "tokens": block_loop.cache.n_past,
            "tokens/s": f"{block_loop.cache.n_past / (time.perf_counter() - started):.0f}",
            "evictions": watched.total,
            "different budgets": len(watched.seen),
            "wrong sums": watched.wrong,
            "growth of the peak": f"{growth:.2%}",
            "bytes of keys and values": f"{kv_held}, planned {kv_planned}",
        }
    programs.print_table(["", "predicted", "measured"], [(k, PREDICTED.get(k, ""), v) for k, v in figures.items()])
    programs.write_json(options.json, {"policy": options.policy, **figures})
    sys.exit(growth > MAX_GROWTH or watched.wrong > 0 or kv_held != kv_planned)


if __name__ == "__main__":
    main()
