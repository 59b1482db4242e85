"""Check what the papers assume and prove on the keys, values and queries of a running model.

Claim (docs/results/papers.md): which assumptions hold on this model, and which bounds say something there.

A text is read with nothing evicted. Then every query head is looked at: the keys of all cells, and the queries of the
newest 32 tokens.

    keydiff    Figure 2: keys that are like the others get little attention; Spearman's correlation of a key's mean
               cosine to the others with its mean weight, among the first 64 tokens, and for all cells of the text.
               Figures 13 to 16: keys and queries lie along their means, the two means point apart, norms are alike,
               and the key that KeyDiff ranks highest points along the mean query. Lemma 3.1: -log(1 - w) / (2 M) - 1
               <= cos(k, q) for a key of weight w and a unit query, M the largest square norm of a key (the query's norm
               and the scale are counted in the keys). Theorem 3.2: cos(mean key, k) <= 1 + a b - a^2/2 - b^2/2 where
               b = cos(k, q) > 0 and a = cos(mean key, q) < 0.
    critical   Assumption 3.4 (Figure 8): the first stage's cells, half the budget, hold more than half of the window's
               attention; in KV heads, for budgets of some shares of the cells.
    caote      Table 8: Spearman's correlation between the scores of CAOTE and of FastCAOTE, over h2o, mean of a layer.
    ada        Figure 1: how many of its cells a KV head needs for 95 % of the window's attention.

    python research/assumptions.py --book novel.txt
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import numpy as np

from edgekv.evals import prose
from edgekv.evals.full_read import Heads
from edgekv.evals.output_perturbation import capture_setting, read_full
from edgekv.policies import Head, parse_policy
from edgekv.policies.attention import attention, window_attention
from edgekv.testing import programs

N_ROWS = 32
ROUNDING = 1e-6
N_FIRST = 64  # tokens of figure 2
SHARES = (0.2, 0.1, 0.05, 0.025)  # shares of the cells: the budgets of figure 8
MASS = 0.95

PREDICTED = {
    "Figure 2: correlation among the first 64 tokens, median head": "-0.30",
    "Figure 2: heads where it is negative": "75 %",
    "Figure 2: correlation over all cells, median head": "-0.30",
    "Figure 2: heads where that is negative": "75 %",
    "cos(key, mean key), median": "0.60",
    "cos(query, mean query), median": "0.60",
    "heads whose mean key and mean query point apart": "80 %",
    "norms of keys, deviation over mean: median head": "12 %",
    "norms of queries, deviation over mean: median head": "20 %",
    "heads whose highest-ranked key points along the mean query": "70 %",
    "Lemma 3.1: pairs that keep it": "100 %",
    "Lemma 3.1: pairs for which the bound is above -0.9": "1 %",
    "Theorem 3.2: pairs that meet its premises": "30 %",
    "Theorem 3.2: of these, pairs that keep it": "100 %",
    "Assumption 3.4: heads that keep it, 20 % of the cells": "95 %",
    "Assumption 3.4: heads that keep it, 10 % of the cells": "85 %",
    "Assumption 3.4: heads that keep it, 5 % of the cells": "75 %",
    "Assumption 3.4: heads that keep it, 2.5 % of the cells": "60 %",
    "CAOTE and FastCAOTE, Spearman: mean of layers": "0.90",
    "CAOTE and FastCAOTE, Spearman: lowest layer": "0.75",
    "cells for 95 % of the attention: median head": "20 %",
    "cells for 95 % of the attention: least dispersed head": "1 %",
    "cells for 95 % of the attention: most dispersed head": "80 %",
}


def cosines(rows: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """rows (n, d), vector (d,) -> (n,)."""
    return rows @ vector / (np.linalg.norm(rows, axis=1) * np.linalg.norm(vector))


def spread_of_norms(rows: np.ndarray) -> float:
    """The deviation of the norms of rows (n, d), over their mean."""
    norms = np.linalg.norm(rows, axis=1)
    return float(norms.std() / norms.mean())


@dataclass
class Geometry:
    """KeyDiff's claims about keys and queries, measured over all query heads."""

    key_cosines: list[float] = field(default_factory=list)
    query_cosines: list[float] = field(default_factory=list)
    key_norms: list[float] = field(default_factory=list)
    query_norms: list[float] = field(default_factory=list)
    apart: list[bool] = field(default_factory=list)
    aligned: list[bool] = field(default_factory=list)
    n_pairs: int = 0
    n_bounded: int = 0  # pairs that keep Lemma 3.1
    n_telling: int = 0  # pairs whose bound is above -0.9
    n_premises: int = 0  # pairs that Theorem 3.2 is about
    n_kept: int = 0  # pairs among them that keep it

    def add(self, head: Head) -> None:
        """All query heads of a KV head."""
        keys = head.keys.astype(np.float64)
        mean_key = keys.mean(axis=0)
        self.key_cosines.append(float(np.median(cosines(keys, mean_key))))
        self.key_norms.append(spread_of_norms(keys))
        best = int(np.argmax(parse_policy("keydiff").score(head)))
        for queries, weights in zip(head.rows()[0].astype(np.float64), attention(head), strict=True):
            mean_query = queries.mean(axis=0)
            self.query_cosines.append(float(np.median(cosines(queries, mean_query))))
            self.query_norms.append(spread_of_norms(queries))
            self.apart.append(float(mean_key @ mean_query) < 0)
            self.aligned.append(float(keys[best] @ mean_query) > 0)
            for query, weight in zip(queries, weights, strict=True):
                self._add_pairs(keys, mean_key, query, weight, float(head.attention_scale))

    def _add_pairs(
        self, keys: np.ndarray, mean_key: np.ndarray, query: np.ndarray, weight: np.ndarray, scale: float
    ) -> None:
        b = cosines(keys, query)
        most = (scale * np.linalg.norm(query) * np.linalg.norm(keys, axis=1).max()) ** 2
        bound = -np.log1p(-np.minimum(weight, 1 - 1e-12)) / (2 * most) - 1
        self.n_pairs += len(b)
        self.n_bounded += int((bound <= b + ROUNDING).sum())
        self.n_telling += int((bound > -0.9).sum())
        (a,) = cosines(mean_key[None], query)
        if a < 0:
            meets = b > 0
            most_similar = 1 + a * b - a**2 / 2 - b**2 / 2
            self.n_premises += int(meets.sum())
            self.n_kept += int((cosines(keys, mean_key) <= most_similar + ROUNDING)[meets].sum())

    def figures(self) -> dict[str, str]:
        return {
            "cos(key, mean key), median": f"{np.median(self.key_cosines):.2f}",
            "cos(query, mean query), median": f"{np.median(self.query_cosines):.2f}",
            "heads whose mean key and mean query point apart": f"{np.mean(self.apart):.0%}",
            "norms of keys, deviation over mean: median head": f"{np.median(self.key_norms):.0%}",
            "norms of queries, deviation over mean: median head": f"{np.median(self.query_norms):.0%}",
            "heads whose highest-ranked key points along the mean query": f"{np.mean(self.aligned):.0%}",
            "Lemma 3.1: pairs that keep it": f"{self.n_bounded / self.n_pairs:.2%}",
            "Lemma 3.1: pairs for which the bound is above -0.9": f"{self.n_telling / self.n_pairs:.2%}",
            "Theorem 3.2: pairs that meet its premises": f"{self.n_premises / self.n_pairs:.0%}",
            "Theorem 3.2: of these, pairs that keep it": f"{self.n_kept / max(1, self.n_premises):.2%}",
        }


def likeness(firsts: list[Head], heads: list[Head]) -> dict[str, str]:
    """Figure 2, of heads that hold the first block with its queries, and of heads with all cells."""
    early = [_likeness(_first_tokens(head)) for head in firsts]
    late = [_likeness(head) for head in heads]
    return {
        "Figure 2: correlation among the first 64 tokens, median head": f"{np.median(early):.2f}",
        "Figure 2: heads where it is negative": f"{np.mean(np.less(early, 0)):.0%}",
        "Figure 2: correlation over all cells, median head": f"{np.median(late):.2f}",
        "Figure 2: heads where that is negative": f"{np.mean(np.less(late, 0)):.0%}",
    }


def _first_tokens(head: Head) -> Head:
    queries, positions = head.rows()
    return replace(
        head,
        keys=head.keys[:N_FIRST],
        values=np.asarray(head.values)[:N_FIRST],
        positions=head.positions[:N_FIRST],
        queries=queries[:, :N_FIRST],
        query_positions=positions[:N_FIRST],
        accumulated=None,
    )


def _likeness(head: Head) -> float:
    """Spearman's correlation of a key's mean cosine to the others with its mean weight for the queries that see it."""
    units = head.keys / np.linalg.norm(head.keys.astype(np.float64), axis=1, keepdims=True)
    seen = (head.positions <= head.rows()[1][:, None]).sum(axis=0)
    return spearman(units @ units.sum(axis=0), attention(head).mean(axis=0).sum(axis=0) / seen)


def first_stage(heads: list[Head]) -> dict[str, str]:
    """Assumption 3.4: how many KV heads have more than half of their attention on half the budget's cells."""
    sums = [np.cumsum(np.sort(window_attention(head))[::-1]) for head in heads]
    figures = {}
    for share in SHARES:
        n_first = round(share * len(sums[0])) // 2
        holds = np.mean([total[n_first - 1] > 0.5 for total in sums])
        figures[f"Assumption 3.4: heads that keep it, {100 * share:g} % of the cells"] = f"{holds:.0%}"
    return figures


def correlations(layers: Heads) -> dict[str, str]:
    """Table 8."""
    caote, fast = parse_policy("h2o+caote"), parse_policy("h2o+fastcaote")
    by_layer = [np.mean([spearman(caote.score(head), fast.score(head)) for head in heads]) for heads in layers]
    return {
        "CAOTE and FastCAOTE, Spearman: mean of layers": f"{np.mean(by_layer):.2f}",
        "CAOTE and FastCAOTE, Spearman: lowest layer": f"{min(by_layer):.2f}",
    }


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation of ranks; scores are real numbers, which are hardly ever equal."""
    return float(np.corrcoef(np.argsort(np.argsort(a)), np.argsort(np.argsort(b)))[0, 1])


def concentration(heads: list[Head]) -> dict[str, str]:
    """Figure 1 of Ada-KV."""
    shares = []
    for head in heads:
        weights = np.sort(window_attention(head))[::-1]
        shares.append((np.searchsorted(np.cumsum(weights), MASS * weights.sum()) + 1) / len(weights))
    named = {"median": np.median(shares), "least dispersed": min(shares), "most dispersed": max(shares)}
    return {f"cells for 95 % of the attention: {name} head": f"{share:.1%}" for name, share in named.items()}


def main() -> None:
    parser = programs.arguments(__doc__)
    parser.add_argument("--tokens", type=int, default=1152, help="tokens read, cut to whole blocks of 128")
    parser.add_argument("--seed", type=int, default=0, help="which passage of the book")
    options = parser.parse_args()

    setting = capture_setting(options.tokens, model=options.model)
    with setting.open(options.tokens, threads=options.threads) as runtime:
        passage = prose.passage(
            runtime.model, prose.read_book(options.book), options.tokens, random.Random(options.seed)
        )
        tokens = prose.first_tokens(runtime.model, passage, options.tokens)
        text, beginning = read_full(runtime, tokens), read_full(runtime, tokens[: 2 * runtime.options.block])
    layers = text.choices(parse_policy("h2o"))
    heads = [head.newest_rows(N_ROWS) for layer in layers for head in layer]

    firsts = [head for layer in beginning.choices(parse_policy("h2o")) for head in layer]
    geometry = Geometry()
    for head in heads:
        geometry.add(head)
    of_keys = likeness(firsts, heads) | geometry.figures()
    found = of_keys | first_stage(heads) | correlations(layers) | concentration(heads)
    print(f"{text.n_cells} cells, {len(heads)} KV heads, the newest {N_ROWS} queries of each query head")
    programs.print_table(["", "predicted", "found"], [[name, PREDICTED[name], found[name]] for name in found])
    programs.write_json(options.json, {"cells": text.n_cells, "found": found, "predicted": PREDICTED})


if __name__ == "__main__":
    main()
