"""Merging of what is evicted into a few cells that count as many (ResKV, arXiv:2607.29591)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .base import option, required_budget
from .head import Head
from .selection import Protection, by_position
from .types import Floats, Indices, Scores
from .wrappers import Division

N_ROUNDS = 2  # rounds of k-means
CELLS_A_MEAN = 8  # free cells of a head for each mean, at least


@dataclass(frozen=True)
class Merge(Division):
    """Keep means of evicted cells in some cells of every head; the wrapped policy scores and chooses the others.

    logit[i] = q k[i] + ln(n[i])

    A mean has the mean key and value of n cells, and attention counts it n times. At an eviction each cell that goes is
    taken in by the mean with the nearest key, after two rounds of k-means. A head has at most `cells` means, and at
    most an eighth of what is not protected. These stay. If the head's budget shrinks, the older means beyond an eighth
    stay by their scores, as other cells do. A mean begins as one of the cells that would go, evenly over the text, and
    keeps its position.

    A cell that an archive gave back goes into no mean and becomes none: one has it already.

    An eviction that turns keys to adjacent positions ends this: turned, means would be as near as the newest cells, and
    count as many as are far away. Means count as single cells from then on.

    Scores do not know the counts: an attention score counts a mean once. The paper gives each mean a further scalar for
    the mass that the mean of its keys underestimates. A fitted bias for it gained nothing here.
    """

    name = "merge"
    paper = "ResKV, arXiv:2607.29591"
    summary = "keep means of evicted cells, each counted as many in attention"
    merges = True
    after = frozenset({"caote", "fastcaote", "critical", "ada", "pyramid"})

    cells: int = option(16, "cells of a head that are means, at most", minimum=1, maximum=1024)

    def keep(self, head: Head, protection: Protection, budget: int | None = None) -> Indices:
        """Return the cells to keep, means among them, ascending by position."""
        return self.keep_and_merge(head, protection, required_budget(head) if budget is None else budget)[0]

    def keep_and_merge(self, head: Head, protection: Protection, budget: int) -> tuple[Indices, Indices]:
        """Return the cells to keep, and the means among them that take in evicted cells, each ascending by position."""
        counts = np.ones(len(head.positions)) if head.counts is None else head.counts
        old = counts > 1
        protected = protection.mask(head.positions)
        n_protected = int(protected.sum())
        most = min(self.cells, (budget - n_protected) // CELLS_A_MEAN)
        n_new = max(0, most - int(old.sum())) if int((counts > 0).sum()) > budget else 0
        newest = np.sort(head.positions[old & ~protected])[::-1][: max(0, most)]
        stay = tuple((int(p), int(p) + 1) for p in newest)
        kept = self.inner.keep(head, replace(protection, pinned=protection.pinned + stay), budget - n_new)
        gone = head.order[~np.isin(head.order, kept)]
        gone = gone[counts[gone] > 0]
        new = gone[new_means(len(gone), n_new)]
        means = np.concatenate([kept[old[kept]], new])
        return by_position(np.concatenate([kept, new]), head.positions), by_position(means, head.positions)

    def native_fields(self) -> dict[str, Any]:
        return self.inner.native_fields() | {"n_merged": self.cells}


def new_means(n_gone: int, n_new: int) -> Indices:
    """Return the places (n_new,) of the evicted cells that become means, evenly over all."""
    return (2 * np.arange(n_new) + 1) * n_gone // max(1, 2 * n_new)


def group_cells(gone: Floats, weights: Scores, means: Floats, counts: Scores) -> Indices:
    """Return the mean that each cell goes into, (n,), by k-means of the keys.

    gone (n, d): keys of cells that go; weights (n,): how many cells each of these stands for
    means (m, d): keys of cells that take them in; counts (m,): likewise
    """
    centers, groups = means, np.zeros(len(gone), dtype=np.int64)
    for _ in range(N_ROUNDS):
        groups = ((gone[:, None] - centers[None]) ** 2).sum(axis=2).argmin(axis=1)
        centers = merged(means, counts, gone, weights, groups)
    return groups


def merged(means: Floats, counts: Scores, gone: Floats, weights: Scores, groups: Indices) -> Floats:
    """Return the rows (m, d) of means after they have taken in others, keys or values, by group (n,)."""
    sums, sizes = means * counts[:, None], counts.astype(np.float64)
    np.add.at(sums, groups, gone * weights[:, None])
    np.add.at(sizes, groups, weights)
    return np.asarray(sums / sizes[:, None])
