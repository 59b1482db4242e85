"""Counts of the cells of a cache: the number of cells that each is the mean of."""

from __future__ import annotations

import numpy as np

from edgekv.binding.snapshot_meta import CachedSource, SnapshotMeta


def counts_of(cache):
    """Counts (n,) by (layer, head), the cells ascending by position."""
    meta = SnapshotMeta.read(CachedSource(cache))
    ends = np.cumsum(meta.cells)[:-1]
    counts = np.rint(np.exp(meta.carried["log_count"].view(np.float32).astype(np.float64)))
    heads = [(layer, g) for layer in range(cache.shape.n_layer) for g in range(cache.layer_heads(layer)[0])]
    by_head = zip(heads, np.split(counts, ends), np.split(meta.carried["order"], ends), strict=True)
    return {head: of_head[order] for head, of_head, order in by_head}
