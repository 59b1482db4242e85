"""Long generations on a real model: speed, and the peak of memory early and late.

Claim (bench/RESULTS.md): the peak of 2,000 and of 20,000 generated tokens is that of the first ones.

Every policy runs in a fresh process. It reads a prompt that fills the budget, samples and feeds tokens, also past those
that would end a reply, and reports its peak (VmHWM on Linux) after `--early` tokens and after all. Memory must not grow
with what is said: the program fails where a late peak is more than 1 % above the early one.

Speeds are shares of that of `sink`, which scores for nothing; on a shared machine they tell less than `evicting`, the
share of the time that scores and moves cells.

    python bench/generation.py --book novel.txt
    python bench/generation.py --book novel.txt --policy snapkv+critical --tokens 5000
"""

from __future__ import annotations

import sys
import time

import edgekv
from edgekv.evals import prose
from edgekv.generation.sampler import Sampler, Sampling
from edgekv.memory.process import peak_resident_bytes
from edgekv.testing import programs

POLICIES = (
    *("sink", "random", "keydiff", "l2norm", "tova", "snapkv", "ahakv", "h2o"),
    *("snapkv+caote", "snapkv+fastcaote", "snapkv+critical", "snapkv+caote+critical"),
)
MAX_RATIO = 1.01


def run_case(case: dict) -> dict[str, object]:
    """Read a prompt and generate, in this process."""
    n_early, n_tokens = case.pop("early"), case.pop("tokens")
    prompt, seed = case.pop("prompt"), case.pop("seed")
    with edgekv.Runtime(memory="100%", repack=False, focus=False, **case) as runtime:
        block_loop = runtime.block_loop
        block_loop.read(prompt, lambda _: True)
        sampler = Sampler(Sampling(temperature=1.0, repeat_penalty=1.0, seed=seed))
        started = time.perf_counter()
        for i in range(n_tokens):
            if i == n_early:
                early_bytes = peak_resident_bytes()
            block_loop.step(sampler.sample(runtime.context))
        seconds = time.perf_counter() - started
        sampler.close()
        work, cache = block_loop.work, block_loop.cache
        return {
            "policy": case["policy"],
            "tok_per_s": n_tokens / seconds,
            "eviction_share": (work.score_s + work.compact_s) / seconds,
            "early_bytes": early_bytes,
            "late_bytes": peak_resident_bytes(),
            "planned_bytes": runtime.plan.peak_bytes,
            "cells": cache.n_cells,
            "evictions": work.evictions,
        }


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--policy", action="append", help="repeatable (one of each kind)")
    parser.add_argument("--budget", type=int, default=512, help="cells")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--early", type=int, default=500, help="generated tokens at the first look at the peak")
    parser.add_argument("--tokens", type=int, default=2000, help="generated tokens")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling")
    options = parser.parse_args()
    if not options.block < options.early < options.tokens:
        sys.exit(f"--early must lie between the block ({options.block}) and --tokens ({options.tokens})")

    with prose.vocabulary(options.model) as model:
        prompt = prose.first_tokens(model, prose.read_book(options.book), options.budget + options.block)
    case = {"prompt": prompt, "early": options.early, "tokens": options.tokens, "seed": options.seed}
    case |= {"model": options.model, "threads": options.threads, "budget": options.budget, "block": options.block}
    results = []
    for policy in options.policy or POLICIES:
        results.append(programs.in_fresh_process(__file__, case | {"policy": policy}))
        print(f"{policy}: {results[-1]['tok_per_s']:.1f} tokens/s", flush=True)

    plain = next((result["tok_per_s"] for result in results if result["policy"] == "sink"), None)
    programs.print_table(
        [
            "",
            "tokens/s",
            "of sink",
            "evicting",
            "MiB early",
            "MiB late",
            "ratio",
            "planned MiB",
        ],
        [
            [r["policy"], f"{r['tok_per_s']:.1f}", f"{r['tok_per_s'] / plain:.3f}" if plain else ""]
            + [f"{r['eviction_share']:.2%}"]
            + [f"{r[name] / programs.MIB:.2f}" for name in ("early_bytes", "late_bytes")]
            + [f"{r['late_bytes'] / r['early_bytes']:.4f}", f"{r['planned_bytes'] / programs.MIB:.2f}"]
            for r in results
        ],
    )
    programs.write_json(options.json, results)
    worst = max(result["late_bytes"] / result["early_bytes"] for result in results)
    print(f"largest late peak over early peak: {worst:.4f} (at most {MAX_RATIO} is meant)")
    sys.exit(worst > MAX_RATIO)


if __name__ == "__main__":
    programs.run(main, run_case)
