"""What Ada-KV claims of its split, checked on the keys, values and queries of a running model (its figure 3).

A layer's eviction loss (eq. 8) is norm1(y - y_hat): y the sum over all heads of A V W_O with all cells, y_hat with what
is left of them; here its mean over queries. Passages from random places of a book are read without eviction. Then each
base chooses once with an even split and with what `ada` makes of the same total, for a fifth of the cells (the paper's)
and for half of them. Two sets of queries are looked at:

    window  the 32 tokens read last, by which snapkv scores
    next    the first 32 tokens of the next block, to which its own cells are added; they all stay

Of every layer the tables tell the loss of the even split as a share of the output, and of `ada` in how many samples the
loss is smaller, and the ratio of mean losses. "all" sums over layers, each relative to its own mean loss under the even
split: so layers count alike, and under `scope=model` one may pay for another. No head keeps more cells than the runtime
lets it. What was predicted before anything was measured stands in the last table.

    python bench/losses.py --book novel.txt
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections import defaultdict
from collections.abc import Iterator

import common
import numpy as np
from captures import Capture, Reader, output_projections

import edgekv
from edgekv.estimate import HEAD_LIMIT
from edgekv.evals import prose
from edgekv.policies import Head, Policy, parse_policy
from edgekv.policies.ada import Ada, allot
from edgekv.policies.attention import attention
from edgekv.policies.kernels import score
from edgekv.policies.select import Protection, cells_to_keep

BASES = ("snapkv(pool=max)", "keydiff")
EVEN = "even"
SPLITS = ("ada", "ada(safeguard=0)", "ada(scope=model)")
SHARES = {"fifth": 0.2, "half": 0.5}  # of the cells
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


class Layer:
    """Attention outputs of a layer for some queries, and what evicting some of the first n cells does to them."""

    def __init__(self, heads: list[Head], w_o: np.ndarray, n: int) -> None:
        self.new = np.arange(n, len(heads[0].positions))
        self.weights = [attention(head) for head in heads]  # (G, W, n) each
        self.values = [head.values.astype(np.float64) for head in heads]
        self.outputs = [weights @ values for weights, values in zip(self.weights, self.values, strict=True)]
        self.w_o = w_o.reshape(-1, w_o.shape[-1])  # (heads * d_v, n_embd)
        self.norm1 = self._norm1(self.outputs)

    def loss(self, kept: list[np.ndarray]) -> float:
        """norm1(y - y_hat), mean over queries, where of every KV head these cells are left, and the new ones."""
        changes = []
        for cells, weights, values, output in zip(kept, self.weights, self.values, self.outputs, strict=True):
            left = np.concatenate([cells, self.new])
            share = weights[..., left]
            changes.append(output - share @ values[left] / share.sum(axis=2, keepdims=True))
        return self._norm1(changes)

    def _norm1(self, outputs: list[np.ndarray]) -> float:
        """(G, W, d_v) of every KV head -> mean over W of norm1 of what W_O makes of them."""
        rows = np.concatenate(outputs).transpose(1, 0, 2)
        return float(np.abs(rows.reshape(len(rows), -1) @ self.w_o).sum(axis=1).mean())


class Losses:
    """Losses of every sample: by key, one (n_layer,) a sample."""

    def __init__(self) -> None:
        self.found: dict[Key, list[list[float]]] = defaultdict(list)
        self.outputs: dict[str, list[list[float]]] = defaultdict(list)  # norm1(y) by set of queries

    def add(self, captures: list[Capture], reader: Reader) -> None:
        """Evict from one sample in every way, and note what the outputs of all layers do."""
        heads = [capture.full for capture in captures]
        seen = {"window": [head.newest_rows(N_ROWS) for head in heads], "next": [capture.then for capture in captures]}
        n = len(heads[0].positions)
        layers = {
            name: [Layer(of_layer(seen[name], heads, il), w_o, n) for il, w_o in enumerate(reader.w_o)] for name in SETS
        }
        for name in SETS:
            self.outputs[name].append([layer.norm1 for layer in layers[name]])
        for base, cells, split, kept in choices(heads, reader.protection):
            for name in SETS:
                losses = [layer.loss(of_layer(kept, heads, il)) for il, layer in enumerate(layers[name])]
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


def of_layer(items: list, heads: list[Head], layer: int) -> list:
    """Of something for every head, what belongs to the heads of one layer."""
    return [item for item, head in zip(items, heads, strict=True) if head.layer == layer]


def choices(heads: list[Head], protection: Protection) -> Iterator[tuple[str, str, str, list[np.ndarray]]]:
    """Every base, number of cells and split, and the cells of each head that stay."""
    for base in map(parse_policy, BASES):
        scores = [score(base, head) for head in heads]
        weights = [score(Ada(base), head) for head in heads]
        for cells, share in SHARES.items():
            budget = round(share * len(heads[0].positions))
            for split in (EVEN, *SPLITS):
                policy = base if split == EVEN else parse_policy(f"{base.spec}+{split}")
                budgets = split_budgets(policy, weights, heads, budget, protection)
                kept = [
                    cells_to_keep(own, head.positions, n, protection)
                    for own, head, n in zip(scores, heads, budgets, strict=True)
                ]
                yield base.spec, cells, split, kept


def split_budgets(policy: Policy, weights: list, heads: list[Head], budget: int, protection: Protection) -> list[int]:
    """Cells of each head, `budget` on average: `ada` compares the weights (n,) of the heads."""
    if not isinstance(policy, Ada):
        return [budget] * len(heads)
    limits = {"safeguard": policy.safeguard, "largest": HEAD_LIMIT * budget}
    budgets = []
    for _, group in itertools.groupby(range(len(heads)), lambda i: policy.scope == "layer" and heads[i].layer):
        which = list(group)
        positions = [heads[i].positions for i in which]
        budgets += allot([weights[i] for i in which], positions, budget, protection, **limits)
    return budgets


def measure(options: argparse.Namespace, samples: list[list[int]]) -> Losses:
    """Read every sample from the beginning."""
    losses = Losses()
    settings = {"block": options.block, "budget": options.cells + options.block, "threads": options.threads}
    with edgekv.Runtime(options.model, memory="100%", repack=False, policy="h2o", focus=False, **settings) as runtime:
        shape = runtime.controller.cache.shape
        w_o = output_projections(options.model, shape.n_head_kv_max, shape.head_dim_v)
        reader = Reader(runtime, parse_policy(BASES[0]), w_o)
        for i, tokens in enumerate(samples):
            runtime.controller.clear()
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
    common.print_table(header, zip(*columns, strict=True))


def main() -> None:
    parser = common.arguments(__doc__)
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
    common.print_table(
        ["base", "cells", "split", "queries", "predicted", "samples", "ratio", "layers with less loss"],
        [
            [
                *(line[name] for name in ("base", "cells", "split", "queries", "predicted")),
                *(f"{line['all_lower']:.0%}", f"{line['all_ratio']:.3f}", f"{line['layers']:.0%}"),
            ]
            for line in lines
        ],
    )
    common.write_json(options.json, {"samples": options.samples, "cells": options.cells, "lines": lines})


if __name__ == "__main__":
    main()
