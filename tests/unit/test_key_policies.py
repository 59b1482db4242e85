"""Particular rules of the policies that read keys or positions alone: keydiff, sink, random."""

from __future__ import annotations

import numpy as np
import pytest
from policy_arrays import BACKENDS, SMALL, Shape, all_arrays, assert_close, assert_same_cells, needed

from edgekv.policies import KeyDiff
from edgekv.policies.keydiff import ANCHORS
from edgekv.scoring import score, select


@pytest.mark.parametrize("spec", ["sink", "random"])
def test_scores_without_keys_are_exact(spec):
    native, reference = (score(spec, **needed(spec, SMALL), backend=backend) for backend in BACKENDS)
    np.testing.assert_array_equal(native, reference)


@pytest.mark.parametrize("anchor", ANCHORS)
def test_keys_of_norm_zero(anchor):
    """No direction, no similarity: 0, not a division by zero."""
    arguments = needed("keydiff", SMALL)
    keys = arguments["keys"].copy()
    keys[:, ::3] = 0
    spec = f"keydiff(anchor={anchor})"
    native, reference = (score(spec, **arguments | {"keys": keys}, backend=backend) for backend in BACKENDS)
    assert (native[:, ::3] == 0).all()
    assert_close(native, reference)
    nothing = score(spec, **arguments | {"keys": np.zeros_like(keys)})
    assert (nothing == 0).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_window_keeps_the_newest(backend):
    """keydiff(window=0.2) of 50 cells: the newest ten, though they resemble the rest most."""
    arguments = needed("keydiff", Shape(d=64, d_v=1, n=200, heads=1, group=1, rows=1), budget=50, backend=backend)
    newest = np.argsort(arguments["positions"][0])[-10:]
    keys = arguments["keys"].copy()
    keys[0, newest] = keys[0].mean(axis=0)
    (plain,) = select("keydiff", **arguments | {"keys": keys})
    (windowed,) = select("keydiff(window=0.2)", **arguments | {"keys": keys})
    assert not np.isin(newest, plain).any()
    assert np.isin(newest, windowed).all()
    assert len(windowed) == 50


@pytest.mark.parametrize(("window", "n_newest"), [(0.29, 29), (0.58, 58), (0.996, 100), (1.0, 100), (0.0, 0)])
def test_a_window_is_the_nearest_number_of_cells(window, n_newest):
    """0.29 * 100 and 0.58 * 100 are a little less than whole in floats."""
    arguments = needed("keydiff", Shape(d=8, d_v=1, n=200, heads=1, group=1, rows=1), budget=100)
    newest = np.argsort(arguments["positions"][0])[::-1]
    keys = arguments["keys"].copy()
    keys[0, newest[:100]] = keys[0].mean(axis=0)  # they resemble the rest most, so each stays for the window alone
    (kept,) = select(f"keydiff(window={window})", **arguments | {"keys": keys})
    assert np.isin(newest, kept)[:100].sum() == n_newest
    assert np.isin(newest[:n_newest], kept).all()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wrapping", ["", "+fastcaote", "+critical"])
def test_sinks_of_the_policy_go_before_those_of_the_call(wrapping, backend):
    arguments = needed(f"sink{wrapping}", SMALL, budget=10, n_sink=8, backend=backend)
    first = np.sort(arguments["positions"], axis=1)[:, :3]
    for n_sink in (0, int(first.max()) + 1):
        kept = select(f"sink(n_sink={n_sink}){wrapping}", **arguments)
        for g, cells in enumerate(kept):
            where = arguments["positions"][g]
            assert np.isin(where[where < n_sink], where[cells]).all()
            if not wrapping:
                n_newest = 10 - (where < n_sink).sum()
                np.testing.assert_array_equal(where[cells][-n_newest:], np.sort(where)[-n_newest:])


def test_pairwise_anchor_selects_as_unit_mean():
    """eq. 7 is eq. 8 times the anchor's norm, the same for every cell: other scores, the same order."""
    arguments = needed("keydiff", SMALL)
    scores = score("keydiff(anchor=pairwise)", **arguments)
    both = (select(KeyDiff(anchor=anchor), **arguments) for anchor in ("pairwise", "unit-mean"))
    for pairwise, unit_mean, reference in zip(*both, scores, strict=True):
        assert_same_cells(pairwise, unit_mean, reference)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_pairwise_anchor_is_the_mean_cosine_of_all_pairs(dtype):
    arguments = needed("keydiff", SMALL, dtype)
    unit = arguments["keys"].astype(np.float64)
    unit /= np.linalg.norm(unit, axis=2, keepdims=True)
    cosines = unit @ unit.transpose(0, 2, 1)
    assert_close(score("keydiff(anchor=pairwise)", **arguments), -cosines.mean(axis=2))


def test_random_number_belongs_to_the_token():
    """A cell's number depends on seed, layer, head and position, not on its neighbours or its key."""
    arrays = all_arrays(SMALL)
    keys, positions = arrays["keys"], arrays["positions"]
    scores = score("random(seed=1)", keys=keys, positions=positions)
    np.testing.assert_array_equal(
        score("random(seed=1)", keys=-keys[:, 50:], positions=positions[:, 50:]), scores[:, 50:]
    )
    same = np.tile(positions[:1], (2, 1))
    heads = score("random(seed=1)", keys=keys, positions=same)
    others = [
        heads[1],
        score("random(seed=2)", keys=keys, positions=same)[0],
        score("random(seed=1)", keys=keys, positions=same, layer=1)[0],
    ]
    for other in others:
        assert (other != heads[0]).mean() > 0.99


def test_random_numbers_are_uniform():
    positions = np.arange(20_000, dtype=np.int32)[None]
    (scores,) = score("random", keys=np.zeros((1, 20_000, 32), np.float16), positions=positions)
    counts, _ = np.histogram(scores, bins=20, range=(0, 1))
    assert counts.sum() == 20_000
    assert (np.abs(counts - 1000) < 5 * np.sqrt(1000)).all()
