"""Figures of an inspection, against the same by other formulas in float64."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

from edgekv.errors import ConfigError
from edgekv.inspection import KeyStudy, log_det_gram, principal
from edgekv.inspection.kept_tokens import runs
from edgekv.inspection.keys import volumes
from edgekv.inspection.observe import MAX_HEADS, chosen_heads


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def keys_of(rng, n, d):
    """Keys as a cache may hold them: of different sizes along each axis, away from the origin, in half precision."""
    return (rng.normal(size=(n, d)) * np.linspace(0.5, 4, d) + 3).astype(np.float16)


@pytest.mark.parametrize(("n", "d"), [(1, 8), (5, 32), (32, 32), (33, 32), (700, 64)])
def test_log_det_is_that_of_the_gram_matrix(rng, n, d):
    keys = keys_of(rng, n, d)
    wide = keys.astype(np.float64)
    sign, log_det = np.linalg.slogdet(wide @ wide.T if n <= d else wide.T @ wide)
    assert sign == 1
    assert log_det_gram(keys) == pytest.approx(log_det, rel=1e-9)


def test_log_det_grows_with_every_key_once_there_are_enough(rng):
    keys = keys_of(rng, 200, 16)
    grown = [log_det_gram(keys[:n]) for n in range(16, 200)]
    assert (np.diff(grown) > 0).all()


def test_log_det_of_keys_that_span_less_than_they_could(rng):
    keys = keys_of(rng, 20, 32)
    assert log_det_gram(np.concatenate([keys, keys[:1]])) == -math.inf
    assert log_det_gram(keys_of(rng, 50, 8)[:, [0, 1, 2, 3, 4, 5, 6, 6]]) == -math.inf
    assert log_det_gram(keys[:0]) == 0.0


@pytest.mark.parametrize(("n", "d"), [(3, 16), (500, 24)])
def test_principal_components_are_eigenvectors_of_the_covariance(rng, n, d):
    keys = keys_of(rng, n, d)
    points, explained = principal(keys)
    values, vectors = np.linalg.eigh(np.cov(keys.astype(np.float64), rowvar=False))
    wanted = (keys - keys.astype(np.float64).mean(axis=0)) @ vectors[:, [-1, -2]]
    same_sign = np.sign((points * wanted).sum(axis=0))
    np.testing.assert_allclose(points, wanted * same_sign, atol=1e-8 * np.abs(wanted).max())
    np.testing.assert_allclose(explained, values[[-1, -2]] / values.sum(), rtol=1e-9)


def test_principal_components_of_one_key(rng):
    points, explained = principal(keys_of(rng, 1, 8))
    assert points.shape == (1, 2)
    assert not points.any()
    assert explained.tolist() == [0, 0]


def test_neither_figure_depends_on_a_rotation_of_all_keys(rng):
    keys = keys_of(rng, 300, 16).astype(np.float64)
    turn, _ = np.linalg.qr(rng.normal(size=(16, 16)))
    assert log_det_gram(keys @ turn) == pytest.approx(log_det_gram(keys), rel=1e-9)
    distances = [
        np.linalg.norm(points - points[0], axis=1) for points in (principal(keys)[0], principal(keys @ turn)[0])
    ]
    np.testing.assert_allclose(*distances, atol=1e-8)


def test_distinct_keys_span_more_than_random_sets_and_alike_ones_less(rng):
    distinct, alike = keys_of(rng, 40, 16), keys_of(rng, 1, 16) + 0.1 * keys_of(rng, 400, 16)
    keys = np.concatenate([distinct, alike])
    is_distinct = np.arange(len(keys)) < 40
    of_distinct, of_alike = volumes(keys, is_distinct), volumes(keys, np.roll(is_distinct, 40))
    assert of_distinct.full > of_distinct.kept > of_distinct.random + 3 * of_distinct.deviation
    assert of_alike.kept < of_alike.random
    assert of_distinct == volumes(keys, is_distinct)  # the random sets are the same


def test_a_study_where_nothing_was_evicted_is_json(rng):
    study = KeyStudy.of(3, 1, keys_of(rng, 50, 8), np.ones(50, dtype=bool))
    report = json.loads(json.dumps(study.as_dict(), allow_nan=False))
    assert report["log_det"]["kept"] == report["log_det"]["full"]
    assert report["log_det"]["random"] is None
    assert (report["n_kept"], report["n_evicted"], len(report["points"])) == (50, 0, 50)
    assert study.as_row()[:3] == ("3, 1", "50", "0")


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9, 1])
def test_runs_are_the_positions_of_a_row(rng, share):
    row = rng.random(200) < share
    found = runs(row)
    assert [p for start, end in found for p in range(start, end)] == np.flatnonzero(row).tolist()
    assert all(end < start for (_, end), (start, _) in itertools.pairwise(found))


def test_heads_that_are_named_and_heads_that_are_not():
    even = [3] * 30
    assert chosen_heads(even) == [(0, 0), (9, 1), (19, 2), (29, 0)]
    assert chosen_heads([2]) == [(0, 0)]
    assert chosen_heads(even, layers=[7, 2]) == [(2, 0), (2, 1), (2, 2), (7, 0), (7, 1), (7, 2)]
    assert chosen_heads(even, layers=[7], heads=[2, 2]) == [(7, 2)]
    assert chosen_heads([2, 4, 2], heads=[1]) == [(0, 1), (1, 1), (2, 1)]
    for words, arguments in {
        r"layer=30 is not in the model; give one in \[0, 30\)": {"layers": [30]},
        "layer=-1": {"layers": [-1]},
        r"head=3 is not in layer 7; give one in \[0, 3\)": {"layers": [7], "heads": [3]},
        f"30 heads are too many; name at most {MAX_HEADS}": {"heads": [0]},
    }.items():
        with pytest.raises(ConfigError, match=words):
            chosen_heads(even, **arguments)
