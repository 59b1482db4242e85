"""Ada-KV's theorems: the loss stays below its bound, and no other split of the cells has a lower bound."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from policy_arrays import BACKENDS

from edgekv.scoring import budgets, select

N_EMBD = 24
ADA = "tova+ada(safeguard=0)"


def random_layer(seed, n_heads, n):
    """Heads under one query each, some of whose attention is narrow and some wide: arguments of `select`."""
    rng = np.random.default_rng(seed)
    sharpness = rng.uniform(0.5, 5, (n_heads, 1, 1))
    return {
        "keys": rng.standard_normal((n_heads, n, 32)),
        "positions": np.array([rng.permutation(n) for _ in range(n_heads)]),
        "values": rng.standard_normal((n_heads, n, 8)) * rng.lognormal(size=(n_heads, n, 1)),
        "queries": sharpness * rng.standard_normal((n_heads, 1, 32)),
        "query_positions": [n],
        "w_o": rng.standard_normal((n_heads, 8, N_EMBD)),
    }


def attention(layer):
    """A (h, n), recomputed here."""
    logits = (layer["keys"] @ layer["queries"].transpose(0, 2, 1))[:, :, 0] / np.sqrt(32)
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def loss(layer, kept):
    """norm1(y - y_hat) (eq. 8): kept (h, n) bool; a head without a cell has no output left."""
    weights = attention(layer)
    left = np.where(kept, weights, 0)
    total = left.sum(axis=1, keepdims=True)
    left = np.divide(left, total, out=np.zeros_like(left), where=total > 0)
    return np.abs(np.einsum("hn,hnv,hve->e", weights - left, layer["values"], layer["w_o"])).sum()


def bound(layer, kept):
    """epsilon (eq. 9): 2 h C - 2 C sum_kept A, C the largest norm1 of a row of V W_O."""
    weights = attention(layer)
    most = np.abs(layer["values"] @ layer["w_o"]).sum(axis=2).max()
    return 2 * most * (len(weights) - weights[kept].sum())


def best_of(layer, cells):
    """Top-k of each head (eq. 11): cells (h,) of how many -> (h, n) bool."""
    ranks = np.argsort(np.argsort(-attention(layer), axis=1), axis=1)
    return ranks < np.asarray(cells)[:, None]


def kept_by(spec, layer, budget, backend):
    """(h, n) bool."""
    kept = np.zeros(layer["positions"].shape, dtype=bool)
    for row, cells in zip(kept, select(spec, **layer, budget=budget, backend=backend), strict=True):
        row[cells] = True
    return kept


def random_split(rng, n_heads, n, total):
    """Cells of each head, none above n, in all `total`."""
    return rng.multivariate_hypergeometric([n] * n_heads, total)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spec", ["tova", ADA, "tova+ada", "tova+critical+ada", "keydiff+ada", "random"])
def test_the_loss_stays_below_its_bound(spec, backend):
    """Theorem 3.1, whatever is evicted."""
    for seed in range(40):
        layer = random_layer(seed, 6, 40)
        kept = kept_by(spec, layer, 10, backend)
        assert kept.sum() == 60
        assert 0 < loss(layer, kept) <= bound(layer, kept)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("n_heads", "n", "budget"), [(2, 12, 3), (6, 40, 10), (16, 64, 40)])
def test_no_other_split_has_a_lower_bound(n_heads, n, budget, backend):
    """Theorem 3.3 against uniform and random budgets; the gain over uniform ones is no rounding."""
    rng = np.random.default_rng(n)
    gains = []
    for seed in range(20):
        layer = random_layer(seed, n_heads, n)
        least = bound(layer, kept_by(ADA, layer, budget, backend)) * (1 - 1e-6)
        uniform = bound(layer, kept_by("tova", layer, budget, backend))
        assert least <= uniform
        for _ in range(50):
            assert least <= bound(layer, best_of(layer, random_split(rng, n_heads, n, n_heads * budget)))
        gains.append(least / uniform)
    assert np.mean(gains) < 0.97


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_all_splits_it_has_the_lowest_bound(backend):
    """Theorem 3.3, exhaustively: 9 cells for three heads of 7."""
    splits = [cells for cells in itertools.product(range(8), repeat=3) if sum(cells) == 9]
    chosen = set()
    for seed in range(30):
        layer = random_layer(seed, 3, 7)
        bounds = {cells: bound(layer, best_of(layer, cells)) for cells in splits}
        found = tuple(budgets(ADA, **layer, budget=3, backend=backend))
        assert found == min(bounds, key=bounds.__getitem__)
        chosen.add(found)
    assert len(chosen) > 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_all_choices_of_cells_it_has_the_lowest_bound(backend):
    """Theorems 3.2 and 3.3 at once: any 6 of 12 cells of two heads."""
    choices = np.zeros((924, 12), dtype=bool)
    for row, cells in zip(choices, itertools.combinations(range(12), 6), strict=True):
        row[list(cells)] = True
    for seed in range(10):
        layer = random_layer(seed, 2, 6)
        least = min(bound(layer, kept.reshape(2, 6)) for kept in choices)
        assert bound(layer, kept_by(ADA, layer, 3, backend)) == pytest.approx(least, rel=1e-9)
