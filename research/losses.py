"""Check Ada-KV's claim about its split on the keys, values and queries of a running model (its figure 3).

Claim (docs/policies.md): where `ada` loses less than even budgets.

A layer's eviction loss (eq. 8) is norm1(y - y_hat): y the sum over all heads of A V W_O with all cells, y_hat with what
is left of them; here its mean over queries. Passages from random places of a book are read without eviction. Then each
base chooses once with an even split and with what `ada` makes of the same total, for a fifth of the cells (the paper's)
and for half of them. Two sets of queries are looked at:

    window  the 32 tokens read last, by which snapkv scores
    next    the first 32 tokens of the next block, to which its own cells are added; they all stay

The tables have, for every layer, the loss of the even split as a share of the output, and for `ada` the share of
samples with a smaller loss and the ratio of mean losses. "all" sums over layers, each relative to its own mean loss
under the even split. So layers count alike, and under `scope=model` one may pay for another. No head keeps more cells
than the runtime lets it. The last table has the predictions from before anything was measured.

    python research/losses.py --book novel.txt
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator

import numpy as np

import edgekv
from edgekv.evals import prose
from edgekv.evals.captures import Capture, Reader, by_layer, output_projections
from edgekv.evals.output_perturbation import kept_cells
from edgekv.evals.outputs import Layer
from edgekv.policies import Head, parse_policy
from edgekv.policies.selection import Protection
from edgekv.testing import programs

BASES = ("snapkv(pool=max)", "keydiff")
EVEN = "even"
SPLITS = ("ada", "ada(safeguard=0)", "ada(scope=model)")
SHARES = {"fifth": 0.2, "half": 0.5}  # shares of the cells
SETS = ("window", "next")
N_ROWS = 32  # queries of the window, and of the next block

# (base, cells) -> split -> over all layers, in how many samples the loss is smaller and the ratio of losses, by set.
# snapkv: less attention is lost for the queries that score, and a part of that for later ones. keydiff: the softmax of
# cosines hardly tells heads apart, so that all splits are nearly even.
PREDICTED = {
    ("snapkv(pool=max)", "fifth"): {
        "ada": ("100 % 0.93", "90 % 0.96"),
        "ada(safeguard=0)": ("100 % 0.92", "90 % 0.96"),
        "ada(scope=model)": ("90 % 0.95", "80 % 0.97"),
    },
    ("snapkv(pool=max)", "half"): {
        "ada": ("100 % 0.90", "90 % 0.96"),
        "ada(safeguard=0)": ("100 % 0.88", "90 % 0.96"),
        "ada(scope=model)": ("90 % 0.92", "80 % 0.97"),
    },
    ("keydiff", "fifth"): dict.fromkeys(SPLITS, ("50 % 1.00", "50 % 1.00")),
    ("keydiff", "half"): dict.fromkeys(SPLITS, ("50 % 1.00", "50 % 1.00")),
}

Key = tuple[str, str, str, str]  # base, cells kept, split, set of queries


class Losses:
    """Losses of every sample: by key, one (n_layer,) a sample."""

    def __init__(self) -> None:
        self.found: dict[Key, list[list[float]]] = defaultdict(list)
        self.outputs: dict[str, list[list[float]]] = defaultdict(list)  # norm1(y) by set of queries

    def add(self, captures: list[Capture], reader: Reader) -> None:
        """Evict from one sample in every way, and note what the outputs of all layers do."""
        full, then = ([[getattr(c, name) for c in of] for of in by_layer(captures)] for name in ("full", "then"))
        seen = {"window": [[head.newest_rows(N_ROWS) for head in heads] for heads in full], "next": then}
        n = len(full[0][0].positions)
        layers = {
            name: [Layer(heads, w_o, n) for heads, w_o in zip(seen[name], reader.w_o, strict=True)] for name in SETS
        }
        for name in SETS:
            self.outputs[name].append([layer.norms.layer for layer in layers[name]])
        for base, cells, split, kept in choices(full, reader.protection):
            for name in SETS:
                losses = [layer.change(of).layer for layer, of in zip(layers[name], kept, strict=True)]
                self.found[base, cells, split, name].append(losses)

    def line(self, base: str, cells: str, split: str, name: str) -> dict[str, object]:
        """A split against the even one, by layer and over all: how many samples have a smaller loss, and the ratio."""
        ours, even = (np.array(self.found[base, cells, which, name]) for which in (split, EVEN))  # (samples, n_layer)
        usual = even.mean(axis=0)
        ratios, together = ours.mean(axis=0) / usual, (ours / usual).mean(axis=1)
        return {
            "base": base,
            "cells": cells,
            "split": split,
            "queries": name,
            "predicted": PREDICTED[base, cells][split][SETS.index(name)],
            "even": (usual / np.mean(self.outputs[name], axis=0)).tolist(),
            "lower": (ours < even).mean(axis=0).tolist(),
            "ratio": ratios.tolist(),
            "all_lower": float((together < (even / usual).mean(axis=1)).mean()),
            "all_ratio": float(ratios.mean()),
            "layers": float((ratios < 1).mean()),
        }


def choices(layers: list[list[Head]], protection: Protection) -> Iterator[tuple[str, str, str, list[list[np.ndarray]]]]:
    """Every base, number of cells and split, and the cells of each head that stay, by layer."""
    for base, (cells, share), split in itertools.product(BASES, SHARES.items(), (EVEN, *SPLITS)):
        policy = parse_policy(base if split == EVEN else f"{base}+{split}")
        budget = round(share * len(layers[0][0].positions))
        yield base, cells, split, kept_cells(policy, layers, budget, protection)


def measure(options: argparse.Namespace, samples: list[list[int]]) -> Losses:
    """Read every sample from the beginning."""
    losses = Losses()
    settings = {"block": options.block, "budget": options.cells + options.block, "threads": options.threads}
    with edgekv.Runtime(options.model, memory="100%", repack=False, policy="h2o", focus=False, **settings) as runtime:
        reader = Reader(runtime, parse_policy(BASES[0]), output_projections(runtime))
        for i, tokens in enumerate(samples):
            runtime.block_loop.clear()
            for captures in reader.read(tokens, 1, N_ROWS):
                losses.add(captures, reader)
            print(f"sample {i + 1} of {len(samples)}", flush=True)
    return losses


def print_layers(lines: list[dict]) -> None:
    """A table of all layers for lines that share base and cells."""
    print(
        f"\n{lines[0]['base']}, a {lines[0]['cells']} of the cells: samples with less loss than even, ratio of losses"
    )
    header, columns = ["layer"], [[*range(len(lines[0]["ratio"])), "all"]]
    for name in SETS:
        of_set = [line for line in lines if line["queries"] == name]
        header += [f"{name}: even", *SPLITS]
        columns.append([*(f"{share:.1%}" for share in of_set[0]["even"]), ""])
        columns += (
            [f"{lower:4.0%} {ratio:.3f}" for lower, ratio in zip(*figures, strict=True)]
            for figures in (
                ([*line["lower"], line["all_lower"]], [*line["ratio"], line["all_ratio"]]) for line in of_set
            )
        )
    programs.print_table(header, zip(*columns, strict=True))


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--cells", type=int, default=1024, help="tokens read before cells are evicted, whole blocks")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()

    options.cells -= options.cells % options.block
    rng, n_tokens = random.Random(options.seed), options.cells + options.block
    book = prose.read_book(options.book)
    with prose.vocabulary(options.model) as model:
        starts = [book.index(". ", rng.randrange(len(book) - 16 * n_tokens)) + 2 for _ in range(options.samples)]
        samples = [prose.first_tokens(model, book[start:], n_tokens) for start in starts]

    losses = measure(options, samples)
    lines = [losses.line(*key) for key in itertools.product(BASES, SHARES, SPLITS, SETS)]
    for base, cells in itertools.product(BASES, SHARES):
        print_layers([line for line in lines if (line["base"], line["cells"]) == (base, cells)])
    print(f"\nall layers, {options.samples} samples of {options.cells} tokens")
    programs.print_table(
        ["base", "cells", "split", "queries", "predicted", "samples", "ratio", "layers with less loss"],
        [
            [
                *(line[name] for name in ("base", "cells", "split", "queries", "predicted")),
                *(f"{line['all_lower']:.0%}", f"{line['all_ratio']:.3f}", f"{line['layers']:.0%}"),
            ]
            for line in lines
        ],
    )
    programs.write_json(options.json, {"samples": options.samples, "cells": options.cells, "lines": lines})


if __name__ == "__main__":
    main()
