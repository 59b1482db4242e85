"""What papers claim of their policies, checked on the keys, values and queries of a running model.

    critical  CriticalKV, section 4.6: two stages of selection move the attention output, projected by W_O,
              less than one (norm1), in 92 % of the query heads; and never further than the bound theta (eq. 8)
    caote     CAOTE, figure 3: weighing by what evicting a cell does moves the attention output less (norm2)
    ahakv     AhaKV, section 3.1: what H2O keeps lies early in the text; what AhaKV keeps does not

`critical` and `caote` read a text block by block under the plain base. Each time the cache is full they let the base
and its wrappers choose from the very same cells, once for the budget and once for a fifth of the cells (the paper's
cache size), and compare the outputs with those of all cells, for three sets of queries:

    newest    the token read last
    window    the 32 tokens read last
    next      the first 32 tokens of the next block; to them the block's own cells are added, which all stay

`heads` is the share of query heads whose mean change falls, `ratio` the geometric mean over heads of the mean change
with the wrapper over that without. `ahakv` reads a text under several policies and looks at what is left of it.

What was predicted before anything was measured stands beside the figures.

    python bench/claims.py --book novel.txt
    python bench/claims.py --book novel.txt --part ahakv --tokens 4096
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import common
import gguf
import numpy as np
from gguf.quants import dequantize

import edgekv
from edgekv.cache import Cache
from edgekv.models.registry import find_model
from edgekv.policies import Head, Policy, parse_policy
from edgekv.policies.attention import attention
from edgekv.policies.critical import wo_norms
from edgekv.policies.select import Protection

PARTS = ("critical", "caote", "ahakv")
BASES = ("snapkv", "tova", "h2o")
WRAPPERS = {"critical": ["critical"], "caote": ["caote", "fastcaote", "caote(rounds=4)"]}
NORMS = {"critical": "norm1", "caote": "norm2"}
READERS = ("h2o", "ahakv", "ahakv(recent_accumulation=off)", "snapkv", "random")
N_ROWS = 32  # of the window, and of the next block
SMALL_SHARE = 0.2  # of the cells, as in the paper
F16 = 1  # enum ggml_type
ROUNDING = 1e-9  # of what all cells together could move

# `heads` for the window's queries, at the budget and at a fifth of the cells; of readers, the mean kept position.
# Values count for little where attention is as uneven as a model's; where the sinks are protected, values differ less.
PREDICTIONS = {
    "snapkv+critical": ("75 %", "80 %"),
    "tova+critical": ("65 %", "70 %"),
    "h2o+critical": ("70 %", "75 %"),
    **dict.fromkeys(["tova+caote", "tova+caote(rounds=4)"], ("65 %", "65 %")),
    "tova+fastcaote": ("60 %", "60 %"),
    **{f"{base}+{wrapper}": ("80 %", "80 %") for base in ("snapkv", "h2o") for wrapper in WRAPPERS["caote"]},
    "h2o": "0.30",
    "ahakv": "0.60",
    "ahakv(recent_accumulation=off)": "0.35",
    "snapkv": "0.65",
    "random": "0.50",
}


@dataclass(frozen=True)
class Capture:
    """A (layer, KV head) at a full cache, and the same with the next block's cells and its first queries."""

    full: Head
    then: Head


class Reader:
    """Reads a text block by block under a base policy, and keeps what the base and its wrappers look at."""

    def __init__(self, runtime: edgekv.Runtime, base: Policy, w_o: list[np.ndarray]) -> None:
        self.cache: Cache = runtime.controller.cache
        self.options, self.budget, self.base, self.w_o = runtime.options, runtime.controller.budget, base, w_o
        self.kv_heads = [(layer, g) for layer, layer_w_o in enumerate(w_o) for g in range(len(layer_w_o))]
        self.carried = [np.empty(0)] * len(self.kv_heads)

    def protection(self) -> Protection:
        """What stays, whatever chooses."""
        return Protection(self.options.n_sink, max(self.options.recent, self.base.recent(self.budget)))

    def read(self, tokens: list[int], n_captures: int) -> Iterator[list[Capture]]:
        """Feed the tokens; gives a Capture of every head for the last compactions but the very last."""
        block = self.options.block
        first = len(tokens) - block * (n_captures + 1)
        pending: list[Head] = []
        for p0 in range(0, len(tokens), block):
            self.cache.feed(tokens[p0 : p0 + block])
            wanted = self.cache.n_cells > self.budget and first <= p0 < len(tokens) - block
            if not (pending or wanted or self.base.carries):
                self.compact()
                continue
            heads = self.heads()
            if pending:
                yield [Capture(*pair) for pair in zip(pending, map(self.following, pending, heads), strict=True)]
            if self.base.carries:
                heads = [self.gathered(head, acc) for head, acc in zip(heads, self.carried, strict=True)]
            pending = heads if wanted else []
            scores = [self.base.accumulate(head) for head in heads]
            self.compact()
            kept = (self.cache.positions(layer, g) for layer, g in self.kv_heads)
            self.carried = [
                acc[np.isin(head.positions, now)] for acc, head, now in zip(scores, heads, kept, strict=True)
            ]

    def compact(self) -> None:
        stays = self.protection()
        self.cache.compact(self.base, self.budget, n_sink=stays.n_sink, recent=stays.recent)

    def heads(self) -> list[Head]:
        """Every head as it is now, float32."""
        found = []
        for layer, g in self.kv_heads:
            queries, rows, scale = self.cache.queries(layer)
            keys, values = (self.stored(layer, g, values=values) for values in (False, True))
            found.append(
                Head(
                    keys=keys,
                    values=values,
                    positions=self.cache.positions(layer, g),
                    queries=queries.reshape(len(self.w_o[layer]), -1, *queries.shape[1:])[g],
                    query_positions=rows,
                    wo_norm=wo_norms(values, self.w_o[layer][g]),
                    scale=scale,
                    layer=layer,
                    head=g,
                )
            )
        return found

    def stored(self, layer: int, g: int, *, values: bool) -> np.ndarray:
        data, rows = self.cache.rows(layer, g, values=values)
        if rows.type != F16 or rows.rotation:
            sys.exit("the cells are not plain f16, which this bench reads; use another model")
        return data.view(np.float16).astype(np.float32)

    def gathered(self, head: Head, carried: np.ndarray) -> Head:
        """The head with what earlier scorings left; to its new cells they left nothing."""
        return replace(head, accumulated=np.pad(carried, (0, len(head.positions) - len(carried))))

    def following(self, before: Head, now: Head) -> Head:
        """All cells from before the last compaction, the new ones, and the new block's first queries."""
        queries, rows = now.rows()
        new = now.positions > before.positions[-1]
        names = ("keys", "values", "positions", "wo_norm")
        cells = {name: np.concatenate([getattr(before, name), getattr(now, name)[new]]) for name in names}
        return replace(before, **cells, queries=queries[:, :N_ROWS], query_positions=rows[:N_ROWS], accumulated=None)


class Outputs:
    """Attention outputs of the G query heads of a KV head, W rows each, and how evicting cells changes them."""

    def __init__(self, head: Head, w_o: np.ndarray) -> None:
        self.weights = attention(head)  # (G, W, n)
        self.values, self.w_o = head.values.astype(np.float64), w_o
        self.moves = self.weights * np.abs(self.values @ w_o).sum(axis=2)[:, None]  # A norm1(V W_O), (G, W, n)
        self.most = self.moves.sum(axis=2)  # (G, W)

    def change(self, stays: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """stays (n,) bool -> norm1 of the projected change and norm2 of the change, (G, W), and rows past theta."""
        left = self.weights * stays
        share = left.sum(axis=2, keepdims=True)
        change = (self.weights - left / share) @ self.values
        norm1 = np.abs(change @ self.w_o).sum(axis=2)
        theta = self.most - (2 - 1 / share[..., 0]) * self.moves[..., stays].sum(axis=2)
        return norm1, np.linalg.norm(change, axis=2), int((norm1 > theta + ROUNDING * self.most).sum())


class Changes:
    """Mean change by (spec, cells kept, norm, queries), one figure a query head, and rows that went past theta."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str, str, str], list[np.ndarray]] = defaultdict(list)
        self.n_rows = self.n_beyond = 0

    def add(self, captures: list[Capture], specs: list[str], w_o: list[np.ndarray], reader: Reader) -> None:
        """Let every spec choose from the cells of a capture, and note what the outputs do."""
        parts: dict[tuple[str, str, str, str], list[np.ndarray]] = defaultdict(list)
        policies = [parse_policy(spec) for spec in specs]
        for capture in captures:
            full, projection = capture.full, w_o[capture.full.layer][capture.full.head]
            window, following = Outputs(full.newest_rows(N_ROWS), projection), Outputs(capture.then, projection)
            n, n_new = len(full.positions), len(capture.then.positions) - len(full.positions)
            for size, budget in (("budget", reader.budget), ("fifth", round(SMALL_SHARE * n))):
                for spec, policy in zip(specs, policies, strict=True):
                    stays = np.zeros(n, dtype=bool)
                    stays[policy.keep(replace(full, budget=budget), reader.protection())] = True
                    for outputs, mask in (
                        (window, stays),
                        (following, np.pad(stays, (0, n_new), constant_values=True)),
                    ):
                        *norms, n_beyond = outputs.change(mask)
                        self.n_beyond += n_beyond
                        self.n_rows += norms[0].size
                        for norm, change in zip(("norm1", "norm2"), norms, strict=True):
                            if outputs is window:
                                parts[spec, size, norm, "newest"].append(change[:, -1])
                            queries = "window" if outputs is window else "next"
                            parts[spec, size, norm, queries].append(change.mean(axis=1))
        for key, changes in parts.items():
            self.found[key].append(np.concatenate(changes))

    def compare(self, spec: str, base: str, size: str, norm: str, queries: str) -> tuple[float, float]:
        """Share of heads whose mean change falls, and the geometric mean of the ratios."""
        ours, plain = (np.mean(self.found[name, size, norm, queries], axis=0) for name in (spec, base))
        changed = (ours > 0) & (plain > 0)
        return float(np.mean(ours < plain)), float(np.exp(np.log(ours[changed] / plain[changed]).mean()))


def output_projections(path: str, n_head_kv: int, head_dim: int) -> list[np.ndarray]:
    """W_O by layer, (n_head_kv, G, d_v, n_embd) float64, from the model's file."""
    found = {}
    for tensor in gguf.GGUFReader(path).tensors:
        if match := re.fullmatch(r"blk\.(\d+)\.attn_output\.weight", tensor.name):
            matrix = dequantize(tensor.data, tensor.tensor_type).astype(np.float64)  # (n_embd, n_head * d_v)
            found[int(match[1])] = matrix.T.reshape(n_head_kv, -1, head_dim, len(matrix))
    return [found[layer] for layer in sorted(found)]


def run_outputs(options, tokens: list[int], parts: list[str]) -> dict[str, object]:
    """`critical` and `caote`: one reading for each base."""
    figures = []
    changes = Changes()
    for base in options.base or BASES:
        settings = {"budget": options.budget, "block": options.block, "threads": options.threads}
        # h2o's cache keeps the queries of a whole block
        with edgekv.Runtime(
            options.model, memory="1TiB", policy="h2o", allow_beyond_trained=True, **settings
        ) as runtime:
            shape = runtime.controller.cache.shape
            w_o = output_projections(find_model(options.model), shape.n_head_kv_max, shape.head_dim_v)
            reader = Reader(runtime, parse_policy(base), w_o)
            specs = [base, *(f"{base}+{wrapper}" for part in parts for wrapper in WRAPPERS[part])]
            for captures in reader.read(tokens, options.captures):
                changes.add(captures, specs, w_o, reader)
        for part in parts:
            for wrapper, (i, size) in ((w, pair) for w in WRAPPERS[part] for pair in enumerate(("budget", "fifth"))):
                spec = f"{base}+{wrapper}"
                found = {q: changes.compare(spec, base, size, NORMS[part], q) for q in ("newest", "window", "next")}
                predicted = PREDICTIONS[spec][i] if spec in PREDICTIONS else ""
                figures.append({"part": part, "spec": spec, "cells": size, "predicted": predicted} | found)
    for part in parts:
        print(f"\n{part}: change of the output ({NORMS[part]}) with the wrapper against without")
        common.print_table(
            ["", "cells", "predicted", "newest: heads", "ratio", "window: heads", "ratio", "next: heads", "ratio"],
            [
                [f["spec"], f["cells"], f["predicted"]]
                + [text for q in ("newest", "window", "next") for text in (f"{f[q][0]:.0%}", f"{f[q][1]:.3f}")]
                for f in figures
                if f["part"] == part
            ],
        )
    print(f"\nchanges past theta: {changes.n_beyond} of {changes.n_rows} (predicted: 0)")
    return {"changes": figures, "n_beyond_theta": changes.n_beyond, "n_changes": changes.n_rows}


def run_positions(options, tokens: list[int]) -> list[dict[str, object]]:
    """`ahakv`: what is left of the text, sinks and newest tokens left out."""
    figures = []
    for spec in READERS:
        settings = {"budget": options.budget, "block": options.block, "threads": options.threads}
        with edgekv.Runtime(
            options.model, memory="1TiB", policy=spec, allow_beyond_trained=True, **settings
        ) as runtime:
            runtime.controller.read(tokens, lambda _: True)
            cache, n_sink = runtime.controller.cache, runtime.options.sinks
            end = len(tokens) - runtime.options.recent_cells(options.budget)
            kv_heads = np.ndindex(cache.shape.n_layer, cache.shape.n_head_kv_max)
            kept = [cache.positions(layer, g) for layer, g in kv_heads]
        shares = [(cells[(cells >= n_sink) & (cells < end)] - n_sink) / (end - n_sink) for cells in kept]
        quarters = np.histogram(np.concatenate(shares), bins=4, range=(0, 1))[0]
        figures.append(
            {
                "policy": spec,
                "predicted": PREDICTIONS[spec],
                "mean": float(np.mean(np.concatenate(shares))),
                "quarters": (quarters / quarters.sum()).tolist(),
                "by_head": [float(share.mean()) for share in shares],
            }
        )
    h2o = figures[0]["by_head"]
    print(f"\nahakv: where in the text the kept cells lie (0 = beginning, 1 = end), {options.budget} cells")
    common.print_table(
        ["", "predicted", "mean", "1st quarter", "2nd", "3rd", "4th", "heads later than h2o"],
        [
            [f["policy"], f["predicted"], f"{f['mean']:.3f}", *(f"{share:.0%}" for share in f["quarters"])]
            + [f"{np.mean(np.greater(f['by_head'], h2o)):.0%}"]
            for f in figures
        ],
    )
    return figures


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="repeatable (all)")
    parser.add_argument("--base", choices=BASES, action="append", help="base of the wrappers; repeatable (all)")
    parser.add_argument("--budget", type=int, default=512, help="cells")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=1664, help="tokens read, cut to whole blocks")
    parser.add_argument("--captures", type=int, default=4, help="compactions at which outputs are compared")
    options = parser.parse_args()

    n_tokens = options.tokens - options.tokens % options.block
    if n_tokens < options.budget + options.block * (options.captures + 1):
        sys.exit(f"{n_tokens} tokens do not fill the cache {options.captures} times; give more with --tokens")
    with common.vocabulary(options.model) as model:
        tokens = common.first_tokens(model, common.read_book(options.book), n_tokens)
    parts = options.part or list(PARTS)
    figures: dict[str, object] = {"tokens": n_tokens, "budget": options.budget, "block": options.block}
    if outputs := [part for part in PARTS if part in parts and part != "ahakv"]:
        figures |= run_outputs(options, tokens, outputs)
    if "ahakv" in parts:
        figures["positions"] = run_positions(options, tokens)
    common.write_json(options.json, figures)


if __name__ == "__main__":
    main()
