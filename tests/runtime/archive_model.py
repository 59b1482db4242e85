"""A plain model of cells and an archive: the positions that each head holds, and the rows of every token."""

from __future__ import annotations

import copy

import numpy as np
from cache_arrays import read_rows
from reference_quant import rotate

from edgekv.policies import Head
from edgekv.policies.recall import recall_scores

SAME = 1e-4  # share of a score within which float32 may take another position


class ArchiveModel:
    """One text: what each of its heads holds, and what all of its tokens have left behind.

    stored  (layer, head) -> the key and the value of each token as they were stored, by position
    keys    (layer, head) -> the keys as float64 (d,), by position
    held    (layer, head) -> positions with a cell
    """

    def __init__(self, heads):
        self.stored = {at: [] for at in heads}
        self.keys = {at: [] for at in heads}
        self.held = {at: set() for at in heads}
        self.n_past = 0

    def copy(self):
        return copy.deepcopy(self)

    def feed(self, cache, n):
        """Note the newest n tokens of a cache, which all have their cells."""
        for at in self.stored:
            rows = zip(*(cache.rows(*at, values=values)[0][-n:] for values in (False, True)), strict=True)
            self.stored[at] += [(key.tobytes(), value.tobytes()) for key, value in rows]
            self.keys[at] += list(read_rows(cache, *at)[-n:])
            self.held[at] |= {*range(self.n_past, self.n_past + n)}
        self.n_past += n

    def cut(self, n_past):
        """Forget the tokens from n_past on."""
        for at in self.stored:
            del self.stored[at][n_past:], self.keys[at][n_past:]
            self.held[at] = {it for it in self.held[at] if it < n_past}
        self.n_past = n_past

    def evict(self, cache, budget, *, shared):
        """Note what an eviction has left: some of what was held, and `budget` of each head, or of a layer's on average.

        shared: the heads of a layer share cells
        """
        kept = {at: set(cache.positions(*at).tolist()) for at in self.held}
        assert all(kept[at] <= self.held[at] for at in kept)
        for layer in {layer for layer, _ in kept}:
            heads = [at for at in kept if at[0] == layer]
            groups = [heads] if shared else [[at] for at in heads]
            for group in groups:
                n_held, n_kept = (sum(len(of[at]) for at in group) for of in (self.held, kept))
                assert n_kept == min(n_held, budget * len(group))
        self.held = kept

    def lacking(self, begin, end):
        """(layer, head) -> number of tokens that it lacks, of those archived."""
        return {at: end - begin - len(held & {*range(begin, end)}) for at, held in self.held.items()}

    def scores(self, cache, begin, end, before, after, n_rows=0):
        """(layer, head) -> what each archived token gets of the last probe's attention, (end - begin,)."""
        found = {}
        for layer in {layer for layer, _ in self.keys}:
            queries, positions, scale = cache.queries(layer, probed=True)
            rotation = cache.row_format(layer).rotation
            groups = queries.reshape(cache.layer_heads(layer)[0], -1, *queries.shape[1:])
            for g, group in enumerate(groups[:, :, -n_rows:].astype(np.float64)):
                head = Head(
                    keys=np.array(self.keys[layer, g][begin:end]),
                    values=np.empty((end - begin, 0)),
                    positions=np.arange(begin, end),
                    queries=rotate(group, rotation) if rotation else group,
                    query_positions=positions[-n_rows:],
                    scale=scale,
                )
                found[layer, g] = recall_scores(head, before=before, after=after)
        return found

    def recall(self, cache, scores, begin, n):
        """Note the cells that a recall has filled: in each head n of the tokens with the best scores that it lacked, or
        all that it lacked if these are fewer.
        """
        for at, of_head in scores.items():
            now = set(cache.positions(*at).tolist())
            recalled = np.array(sorted(now - self.held[at]), dtype=int)
            of_head = of_head.copy()
            of_head[[it - begin for it in self.held[at] if begin <= it < begin + len(of_head)]] = -np.inf
            n_of_head = min(n, np.isfinite(of_head).sum())
            assert self.held[at] <= now
            assert len(recalled) == n_of_head
            if n_of_head > 0:
                assert of_head[recalled - begin].min() >= np.sort(of_head)[-n_of_head] * (1 - SAME)
            self.held[at] = now

    def check(self, cache):
        """Every head holds what it should, each row to the bit as it was stored."""
        assert cache.n_past == self.n_past
        for at, held in self.held.items():
            positions = cache.positions(*at).tolist()
            assert positions == sorted(held)
            rows = zip(*(cache.rows(*at, values=values)[0] for values in (False, True)), strict=True)
            for position, (key, value) in zip(positions, rows, strict=True):
                assert (key.tobytes(), value.tobytes()) == self.stored[at][position]
