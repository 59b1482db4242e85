"""Fit a linear gate to `replay`'s scores from a token's own rows (after KVzap and Fast KVzip).

`replay` reads a text twice. A gate would read it once: of every KV head, log score(c) = w . x(c) + b, where x(c) is
made of the rows that the head's cell holds anyway. Passages of some books are read under `replay` with nothing evicted,
and w and b are fitted to its scores by ridge regression, head by head. Passages of a book that was not fitted on then
say, for each input x:

    R2        the share of the variance of log score within a head that the gate tells, the mean over heads
    rank      Spearman's correlation of both scores over the tokens of a text within a head, the mean over heads
    kept      of the quarter of all cells of the model with the largest scores, the share that the gate would keep too

`keydiff` and a gate without inputs, so that only heads differ, stand beside them.

With --needles, one number is planted in 1,000 tokens of the held-out book, as in docs/results/replay.toml. The gate's
scores, by --input, then take the place of what cells carry under `replay+ada(scope=model, safeguard=0)`: 256 cells,
and nothing is read twice.

    python bench/gate.py --train PRIDE_AND_PREJUDICE --train SHERLOCK_HOLMES --book WAR_AND_PEACE --needles 50
"""

from __future__ import annotations

import ctypes as c
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import common
import numpy as np
import numpy.typing as npt

import edgekv
from edgekv.binding import library
from edgekv.binding.cache import Cache, CacheSnapshot
from edgekv.binding.snapshot_meta import CachedSource, SnapshotMeta
from edgekv.evals import grid, prose
from edgekv.evals.captures import stored_rows
from edgekv.evals.setting import OpenRuntime, Setting

POLICY = "replay+ada(scope=model, safeguard=0)"
BLOCK, BUDGET = 128, 256
RIDGE = 1e-3  # share of the variance of an input
FLOOR = 1e-7  # smallest score whose logarithm is taken
SPARE = 16  # tokens, since a passage that is cut out may be cut into fewer
FIRST = 8  # tokens that are not looked at: every head attends to those, and they are never evicted
LIFT = 10.0  # added to a gate's scores, so that none is below the attention of a probe of one token

INPUTS: dict[str, tuple[str, ...]] = {  # beside a bias
    "heads alone": (),
    "values": ("values",),
    "sizes of key pairs, values": ("sizes", "values"),
    "keys before RoPE, values": ("keys", "values"),
    "all inputs": ("keys", "sizes", "values"),
}

Array = npt.NDArray[np.floating]
Gate = list[tuple[Array, float]]  # w and b of every KV head, layer by layer


@dataclass(frozen=True)
class Turn:
    """RoPE of a layer's keys: from element `first` on, pairs of elements turn by `angles` (n_pairs,) a position."""

    first: int
    angles: npt.NDArray[np.float64]
    neighbours: bool

    @classmethod
    def of(cls, runtime: edgekv.Runtime, layer: int) -> Turn:
        """Return the turn of a layer in a runtime's context. Raises UnsupportedModelError if keys cannot be turned."""
        angles, first, n_rot, neighbours = np.zeros(512), c.c_uint32(), c.c_uint32(1024), c.c_int32()
        found = (angles.ctypes.data, c.byref(first), c.byref(n_rot), c.byref(neighbours))
        library.call("edgekv_context_rope", runtime.context.handle, layer, *found)
        return cls(first.value, angles[: n_rot.value // 2], bool(neighbours.value))

    def pairs(self, keys: Array) -> tuple[Array, Array]:
        """Views of the first and the second elements of all pairs, (n, n_pairs) each."""
        turning = keys[:, self.first : self.first + 2 * len(self.angles)]
        if self.neighbours:
            return turning[:, 0::2], turning[:, 1::2]
        return turning[:, : len(self.angles)], turning[:, len(self.angles) :]

    def back(self, keys: Array, positions: npt.NDArray[np.int32]) -> Array:
        """Keys (n, d) as they were before RoPE turned them to positions (n,)."""
        before = keys.copy()
        angles = positions[:, None] * self.angles
        (x, y), (x0, y0) = self.pairs(keys), self.pairs(before)
        x0[:], y0[:] = x * np.cos(angles) + y * np.sin(angles), y * np.cos(angles) - x * np.sin(angles)
        return before

    def inputs(self, keys: Array, values: Array, positions: npt.NDArray[np.int32]) -> dict[str, Array]:
        """Return the arrays that a gate may read of n cells, (n, elements) each."""
        x, y = self.pairs(keys)
        return {"keys": self.back(keys, positions), "sizes": np.hypot(x, y), "values": values}


def joined(parts: dict[str, Array], names: Sequence[str]) -> Array:
    """Some inputs side by side, (n, elements)."""
    n = len(parts["values"])
    return np.concatenate([np.empty((n, 0)), *(parts[name] for name in names)], axis=1)


@dataclass(frozen=True)
class Head:
    """A KV head that holds a whole text: what a gate may read of its tokens, and `replay`'s scores, as logarithms."""

    inputs: dict[str, Array]
    keydiff: Array
    log_scores: Array


def carried_by_head(meta: SnapshotMeta, cache: Cache) -> Iterator[tuple[int, int, npt.NDArray[np.int64]]]:
    """Layer, KV head, and where in a snapshot's arrays its cells lie, ascending by position."""
    positions, begin = meta.carried["position"].view(np.int32), 0
    for layer in range(cache.shape.n_layer):
        for head in range(cache.layer_heads(layer)[0]):
            end = begin + cache.head_cells(layer, head)[0]
            yield layer, head, begin + np.argsort(positions[begin:end])
            begin = end


def read(runtime: edgekv.Runtime, tokens: Sequence[int]) -> list[Head]:
    """Every head after the tokens were read with nothing evicted."""
    cache, block_loop = runtime.block_loop.cache, runtime.block_loop
    block_loop.clear()
    block_loop.read(tokens, lambda _: True, want_logits=False)
    meta = SnapshotMeta.read(CachedSource(cache))
    scores = meta.carried["accumulated"].view(np.float32)
    found = []
    for layer, head, cells in carried_by_head(meta, cache):
        keys, values = (stored_rows(cache, layer, head, values=values) for values in (False, True))
        inputs = Turn.of(runtime, layer).inputs(keys, values, cache.positions(layer, head))
        unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
        found.append(
            Head(
                {name: part[FIRST:] for name, part in inputs.items()},
                -(unit @ unit.mean(axis=0))[FIRST:],
                np.log(np.maximum(scores[cells], FLOOR))[FIRST:],
            )
        )
    return found


def texts(options: Any, books: Sequence[Path], n: int) -> Iterator[list[Head]]:
    """n passages from random places of the books in turn, each read."""
    options_of = {"policy": POLICY, "budget": options.tokens + BLOCK, "block": BLOCK, "kv_type": "f16"}
    sources = [prose.read_book(book) for book in books]
    with edgekv.Runtime(
        options.model,
        memory="100%",
        repack=False,
        focus=False,
        reposition="never",
        threads=options.threads,
        **options_of,
    ) as runtime:
        for i, source in zip(range(n), itertools.cycle(sources)):
            text = prose.passage(runtime.model, source, options.tokens + SPARE, random.Random(options.seed + i))
            yield read(runtime, prose.first_tokens(runtime.model, text, options.tokens))
            print(f"text {i + 1} of {n}", flush=True)


def fitted(samples: Sequence[list[Head]], names: Sequence[str]) -> Gate:
    """A gate of these inputs, by ridge regression over all texts."""
    gate = []
    for heads in zip(*samples, strict=True):
        x = np.concatenate([joined(head.inputs, names) for head in heads]).astype(np.float64)
        y = np.concatenate([head.log_scores for head in heads]).astype(np.float64)
        mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-6
        z = (x - mean) / deviation
        w = np.linalg.solve(z.T @ z + RIDGE * len(z) * np.eye(z.shape[1]), z.T @ (y - y.mean())) / deviation
        gate.append((w, float(y.mean() - mean @ w)))
    return gate


def ranks(scores: Array) -> Array:
    return np.argsort(np.argsort(scores, kind="stable")).astype(np.float64)


def judged(samples: Sequence[list[Head]], told: Sequence[list[Array]]) -> tuple[float, float, float]:
    """R2, rank correlation, and the share of the best quarter; `told` has each head's scores of each text."""
    lost, rank, kept = [], [], []
    for heads, of_text in zip(samples, told, strict=True):
        for head, scores in zip(heads, of_text, strict=True):
            spread = np.square(head.log_scores - head.log_scores.mean()).sum()
            lost.append(np.square(head.log_scores - scores).sum() / spread)
            flat = np.ptp(scores) == 0
            rank.append(0.0 if flat else np.corrcoef(ranks(head.log_scores), ranks(scores))[0, 1])
        best, chosen = (
            ranks(np.concatenate(all_heads)) >= 0.75 * sum(map(len, all_heads))
            for all_heads in ([head.log_scores for head in heads], of_text)
        )
        kept.append((best & chosen).sum() / best.sum())
    return 1 - float(np.mean(lost)), float(np.mean(rank)), float(np.mean(kept))


class Gated:
    """A cache whose cells carry a gate's scores, written before each compaction, in place of a replay's."""

    def __init__(self, runtime: edgekv.Runtime, gate: Gate, names: Sequence[str]) -> None:
        self._cache, self._gate, self._names = runtime.block_loop.cache, gate, names
        self._turns = [Turn.of(runtime, layer) for layer in range(self._cache.shape.n_layer)]
        self._probe: Sequence[int] = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cache, name)

    def probe(self, tokens: Sequence[int], part_ends: Sequence[int] = ()) -> None:
        """One token is fed in place of a replay: a compaction wants queries."""
        self._probe = tokens[:1]

    def compact(self, *arguments: Any, **options: Any) -> Any:
        """As `Cache.compact`."""
        self._write_scores()
        self._cache.probe(self._probe)
        return self._cache.compact(*arguments, **options)

    def _write_scores(self) -> None:
        source = CachedSource(self._cache)
        data = np.empty(source.n_bytes, np.uint8)
        source.read_into(0, data)
        meta = SnapshotMeta.read(source)
        scores = meta.carried["accumulated"].view(np.float32)
        of_heads = carried_by_head(meta, self._cache)
        for (layer, head, cells), (w, b) in zip(of_heads, self._gate, strict=True):
            keys, values = (stored_rows(self._cache, layer, head, values=values) for values in (False, True))
            inputs = self._turns[layer].inputs(keys, values, self._cache.rope_positions(layer, head))
            scores[cells] = np.exp(joined(inputs, self._names) @ w + b + LIFT)
        written = meta.to_bytes()
        data[: len(written)] = written
        self._cache.restore(CacheSnapshot(data))


class GatedRuntimes(OpenRuntime):
    """Runtimes whose caches are gated."""

    def __init__(self, gate: Gate, names: Sequence[str], *, threads: int | None = None) -> None:
        super().__init__(threads=threads)
        self._gate, self._names = gate, names

    def get(self, setting: Setting, n_tokens: int) -> edgekv.Runtime:
        runtime = super().get(setting, n_tokens)
        if not isinstance(runtime.block_loop.cache, Gated):
            runtime.block_loop.cache = Gated(runtime, self._gate, self._names)
        return runtime


def look_for_needles(options: Any, gate: Gate) -> list[dict[str, Any]]:
    """Plant a number in each of `options.needles` texts, and ask for it."""
    cases = grid.Grid(
        task="needle",
        model=options.model,
        policies=(POLICY,),
        budgets=(BUDGET,),
        samples=options.needles,
        seed=options.first_needle,
        book=options.book,
    ).cases()
    found = []
    with GatedRuntimes(gate, INPUTS[options.input], threads=options.threads) as runtimes:
        for case in cases:
            found.append({"seed": case.seed} | grid.measure(case, runtimes))
            print(f"needle of seed {case.seed}: {found[-1]}", flush=True)
    return found


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--train", type=Path, action="append", required=True, help="a book to fit on, once or more")
    parser.add_argument("--texts", type=int, default=6, help="passages to fit on")
    parser.add_argument("--held-out", type=int, default=4, help="passages of --book to judge by")
    parser.add_argument("--tokens", type=int, default=1024, help="of a passage")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--needles", type=int, default=0, help="texts of --book to plant a number in")
    parser.add_argument("--input", choices=INPUTS, default="all inputs", help="of the gate that needles are kept by")
    parser.add_argument("--first-needle", type=int, default=12, help="seed of the first of them")
    options = parser.parse_args()

    train = list(texts(options, options.train, options.texts))
    test = list(texts(options, [options.book], options.held_out))
    rows: list[tuple[Any, ...]] = [
        ("keydiff", None, *judged(test, [[head.keydiff for head in heads] for heads in test])[1:])
    ]
    for label, names in INPUTS.items():
        gate = fitted(train, names)
        told = [
            [joined(head.inputs, names) @ w + b for head, (w, b) in zip(heads, gate, strict=True)] for heads in test
        ]
        rows.append((label, *judged(test, told)))
    header = ["scored by", "R2", "rank", "kept"]
    lines = [dict(zip(header, row, strict=True)) for row in rows]
    common.print_table(
        header, [[label, *("" if value is None else f"{value:.2f}" for value in values)] for label, *values in rows]
    )

    needles = look_for_needles(options, fitted(train, INPUTS[options.input])) if options.needles else []
    if needles:
        print(f"needles found: {sum(case.get('score', 0) == 1 for case in needles)} of {len(needles)}")
    common.write_json(
        options.json, {"texts": options.texts, "input": options.input, "lines": lines, "needles": needles}
    )


if __name__ == "__main__":
    main()
