"""Heads that hold different numbers of cells, against llama.cpp's own cache with as many in all.

Claim (bench/RESULTS.md): a cache of even or ragged heads is as fast as llama.cpp's own.

    reading        a block of tokens on top of N cells per head on average, kept in f16
    generating     token by token on top of them
    reading q8_0   a block on top of N cells kept in q8_0

First every head holds the same ("even"), then budgets are drawn at random, from a fifth to twice the mean ("ragged").
Both sides decode the same tokens, in turn. Figures are medians of speed / speed of llama.cpp.

    python bench/ragged.py --book novel.txt
    python bench/ragged.py --book novel.txt --model llama-3.2-1b.gguf --cells 1024 --cells 4096
"""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from edgekv.binding import structs
from edgekv.binding.cache import Cache
from edgekv.binding.model import Model
from edgekv.evals import prose
from edgekv.evals.stock import Peer, StockLoop
from edgekv.models.catalog import find_model
from edgekv.options import Options
from edgekv.testing import programs

LOW, HIGH = 0.2, 2.0  # times the mean, budgets of heads
STEPS = 16  # tokens generated in one go

# (part, heads) -> meant, predicted: a head's keys lie together now, but a call a head is harder to share out
PARTS = {
    ("reading", "even"): (">= 0.97", "1.03"),
    ("reading", "ragged"): (">= 0.97", "1.03"),
    ("generating", "even"): (">= 0.97", "1.01"),
    ("generating", "ragged"): (">= 0.97", "0.98"),
    ("reading q8_0", "even"): (">= 1.30", "1.60"),
    ("reading q8_0", "ragged"): (">= 1.30", "1.60"),
}


class Side(Protocol):
    """Something that decodes on top of the same cells again and again."""

    def block(self, tokens: list[int]) -> None: ...
    def steps(self, tokens: list[int]) -> None: ...
    def back(self) -> None: ...


@dataclass
class Flat:
    """A cache of edgekv's, and the budgets of its heads."""

    cache: Cache
    mean: int
    budgets: list[list[int]]

    def read(self, tokens: list[int], block: int) -> None:
        for p0 in range(0, len(tokens), block):
            self.block(tokens[p0 : p0 + block])
            self.back()

    def block(self, tokens: list[int]) -> None:
        self.cache.feed(tokens, want_logits=True)

    def steps(self, tokens: list[int]) -> None:
        for token in tokens:
            self.cache.feed([token], want_logits=True)

    def back(self) -> None:
        """Evict at random: which cells stay does not matter here."""
        self.cache.compact(POLICY, self.mean, budgets=self.budgets)


@dataclass
class Stock:
    """llama.cpp's own cache, which forgets what was fed last."""

    loop: StockLoop
    mean: int

    def block(self, tokens: list[int]) -> None:
        self.loop.feed(tokens, self.mean, want_logits=True)

    def steps(self, tokens: list[int]) -> None:
        for i, token in enumerate(tokens):
            self.loop.feed([token], self.mean + i, want_logits=True)

    def back(self) -> None:
        self.loop.forget_from(self.mean)


POLICY = Options(policy="random").parsed_policy


def random_budgets(n_layer: int, n_head_kv: int, mean: int) -> list[list[int]]:
    """Budgets of exactly that mean, [layer][head]."""
    rng = np.random.default_rng(1)
    low, high = int(LOW * mean), int(HIGH * mean)
    budgets = np.clip(rng.exponential(mean, n_layer * n_head_kv), low, high).astype(int)
    while lack := mean * budgets.size - budgets.sum():
        able = np.flatnonzero(budgets < high if lack > 0 else budgets > low)
        budgets[rng.choice(able, min(abs(lack), len(able)), replace=False)] += np.sign(lack)
    return budgets.reshape(n_layer, n_head_kv).tolist()


def ratios(flat: Side, stock: Side, what: str, tokens: list[int], pairs: int) -> list[float]:
    """Speed of flat / speed of stock, pair by pair. The first pair of each builds its graphs and does not count."""
    found = []
    for i in range(pairs + 1):
        ratio = programs.in_turn(i, lambda: getattr(flat, what)(tokens), lambda: getattr(stock, what)(tokens))
        flat.back()
        stock.back()
        found.append(ratio)
    return found[1:]


def measure(model: Model, kv_type: str, mean: int, tokens: list[int], options: argparse.Namespace) -> dict:
    """Ratios of all parts with one cache type: (part, heads) -> list."""
    settings = Options(kv_type=kv_type, block=options.block, threads=options.threads)
    n_cells, found = mean + options.block, {}
    context = model.new_context(n_cells, settings, n_cells_max=int(HIGH * mean) + options.block)
    with (
        closing(context),
        closing(Cache(context, structs.CacheParams(ragged=True))) as cache,
        closing(Peer.alike(settings).loop(model, n_cells)) as loop,
    ):
        shape = cache.shape
        flat = Flat(cache, mean, [[mean] * shape.n_head_kv_max] * shape.n_layer)
        stock = Stock(loop, mean)
        flat.read(tokens[:mean], options.block)
        for p0 in range(0, mean, options.block):
            loop.feed(tokens[p0 : min(mean, p0 + options.block)], p0, want_logits=False)
        for heads in ("even", "ragged"):
            if heads == "ragged":
                flat.budgets = random_budgets(shape.n_layer, shape.n_head_kv_max, mean)
                flat.read(tokens[mean : int(HIGH * mean) + options.block], options.block)
                if cache.budgets() != flat.budgets:
                    raise RuntimeError("heads do not hold what was drawn")
            if kv_type == "f16":
                found["reading", heads] = ratios(flat, stock, "block", tokens[: options.block], options.pairs)
                found["generating", heads] = ratios(flat, stock, "steps", tokens[:STEPS], options.pairs)
            else:
                found[f"reading {kv_type}", heads] = ratios(
                    flat, stock, "block", tokens[: options.block], options.pairs
                )
    return found


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--cells", type=int, action="append", help="cells per head; repeatable (1024, 4096)")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--pairs", type=int, default=9, help="pairs of runs of every part")
    options = parser.parse_args()

    book = prose.read_book(options.book)
    rows = []
    with Model(find_model(options.model), Options()) as model:
        for mean in options.cells or (1024, 4096):
            tokens = prose.first_tokens(model, book, int(HIGH * mean) + options.block)
            for kv_type in ("f16", "q8_0"):
                for (part, heads), measured in measure(model, kv_type, mean, tokens, options).items():
                    meant, predicted = PARTS[part, heads]
                    spread = f"{min(measured):.3f} .. {max(measured):.3f}"
                    rows.append((part, heads, mean, meant, predicted, f"{programs.median(measured):.3f}", spread))
                    print(*rows[-1], flush=True)
    header = ["part", "heads", "cells", "meant", "predicted", "measured", "range"]
    programs.print_table(header, rows)
    programs.write_json(options.json, [dict(zip(header, row, strict=True)) for row in rows])


if __name__ == "__main__":
    main()
