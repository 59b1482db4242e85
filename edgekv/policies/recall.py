"""The scores by which archived tokens are recalled, and the choice among them, as reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np

from .attention import attention
from .head import Head
from .types import Keys, Scores

N_HALVINGS = 6  # beyond so many, a hit after a token counts nothing, so that a scan keeps few weights
RIDGE = 0.003  # a tenth and ten times as much answer no more and no fewer questions

Place = TypeVar("Place")


def recall_scores(head: Head, before: int, after: int, *, own: Keys, n_sink: int = 0) -> Scores:
    """Return what the neighbourhood of each archived token gets of a probe's attention, (n,) float64.

        a[j]     = max over query heads h of the group and rows w of A[h, w, j]; 0 for positions before n_sink
        score[c] = sum over j <= c of a[j] 2^(-(c - j) / before)
                   + sum over c < j <= c + 6 after of a[j] 2^(-(j - c) / after)

    head: all archived tokens of a KV head, ascending by position without gaps, and the rows of the probe. If keys were
        turned, these are the keys as they are at RoPE position 0
    own: keys of the probe's tokens, (n_own, d), the last one that of the last row. A is the softmax over all of these,
        and a row sees those up to its own
    """
    _, row_positions = head.rows()
    first = int(row_positions[-1]) + 1 - len(own)
    seen = replace(
        head,
        keys=np.concatenate([head.keys, own]),
        values=np.empty((len(head.keys) + len(own), 0)),
        positions=np.concatenate([head.positions, np.arange(first, first + len(own))]),
    )
    weights = attention(seen).max(axis=(0, 1))[: len(head.keys)]
    weights[head.positions < n_sink] = 0.0
    cells = np.arange(len(weights))
    distances = cells[:, None] - cells
    faded = np.exp2(-np.abs(distances) / np.where(distances < 0, after, before))
    return np.asarray(np.where(distances < -N_HALVINGS * after, 0.0, faded) @ weights)


def rest_of(keys: Keys, values: Keys, queries: Keys, n: int) -> tuple[Keys, Keys]:
    """Return the key and the value, (d,) and (d_v,) float64, of the cell that stands for n tokens that a head lacks.

        value = mean of the values
        key   = mean of the keys + A' (A A' + lambda I)^-1 (log(n), ..., log(n))
        lambda = RIDGE times the mean of the diagonal of A A'

    keys, values: of these tokens, or of some of them, (rows, d) and (rows, d_v)
    queries: A, of all rows of a probe and query heads of the group, (rows, d), times the scale of attention
    """
    gram = queries @ queries.T
    gram += RIDGE * np.trace(gram) / len(gram) * np.eye(len(gram))
    more = np.linalg.solve(gram, np.full(len(gram), np.log(n)))
    return keys.mean(axis=0) + queries.T @ more, values.mean(axis=0)


def least_recalled(scores: Mapping[Place, Scores], n_cells: int, most: Mapping[Place, int]) -> float:
    """Return the least score that a recall takes: that of the last of the best n_cells tokens a head, over all heads.

    scores: of the tokens that each head lacks
    n_cells: of a head, on average
    most: tokens that each head may get
    """
    best = np.concatenate([np.sort(of_head)[::-1][: most[place]] for place, of_head in scores.items()])
    return float(np.sort(best)[::-1][: n_cells * len(scores)].min(initial=np.inf))
