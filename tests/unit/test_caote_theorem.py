"""CAOTE is what its theorem says: the change of the attention output when one cell goes (Theorem 3.2)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from policy_arrays import BACKENDS

from edgekv import ConfigError
from edgekv.scoring import score, select


def random_head(seed, n, d=24, d_v=16, temperature=1.0):
    """One KV head under one query: arguments of `score`."""
    rng = np.random.default_rng(seed)
    return {
        "keys": rng.standard_normal((1, n, d)),
        "positions": rng.permutation(n)[None],
        "values": rng.standard_normal((1, n, d_v)) + 2 * rng.standard_normal((1, 6, d_v))[:, rng.integers(0, 6, n)],
        "queries": temperature * rng.standard_normal((1, 1, d)),
        "query_positions": [n],
    }


def output(head, cells):
    """(d_v,) attention output over some of the cells."""
    logits = head["keys"][0, cells] @ head["queries"][0, 0] / np.sqrt(head["keys"].shape[2])
    weights = np.exp(logits - logits.max())
    return weights / weights.sum() @ head["values"][0, cells]


def error(head, cells):
    """norm2(attention output over all cells - over some)."""
    return np.linalg.norm(output(head, np.arange(head["keys"].shape[1])) - output(head, cells))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("n", "temperature"), [(2, 1), (3, 1), (50, 1), (50, 6), (400, 1)])
def test_score_is_the_change_of_the_output(n, temperature, backend):
    for seed in range(5):
        head = random_head(seed, n, temperature=temperature)
        (scores,) = score("tova+caote", **head, backend=backend)
        changes = [error(head, np.delete(np.arange(n), j)) for j in range(n)]
        np.testing.assert_allclose(scores, changes, rtol=2e-4, atol=1e-5 * max(changes))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", ["tova+caote", "snapkv(window=1)+caote", "h2o+caote"])
def test_evicting_one_cell_changes_the_output_least(spec, backend):
    """Any base may give the weights of the one query; snapkv's own protection and pooling are set aside."""
    spec = spec.replace("window=1", "window=1, kernel=1")
    for seed in range(20):
        head = random_head(seed, 30)
        (kept,) = select(spec, **head, budget=29, backend=backend)
        changes = {j: error(head, np.delete(np.arange(30), j)) for j in range(30)}
        if "snapkv" in spec:
            del changes[int(np.argmax(head["positions"][0]))]
        assert set(range(30)) - set(kept) == {min(changes, key=changes.get)}


@pytest.mark.parametrize("backend", BACKENDS)
def test_fastcaote_takes_the_mean_of_values(backend):
    head = random_head(1, 40)
    (weights,), (scores,) = (score(spec, **head, backend=backend) for spec in ("tova", "tova+fastcaote"))
    values = head["values"][0]
    expected = weights / (1 - weights) * np.linalg.norm(values.mean(axis=0) - values, axis=1)
    np.testing.assert_allclose(scores, expected, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_are_normalised(backend):
    """eq. 22: what h2o gathered sums to more than 1, and is divided by its sum."""
    head = random_head(2, 40)
    gathered = np.random.default_rng(0).exponential(size=(1, 40))
    (sums,) = score("h2o", **head, accumulated=gathered, backend=backend)
    assert sums.sum() > 10
    h = sums / sums.sum()
    values = head["values"][0]
    expected = h / (1 - h) * np.linalg.norm(h @ values - values, axis=1)
    (scores,) = score("h2o+caote", **head, accumulated=gathered, backend=backend)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6 * expected.max())


@pytest.mark.parametrize("backend", BACKENDS)
def test_scores_below_zero_become_weights_by_a_softmax(backend):
    head = random_head(3, 40)
    (norms,) = score("l2norm", **head, backend=backend)
    h = np.exp(norms - norms.max())
    h /= h.sum()
    values = head["values"][0]
    expected = h / (1 - h) * np.linalg.norm(h @ values - values, axis=1)
    (scores,) = score("l2norm+caote", **head, backend=backend)
    np.testing.assert_allclose(scores, expected, rtol=1e-4, atol=1e-6 * expected.max())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("gap", [5, 10, 14, 18, 25, 50, 150])
def test_a_cell_that_holds_all_weight(gap, backend):
    """Weights e^gap to 1, past what a float can tell from 1: X is the cell's own value, yet the output hangs on it."""
    for seed in range(5):
        head = random_head(seed, 30) | {"keys": np.zeros((1, 30, 24)), "queries": np.ones((1, 1, 24)), "scale": 1.0}
        head["keys"][0, :, 0] = np.random.default_rng(seed).standard_normal(30)
        head["keys"][0, 11, 0] = gap
        (scores,) = score("tova+caote", **head, backend=backend)
        weights, values = np.exp(np.delete(head["keys"][0, :, 0], 11)), head["values"][0]
        without = weights / weights.sum() @ np.delete(values, 11, axis=0)
        share = 1 / (1 + weights.sum() * math.exp(-gap))
        assert np.argmax(scores) == 11
        if gap < 80:  # beyond that the others have no weight in float32
            np.testing.assert_allclose(scores[11], share * np.linalg.norm(values[11] - without), rtol=1e-5)
        for spec in ("tova+caote", "tova+fastcaote"):
            (kept,) = select(spec, **head, budget=3, backend=backend)
            assert 11 in kept


@pytest.mark.parametrize("backend", BACKENDS)
def test_cells_without_any_weight(backend):
    """If one cell holds all the weight, the others count alike. An only cell changes nothing."""
    head = random_head(4, 10) | {"keys": np.zeros((1, 10, 24)), "queries": np.ones((1, 1, 24))}
    head["keys"][0, 3] = 1e3
    (scores,) = score("tova+caote", **head, backend=backend)
    values = head["values"][0]
    expected = np.where(np.arange(10) == 3, np.linalg.norm(values[3] - np.delete(values, 3, axis=0).mean(axis=0)), 0)
    np.testing.assert_allclose(scores, expected, rtol=1e-5)
    alone = {name: head[name][:, :1] for name in ("keys", "positions", "values")}
    np.testing.assert_array_equal(score("tova+caote", **head | alone, backend=backend), [[0]])


@pytest.mark.parametrize("spec", ["tova+caote", "tova+fastcaote"])
def test_values_are_needed(spec):
    head = random_head(0, 10) | {"values": None}
    with pytest.raises(ConfigError, match=r"reads values; give values="):
        score(spec, **head, backend="reference")
