"""A plain model of cells and an archive: the positions that each head holds, and the rows of every token."""

from __future__ import annotations

import copy

import numpy as np
from cache_arrays import read_rows
from reference_quant import rotate

from edgekv.policies import Head
from edgekv.policies.recall import least_recalled, recall_scores

SAME = 1e-4  # share of a score within which float32 may take another position
RECALL_LIMIT = 4  # EDGEKV_RECALL_LIMIT
REST = -1  # position of the cell that stands for all tokens that a head lacks


def keys_if_fed(cache, tokens):
    """(layer, head) -> the keys that tokens get if they are fed now, float64 (n, d). The cache is as before, but what a
    recall has filled stays if another follows."""
    snapshot = cache.snapshot()
    cache.feed(tokens)
    keys = {at: read_rows(cache, *at)[-len(tokens) :] for at in cache.heads}
    cache.restore(snapshot)
    return keys


def most_recalled(cache, held, n_cells, n_free):
    """(layer, head) -> the most cells that a recall of n_cells a head may give it. held: (layer, head) -> its cells"""
    room = {at: cache.shape.n_cells_max - n_held - (n_free - n_cells) for at, n_held in held.items()}
    return {at: min(RECALL_LIMIT * n_cells, n) for at, n in room.items()}


class ArchiveModel:
    """One text: what each of its heads holds, and what all of its tokens have left behind.

    stored  (layer, head) -> the key and the value of each token as they were stored, by position
    keys    (layer, head) -> the keys as float64 (d,), by position
    held    (layer, head) -> positions with a cell
    rests   (layer, head) -> key and value of each rest that it had when something was fed
    """

    def __init__(self, heads):
        self.stored = {at: [] for at in heads}
        self.keys = {at: [] for at in heads}
        self.held = {at: set() for at in heads}
        self.rests = {at: set() for at in heads}
        self.n_past = 0

    def copy(self):
        return copy.deepcopy(self)

    def feed(self, cache, n):
        """Note the newest n tokens of a cache, which all have their cells."""
        for at in self.stored:
            rows = zip(*(cache.rows(*at, values=values)[0][-n:] for values in (False, True)), strict=True)
            self.stored[at] += [(key.tobytes(), value.tobytes()) for key, value in rows]
            if cache.positions(*at)[0] == REST:
                self.rests[at].add(tuple(cache.rows(*at, values=values)[0][0].tobytes() for values in (False, True)))
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

    def scores(self, cache, own, begin, end, *, n_rows=0, **span):
        """(layer, head) -> what each archived token gets of the last probe's attention, (end - begin,).

        own: (layer, head) -> keys of the probe's tokens
        """
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
                found[layer, g] = recall_scores(head, own=own[layer, g], **span)
        return found

    def recall(self, cache, begin, end, n, n_free, scores=None):
        """Note the cells that a recall has filled: n a head, on average, of the tokens with the best scores that heads
        lacked, or all of these if they are fewer.

        n_free: free cells before it, with those of an earlier recall that it took the place of
        scores: of all archived tokens; None = they are not known
        """
        lacked = {at: sorted({*range(begin, end)} - held) for at, held in self.held.items()}
        most = most_recalled(cache, {at: len(held) for at, held in self.held.items()}, n, n_free)
        now = {at: set(cache.positions(*at).tolist()) for at in self.held}
        recalled = {at: sorted(now[at] - held) for at, held in self.held.items()}
        assert all(held <= now[at] for at, held in self.held.items())
        n_possible = sum(min(most[at], len(lacked[at])) for at in lacked)
        assert sum(map(len, recalled.values())) == min(n * len(now), n_possible)
        assert all(len(recalled[at]) <= most[at] for at in now)
        if scores is not None:
            least = least_recalled(
                {at: of_head[np.array(lacked[at], int) - begin] for at, of_head in scores.items()}, n, most
            )
            assert all(scores[at][p - begin] >= least * (1 - SAME) for at in now for p in recalled[at])
        self.held = now

    def check(self, cache):
        """Every head holds what it should, each row to the bit as it was stored."""
        assert cache.n_past == self.n_past
        for at, held in self.held.items():
            positions = cache.positions(*at).tolist()
            assert positions == sorted(held)
            rows = zip(*(cache.rows(*at, values=values)[0] for values in (False, True)), strict=True)
            for position, (key, value) in zip(positions, rows, strict=True):
                of_position = self.rests[at] if position == REST else {self.stored[at][position]}
                assert (key.tobytes(), value.tobytes()) in of_position


def check_needed(needed, hot, recalled, scores, begin, most):
    """Each head needs the best of the tokens that it holds, as far as they score higher than one that was recalled.

    needed, hot, recalled: (layer, head) -> positions
    scores: of all archived tokens, from `begin` on; None = they are not known
    most: of a head
    """
    for at, of_head in needed.items():
        assert len(of_head) <= most
        assert of_head.tolist() == sorted(hot[at] & set(of_head.tolist()))
    if scores is None:
        return
    all_recalled = [scores[at][p - begin] for at, positions in recalled.items() for p in positions]
    least = min(all_recalled, default=np.inf)
    for at, of_head in needed.items():
        of_position = {p: scores[at][p - begin] for p in hot[at] if 0 <= p - begin < len(scores[at])}
        assert all(of_position[p] >= least * (1 - SAME) for p in of_head.tolist())
        worst = min((of_position[p] for p in of_head.tolist()), default=np.inf) if len(of_head) == most else least
        left = [score for p, score in of_position.items() if p not in of_head]
        assert most == 0 or all(score <= max(worst, least) * (1 + SAME) for score in left)
