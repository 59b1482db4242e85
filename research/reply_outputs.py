"""Measure how far eviction moves every head's output at the first, third and fifth token of a reply (CriticalKV, 4.6).

Claim (docs/results/papers.md): in how many query heads two stages lose less than one.

A text and its question are read whole. Then each policy evicts once, in all layers, and the first tokens of the reply
that the full cache gives are fed one by one. Of every token we compare each query head's output A V W_O with the one
beside the full cache: norm1 of the difference, the mean over texts. What earlier layers lose is passed on to later
ones, as in the paper and unlike `edgekv eval perturbation`. Nothing but the window is protected. "last layer" is the
loss of all its heads together, over that of one stage. With --results, a run that was stopped goes on where it was.

    python research/longbench.py multi_news.jsonl --question "Summarise all of this news." --out news.jsonl
    python research/reply_outputs.py --data news.jsonl --texts 20 --results reply-outputs.jsonl
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

import edgekv
from edgekv.binding.cache import Cache
from edgekv.evals import qa
from edgekv.evals.captures import Projection, output_projections, stored_head
from edgekv.evals.output_perturbation import capture_setting
from edgekv.evals.results import Results
from edgekv.evals.tokens import begin
from edgekv.policies import parse_policy
from edgekv.policies.attention import attention
from edgekv.prompt.text import PARAGRAPH
from edgekv.prompt.turns import Turns
from edgekv.store.fingerprint import fingerprint
from edgekv.testing import programs

TOKENS = (1, 3, 5)  # numbers of the reply's tokens
WINDOW = 32
SHARE = 0.2  # share of the cells
ONE_STAGE = {7: "snapkv(pool=max)", 1: "snapkv(kernel=1)"}  # by kernel
INSIDE = "critical, the window a part of stage 1"
OUTSIDE = "critical, the window on top of the cells"

# Of kernel 7 and 1, before anything was measured: heads that lose less at the first token, loss of a layer over that of
# one stage. A reply's queries are nearer to the window's than those of the next block, of which 53 % lost less.
PREDICTED = {
    "critical": ("65 %, 0.99", "65 %, 0.99"),
    "critical(alpha=0.25)": ("60 %, 1.00", "60 %, 1.00"),
    "critical(mass=0.9)": ("60 %, 0.99", "60 %, 0.99"),
    "critical(epsilon=0)": ("65 %, 0.99", "70 %, 0.98"),
    "critical(epsilon=0.1, relative=on)": ("65 %, 0.99", "65 %, 0.99"),
    INSIDE: ("65 %, 0.99", "65 %, 0.99"),
    OUTSIDE: ("65 %, 0.99", "65 %, 0.99"),
}

Outputs = list[np.ndarray]  # one array (n_head, n_embd) per layer


class Pair(NamedTuple):
    """A comparison of two stages with one stage, at the same number of cells."""

    kernel: int
    name: str
    policy: str
    n_cells: int

    @property
    def label(self) -> str:
        return f"kernel {self.kernel}, {self.name}"


def pairs(n_tokens: int) -> Iterator[Pair]:
    """Everything that is compared, for a text of so many tokens."""
    budget = round(SHARE * n_tokens)
    inside = max(0.0, (0.5 * budget - WINDOW) / (budget - WINDOW))  # alpha of what the window leaves
    wrappers = {INSIDE: f"critical(alpha={inside:.6f})", OUTSIDE: "critical"}
    for kernel, name in itertools.product(ONE_STAGE, PREDICTED):
        n_cells = budget + WINDOW if name == OUTSIDE else budget
        yield Pair(kernel, name, f"{ONE_STAGE[kernel]}+{wrappers.get(name, name)}", n_cells)


def newest_outputs(cache: Cache, w_o: list[Projection]) -> Outputs:
    """Return every query head's output for the token that was fed last."""
    found = []
    for layer, projections in enumerate(w_o):
        queries, rows, scale = cache.queries(layer)
        groups = queries.reshape(len(projections), -1, *queries.shape[1:])
        heads = []
        for g, (group, projection) in enumerate(zip(groups, projections, strict=True)):
            stored = stored_head(cache, layer, g)
            head = replace(stored, queries=group[:, -1:], query_positions=rows[-1:], scale=scale)
            mixed = attention(head)[:, 0] @ np.asarray(head.values, dtype=np.float64)  # (G, d_v)
            heads.append(np.einsum("gd,gde->ge", mixed, projection))
        found.append(np.concatenate(heads))
    return found


def fed(cache: Cache, reply: list[int], w_o: list[Projection]) -> list[Outputs]:
    """Feeds the reply, and gives the outputs at TOKENS."""
    found = []
    for number, token in enumerate(reply, 1):
        cache.feed([token])
        if number in TOKENS:
            found.append(newest_outputs(cache, w_o))
    return found


def full_reply(runtime: edgekv.Runtime, tokens: list[int]) -> list[int]:
    """The first tokens that the full cache says; afterwards the cache holds the prompt alone."""
    cache, block = runtime.block_loop.cache, runtime.options.block
    begin(runtime, len(tokens) + max(TOKENS))
    for p0 in range(0, len(tokens), block):
        cache.feed(tokens[p0 : p0 + block], want_logits=p0 + block >= len(tokens))
    prompt, reply = cache.snapshot(), []
    for _ in range(max(TOKENS)):
        reply.append(int(np.argmax(runtime.context.logits_array())))
        cache.feed(reply[-1:], want_logits=True)
    cache.restore(prompt)
    return reply


def measure(runtime: edgekv.Runtime, tokens: list[int]) -> dict[str, np.ndarray]:
    """By label of a pair: losses of one stage and of two; (2, 3, L, n_head + 1), query heads and last the layer."""
    cache, w_o = runtime.block_loop.cache, output_projections(runtime)
    reply = full_reply(runtime, tokens)
    prompt = cache.snapshot()
    whole = fed(cache, reply, w_o)

    @functools.cache
    def lost(policy: str, n_cells: int) -> np.ndarray:
        cache.restore(prompt)
        cache.compact(parse_policy(policy), n_cells, recent=WINDOW)
        moved = zip(whole, fed(cache, reply, w_o), strict=True)
        return np.array([[losses(y, y_hat) for y, y_hat in zip(*layers, strict=True)] for layers in moved])

    return {
        pair.label: np.stack([lost(policy, pair.n_cells) for policy in (ONE_STAGE[pair.kernel], pair.policy)])
        for pair in pairs(len(tokens))
    }


def measured(runtime: edgekv.Runtime, tokens: list[int], results: Results | None) -> dict[str, np.ndarray]:
    """Return the result of `measure`, to six digits, from the file of results if it is there."""
    config = {
        "edgekv": version("edgekv"),
        "model": fingerprint(Path(runtime.model.path)),
        "tokens": tokens,
        "policies": [pair.policy for pair in pairs(len(tokens))],
    }
    found = results.get(config) if results else None
    if found is None:
        lost = measure(runtime, tokens)
        found = {label: [float(f"{loss:.6g}") for loss in of_pair.flat] for label, of_pair in lost.items()}
        if results:
            results.add(config, found)
    shape = (2, len(TOKENS), runtime.block_loop.cache.shape.n_layer, -1)
    return {label: np.reshape(of_pair, shape) for label, of_pair in found.items()}


def losses(y: np.ndarray, y_hat: np.ndarray) -> list[float]:
    """norm1 of y - y_hat of every query head, and of their sum over that of y."""
    moved = y - y_hat
    together = np.abs(moved.sum(axis=0)).sum() / np.abs(y.sum(axis=0)).sum()
    return [*np.abs(moved).sum(axis=1), float(together)]


def prompts(runtime: edgekv.Runtime, items: list[qa.Item]) -> Iterator[list[int]]:
    """The tokens of each text and its question, in one turn."""
    for item in items:
        yield list(Turns(runtime.model, None).turn([item.text + PARAGRAPH + item.question.text]).tokens())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="path or known name of a GGUF model (default: the default model)")
    parser.add_argument("--data", type=Path, required=True, help="texts and questions, as `edgekv eval qa` reads them")
    parser.add_argument("--texts", type=int, default=20, help="so many of those that are short enough")
    parser.add_argument("--tokens", type=int, default=2000, help="of the longest text that is taken, with its question")
    parser.add_argument("--threads", type=int, help="default: one for every processor")
    parser.add_argument("--results", type=Path, help="keep each text's losses here, and take those that are there")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args()

    setting = replace(capture_setting(options.tokens, model=options.model), policy="h2o+critical", n_sink=0, recent=0)
    kept = Results(options.results) if options.results else nullcontext()
    with kept as results, setting.open(options.tokens, threads=options.threads) as runtime:
        fitting = (tokens for tokens in prompts(runtime, qa.read_items(options.data)) if len(tokens) <= options.tokens)
        taken = list(itertools.islice(fitting, options.texts))
        sums: dict[str, np.ndarray] = {}
        for tokens in taken:
            for label, lost in measured(runtime, tokens, results).items():
                sums[label] = sums.get(label, 0) + lost

    rows, figures = [], []
    for pair in pairs(options.tokens):
        one, two = sums[pair.label]
        less = (two < one)[..., :-1].mean(axis=(1, 2))  # share of all query heads, by token
        layers = two[..., -1].sum() / one[..., -1].sum()
        last = two[:, -1, -1].sum() / one[:, -1, -1].sum()
        predicted = PREDICTED[pair.name][list(ONE_STAGE).index(pair.kernel)]
        cells = [*(f"{share:.0%}" for share in less), f"{layers:.3f}", f"{last:.3f}"]
        rows.append([pair.label, *cells, predicted])
        figures.append({"pair": pair.label, "less": less.tolist(), "layers": float(layers), "last": float(last)})
    n_tokens = [len(tokens) for tokens in taken]
    print(f"{len(taken)} texts of {min(n_tokens)} to {max(n_tokens)} tokens, {SHARE:.0%} of the cells")
    programs.print_table(["", *(f"token {n}" for n in TOKENS), "layers", "last layer", "predicted"], rows)
    programs.write_json(options.json, {"tokens": n_tokens, "found": figures})


if __name__ == "__main__":
    main()
