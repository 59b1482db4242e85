"""Heads that merge, beside the reference of `merge`."""

from __future__ import annotations

import numpy as np
from cache_arrays import read_rows

from edgekv.policies import Head
from edgekv.policies.merge import N_ROUNDS, group_cells, merged

# Root mean square of what storing a mean changes, over the deviation of rows.
ROUNDING = {"f16": 5e-4, "q8_0": 1e-2}
SAME = 3e-5  # share of a distance within which float32 may take the other of two means


def held(cache, budget):
    """Every head as the reference sees it; its cells ascending by position."""
    return {
        (layer, g): Head(
            keys=read_rows(cache, layer, g),
            values=read_rows(cache, layer, g, values=True),
            positions=cache.positions(layer, g),
            counts=cache.counts(layer, g).astype(np.float64),
            budget=budget,
            layer=layer,
            head=g,
        )
        for layer, g in cache.heads
    }


def margin(gone, weights, means, counts):
    """Return the least share by which the second mean is farther than the first, in any round."""
    centers, least = means, np.inf
    if len(means) == 1:
        return least
    for _ in range(N_ROUNDS):
        nearest = np.sort(((gone[:, None] - centers[None]) ** 2).sum(axis=2), axis=1)[:, :2]
        least = min(least, ((nearest[:, 1] - nearest[:, 0]) / nearest[:, 1]).min())
        groups = ((gone[:, None] - centers[None]) ** 2).sum(axis=2).argmin(axis=1)
        centers = merged(means, counts, gone, weights, groups)
    return least


def is_as_merged(before, found, kept, taken, rounding):
    """Compare a head after an eviction; returns False if float32 may have taken another mean."""
    np.testing.assert_array_equal(found.positions, before.positions[kept])
    gone, means = np.setdiff1d(np.arange(len(before.positions)), kept), np.isin(kept, taken)
    keys, counts = before.keys, before.counts
    if len(gone) == 0 or len(taken) == 0:
        for name in ("counts", "keys", "values"):
            np.testing.assert_array_equal(getattr(found, name), getattr(before, name)[kept])
        return True
    if margin(keys[gone], counts[gone], keys[taken], counts[taken]) < SAME:
        return False
    groups = group_cells(keys[gone], counts[gone], keys[taken], counts[taken])
    expected = counts[kept]
    expected[means] += np.bincount(groups, counts[gone], len(taken))
    np.testing.assert_array_equal(found.counts, expected)
    for name in ("keys", "values"):
        rows = getattr(before, name)
        expected = rows[kept]
        expected[means] = merged(rows[taken], counts[taken], rows[gone], counts[gone], groups)
        error = getattr(found, name) - expected
        assert not error[~means].any()
        assert np.sqrt(np.mean(error[means] ** 2)) <= rounding * rows.std()
    return True
