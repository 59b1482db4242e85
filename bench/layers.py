"""Do layers whose keys change most under eviction need more cells?

Claim (docs/results/README.md): budgets by a layer's sensitivity find as many planted numbers as even ones.

EpiCache (arXiv:2509.17396) measures once how far the keys of a layer change when a text is read block by block with
eviction, and gives layers cells by that. So does this: a text is read with all cells and with the budget, and the
sensitivity of a layer is 1 - the mean cosine between the keys of a token in both. Beside LEAST cells each, layers share
the other cells in proportion to it. Then planted numbers are asked for as `edgekv eval needle` does, with even budgets
and with these.

    python bench/layers.py --book novel.txt --threads 1
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import common
import numpy as np

import edgekv
from edgekv.binding.cache import Cache
from edgekv.evals import prose
from edgekv.evals.captures import stored_rows
from edgekv.evals.case import Case
from edgekv.evals.grid import in_process
from edgekv.evals.setting import Setting
from edgekv.planning.estimate import HEAD_LIMIT

LEAST = 64  # cells of a layer's heads
READ = 1024  # tokens of the text that sensitivity is measured on
MEASURED_ON = 200  # its seed: none that is asked about
RAGGED = "+pyramid(beta=1)"  # even budgets, in a cache that may have others


def by_head(cache: Cache, read: Callable[[int, int], object]) -> list[list[object]]:
    """read(layer, head) of all heads, layer by layer."""
    return [[read(layer, g) for g in range(cache.layer_heads(layer)[0])] for layer in range(cache.shape.n_layer)]


def keys_read(options, budget: int) -> np.ndarray:
    """Keys of every token of the text, as they were when it had just been read: (n_layer, n_head_kv, n, d)."""
    fixed = {"kv_type": "f16", "repack": False, "reposition": "never", "focus": False}
    with edgekv.Runtime(
        options.model,
        memory="100%",
        policy=options.policy,
        budget=budget,
        block=options.block,
        threads=options.threads,
        **fixed,
    ) as runtime:
        cache, policy = runtime.block_loop.cache, runtime.options.parsed_policy
        source = prose.read_book(options.book)
        tokens = runtime.model.tokenize(prose.passage(runtime.model, source, READ, random.Random(MEASURED_ON)))
        blocks = []
        for first in range(0, READ, options.block):
            cache.feed(tokens[first : first + options.block])
            blocks.append(by_head(cache, lambda *head: stored_rows(cache, *head, values=False)[-options.block :]))
            cache.compact(policy, budget, n_sink=4, recent=32)
    return np.concatenate([np.array(block, dtype=np.float64) for block in blocks], axis=2)


def sensitivities(options) -> np.ndarray:
    """(n_layer,) of tokens that come once cells were evicted."""
    full, evicted = (keys_read(options, budget)[:, :, -READ // 2 :] for budget in (READ, options.budget))
    products = (full * evicted).sum(axis=3)
    cosines = products / np.linalg.norm(full, axis=3) / np.linalg.norm(evicted, axis=3)
    return np.asarray(1 - cosines.mean(axis=(1, 2)))


def divided(sensitivity: np.ndarray, budget: int) -> np.ndarray:
    """Cells of a head in each layer, at most `budget` on average."""
    cells = LEAST + (budget - LEAST) * len(sensitivity) * sensitivity / sensitivity.sum()
    cells = np.minimum(cells, HEAD_LIMIT * budget)
    return np.asarray(np.minimum(1, budget / cells.mean()) * cells, dtype=int)


@contextmanager
def budgets_of(cells: np.ndarray | None) -> Iterator[None]:
    """Let every compaction of every cache divide its cells so; None = as its policy does."""
    compact = Cache.compact

    def by_layer(cache, policy, budget, **keywords):
        if cache.n_cells > budget:
            held = by_head(cache, lambda *head: cache.head_cells(*head)[0])
            keywords["budgets"] = [[min(int(n), one) for one in heads] for n, heads in zip(cells, held, strict=True)]
        return compact(cache, policy, budget, **keywords)

    Cache.compact = compact if cells is None else by_layer
    try:
        yield
    finally:
        Cache.compact = compact


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--policy", default="keydiff(kernel=15)", help="default: %(default)s")
    parser.add_argument("--budget", type=int, default=256, help="cells per head on average, default: %(default)s")
    parser.add_argument("--block", type=int, default=128, help="default: %(default)s")
    parser.add_argument("--texts", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=100, help="of the first text, default: %(default)s")
    options = parser.parse_args()

    sensitivity = sensitivities(options)
    cells = divided(sensitivity, options.budget)
    print("sensitivity", *np.round(sensitivity, 4))
    print("cells", *cells)
    setting = Setting(model=options.model, policy=options.policy + RAGGED, budget=options.budget, block=options.block)
    seeds = range(options.seed, options.seed + options.texts)
    cases = [Case("needle", setting, 1000, seed, options.book, {"depth": None, "needles": 1}) for seed in seeds]
    found = {}
    for name, division in (("even", None), ("by sensitivity", cells)):
        with budgets_of(division):
            found[name] = [result["score"] for _, result in in_process(cases, threads=options.threads)]
    common.print_table(("budgets", "found", "of"), [(name, int(sum(of)), len(of)) for name, of in found.items()])
    pairs = list(zip(*found.values(), strict=True))
    print("only by even ones", sum(a > b for a, b in pairs), "only by sensitivity", sum(a < b for a, b in pairs))
    common.write_json(options.json, {"sensitivity": sensitivity.tolist(), "cells": cells.tolist(), "found": found})


if __name__ == "__main__":
    main()
