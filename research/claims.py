"""Check what papers claim of their policies on the keys, values and queries of a running model.

Claim (docs/policies.md): which of the papers' claims hold on this model.

    critical  CriticalKV, section 4.6: selection in two stages moves the attention output, projected by W_O, less than
              selection in one (norm1), in 92 % of the query heads; never further than the bound theta of eq. 8, which
              is what the second stage is meant to lower
    caote     CAOTE, figure 3: weighing by what evicting a cell does moves the attention output less (norm2)
    ahakv     AhaKV, section 3.1: what H2O keeps lies early in the text, what AhaKV keeps does not

`critical` and `caote` read a text block by block under a base. Each time the cache is full they let the base and its
wrappers choose from the very same cells, once for the budget and once for a fifth of the cells (CriticalKV's cache
size), and compare the outputs with those of all cells, for three sets of queries:

    scored  those that the base scores by: of tova 1, of snapkv 32, of h2o a block
    window  the 32 tokens read last
    next    the first 32 tokens of the next block, to which its own cells are added; they all stay

A base's own line tells its mean change as a share of the output. A wrapper's tells in how many query heads the mean
change is smaller than its base's, and the ratio of the two; both lines give the geometric mean over heads. `ahakv`
reads a text under several policies and looks at what is left of it. What was predicted before anything was measured
stands beside the figures.

    python research/claims.py --book novel.txt
    python research/claims.py --book novel.txt --part critical --base "snapkv(pool=max)" --budget 1408 --captures 1

The second line is CriticalKV's setting: nothing was evicted before, and a fifth is kept at once.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace

import numpy as np

import edgekv
from edgekv.evals import prose
from edgekv.evals.captures import Capture, Reader, output_projections
from edgekv.policies import Head, parse_policy
from edgekv.policies.attention import attention
from edgekv.testing import programs

PARTS = ("critical", "caote", "ahakv")
BASES = ("snapkv", "tova", "h2o")
WRAPPERS = {"critical": ["critical"], "caote": ["caote", "fastcaote", "caote(rounds=4)"]}
MEASURES = {"critical": ["norm1", "theta"], "caote": ["norm2"]}
SETS = ("scored", "window", "next")
N_ROWS = 32  # queries of the window, and of the next block
FIFTH = 0.2  # share of the cells
ROUNDING = 1e-9  # share of what all cells together could move

# Share of heads that change less for the window's queries: at the budget, and at a fifth of the cells.
HEADS_PREDICTED = {
    "snapkv+critical": {"budget": "75 %", "fifth": "80 %"},
    "tova+critical": {"budget": "65 %", "fifth": "70 %"},
    "h2o+critical": {"budget": "70 %", "fifth": "75 %"},
    **{f"tova+{wrapper}": {"budget": "65 %", "fifth": "65 %"} for wrapper in WRAPPERS["caote"]},
    **{f"{base}+{w}": {"budget": "80 %", "fifth": "80 %"} for base in ("snapkv", "h2o") for w in WRAPPERS["caote"]},
}
POSITIONS_PREDICTED = {
    "h2o": "0.30",
    "ahakv": "0.60",
    "ahakv(recent_accumulation=off)": "0.35",
    "snapkv": "0.65",
    "random": "0.50",
}

Key = tuple[str, str, str, str]  # spec, cells kept ("budget", "fifth"), measure, set of queries


class Outputs:
    """Attention outputs of the G query heads of a KV head, W rows each, and how evicting cells changes them."""

    def __init__(self, head: Head, w_o: np.ndarray) -> None:
        self.weights = attention(head)  # (G, W, n)
        self.values, self.w_o = head.values.astype(np.float64), w_o
        self.moves = self.weights * np.abs(self.values @ w_o).sum(axis=2)[:, None]  # A norm1(V W_O), (G, W, n)
        outputs = self.weights @ self.values
        self.norm1 = np.abs(outputs @ w_o).sum(axis=2).mean(axis=1)  # (G,)
        self.norm2 = np.linalg.norm(outputs, axis=2).mean(axis=1)

    def changes(self, stays: np.ndarray) -> tuple[dict[str, np.ndarray], int]:
        """stays (n,) bool -> mean change by measure, (G,) as shares of the mean output, and rows that pass theta."""
        left = self.weights * stays
        share = left.sum(axis=2, keepdims=True)
        change = (self.weights - left / share) @ self.values
        norm1, most = np.abs(change @ self.w_o).sum(axis=2), self.moves.sum(axis=2)
        theta = most - (2 - 1 / share[..., 0]) * self.moves[..., stays].sum(axis=2)
        found = {"norm1": norm1 / self.norm1[:, None], "theta": theta / self.norm1[:, None]}
        found["norm2"] = np.linalg.norm(change, axis=2) / self.norm2[:, None]
        return {name: rows.mean(axis=1) for name, rows in found.items()}, int((norm1 > theta + ROUNDING * most).sum())


class Changes:
    """Mean changes of all query heads, and the rows that went past theta."""

    def __init__(self) -> None:
        self.by_capture: dict[Key, list[np.ndarray]] = defaultdict(list)
        self.n_rows = self.n_beyond = 0

    def add(self, captures: list[Capture], specs: list[str], reader: Reader) -> None:
        """Let every spec choose from the same cells, and note what the outputs do."""
        by_head: dict[Key, list[np.ndarray]] = defaultdict(list)
        for capture in captures:
            w_o, n = reader.w_o[capture.full.layer][capture.full.head], len(capture.full.positions)
            full = reader.with_norms(capture.full)
            rows = {"scored": reader.base.n_rows(reader.block), "window": N_ROWS}
            outputs = {name: Outputs(full.newest_rows(n_rows), w_o) for name, n_rows in rows.items()}
            outputs["next"] = Outputs(capture.then, w_o)
            for cells, budget in (("budget", reader.budget), ("fifth", round(FIFTH * n))):
                for spec in specs:
                    stays = np.ones(len(capture.then.positions), dtype=bool)
                    stays[:n] = False
                    stays[parse_policy(spec).keep(replace(full, budget=budget), reader.protection)] = True
                    for name in SETS:
                        changes, n_beyond = outputs[name].changes(stays[: outputs[name].weights.shape[2]])
                        self.n_beyond += n_beyond
                        self.n_rows += outputs[name].weights[..., 0].size
                        for measure, change in changes.items():
                            by_head[spec, cells, measure, name].append(change)
        for key, changed in by_head.items():
            self.by_capture[key].append(np.concatenate(changed))

    def mean(self, *key: str) -> np.ndarray:
        """Over captures, one figure a query head."""
        return np.mean(self.by_capture[key], axis=0)

    def line(self, spec: str, base: str, cells: str, measure: str) -> dict[str, list[float]]:
        """By set of queries: the base's own change, or the share of heads that change less and the ratio."""
        found = {}
        for name in SETS:
            ours, plain = (self.mean(of, cells, measure, name) for of in (spec, base))
            if spec == base:
                found[name] = [geometric_mean(ours)]
            else:
                changed = (ours > 0) & (plain > 0)
                found[name] = [float((ours < plain).mean()), geometric_mean(ours[changed] / plain[changed])]
        return found


def geometric_mean(values: np.ndarray) -> float:
    """Of positive values; of nothing, NaN."""
    return float(np.exp(np.log(values[values > 0]).mean())) if (values > 0).any() else float("nan")


def opened(options, policy: str) -> edgekv.Runtime:
    """A runtime with what the command line says."""
    settings = {"model": options.model, "threads": options.threads, "block": options.block, "budget": options.budget}
    return edgekv.Runtime(memory="100%", repack=False, policy=policy, allow_beyond_trained=True, **settings)


def run_outputs(options, tokens: list[int], parts: list[str]) -> dict[str, object]:
    """`critical` and `caote`: one reading for each base."""
    changes, lines = Changes(), []
    measures = [(part, measure) for part in parts for measure in MEASURES[part]]
    for base in options.base or BASES:
        with opened(options, "h2o") as runtime:
            reader = Reader(runtime, parse_policy(base), output_projections(runtime))
            specs = [base, *(f"{base}+{wrapper}" for part in parts for wrapper in WRAPPERS[part])]
            for captures in reader.read(tokens, options.captures, N_ROWS):
                changes.add(captures, specs, reader)
        for part, measure in measures:
            for spec in [base, *(f"{base}+{wrapper}" for wrapper in WRAPPERS[part])]:
                for cells in ("budget", "fifth"):
                    predicted = "" if measure == "theta" else HEADS_PREDICTED.get(spec, {}).get(cells, "")
                    line = {"spec": spec, "cells": cells, "measure": measure, "predicted": predicted}
                    lines.append(line | changes.line(spec, base, cells, measure))
    for part, measure in measures:
        print(f"\n{part}: change of the output ({measure})")
        programs.print_table(
            ["", "cells", "predicted", *(title for name in SETS for title in (f"{name}: heads", "ratio"))],
            [
                [line["spec"], line["cells"], line["predicted"], *(text for name in SETS for text in shown(line[name]))]
                for line in lines
                if line["measure"] == measure
            ],
        )
    print(f"\nchanges past theta: {changes.n_beyond} of {changes.n_rows} (predicted: 0)")
    return {"outputs": lines, "past_theta": changes.n_beyond, "changes": changes.n_rows}


def shown(figures: list[float]) -> tuple[str, str]:
    """A base's change, or a wrapper's share of heads and ratio."""
    return ("", f"{figures[0]:.2%}") if len(figures) == 1 else (f"{figures[0]:.0%}", f"{figures[1]:.3f}")


def run_positions(options, tokens: list[int]) -> dict[str, object]:
    """`ahakv`: what is left of the text, sinks and newest tokens left out."""
    lines = []
    for spec, predicted in POSITIONS_PREDICTED.items():
        with opened(options, spec) as runtime:
            runtime.block_loop.read(tokens, lambda _: True)
            cache, begin = runtime.block_loop.cache, runtime.options.sinks
            end = len(tokens) - runtime.options.recent_cells(options.budget)
            kv_heads = np.ndindex(cache.shape.n_layer, cache.shape.n_head_kv_max)
            kept = [cache.positions(layer, g) for layer, g in kv_heads]
        shares = [(cells[(cells >= begin) & (cells < end)] - begin) / (end - begin) for cells in kept]
        together = np.concatenate(shares)
        quarters = np.histogram(together, bins=4, range=(0, 1))[0] / len(together)
        line = {"policy": spec, "predicted": predicted, "mean": together.mean(), "quarters": quarters.tolist()}
        lines.append(line | {"by_head": [float(share.mean()) for share in shares]})
    print(f"\nahakv: where in {len(tokens)} tokens the {options.budget} kept cells lie (0 = beginning, 1 = end)")
    programs.print_table(
        ["", "predicted", "mean", *(f"quarter {i}" for i in range(1, 5)), "heads later than h2o"],
        [[line["policy"], line["predicted"], *where(line), f"{later_heads(line, lines[0]):.0%}"] for line in lines],
    )
    return {"positions": lines}


def where(line: dict) -> list[str]:
    """The mean kept position, and how many of the kept cells lie in each quarter of the text."""
    return [f"{line['mean']:.3f}", *(f"{share:.0%}" for share in line["quarters"])]


def later_heads(line: dict, other: dict) -> float:
    """Share of KV heads whose kept cells lie later than another policy's."""
    return float(np.greater(line["by_head"], other["by_head"]).mean())


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="repeatable (all)")
    parser.add_argument("--base", action="append", help=f"base that the wrappers go over; repeatable {BASES}")
    parser.add_argument("--budget", type=int, default=512, help="cells")
    parser.add_argument("--block", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=1664, help="tokens read, cut to whole blocks")
    parser.add_argument("--captures", type=int, default=4, help="compactions at which outputs are compared")
    options = parser.parse_args()

    n_tokens = options.tokens - options.tokens % options.block
    if n_tokens < options.budget + options.block * (options.captures + 1):
        sys.exit(f"{n_tokens} tokens are too few for {options.captures} captures; give more with --tokens")
    with prose.vocabulary(options.model) as model:
        tokens = prose.first_tokens(model, prose.read_book(options.book), n_tokens)
    parts = [part for part in PARTS if part in (options.part or PARTS)]
    figures: dict[str, object] = {"tokens": n_tokens, "budget": options.budget, "block": options.block}
    if outputs := [part for part in parts if part in WRAPPERS]:
        figures |= run_outputs(options, tokens, outputs)
    if "ahakv" in parts:
        figures |= run_positions(options, tokens)
    programs.write_json(options.json, figures)


if __name__ == "__main__":
    main()
