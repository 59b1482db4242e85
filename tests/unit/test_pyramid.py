"""Budgets that fall from layer to layer, native and reference: the exact mean, the ends, limits, what is refused."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from policy_arrays import BACKENDS

from edgekv import BudgetError, ConfigError
from edgekv.binding import library, structs
from edgekv.policies import Pyramid, Tova, parse_policy


def split(n_layer, budget, n_protected, backend, beta=20.0, largest=None):
    policy = Pyramid(Tova(), beta=beta)
    if backend == "reference":
        return policy.layer_budgets(n_layer, budget, n_protected, largest)
    found = np.empty(n_layer, dtype=np.uint32)
    fields = structs.Policy(**policy.native_fields())
    limit = 2**32 - 1 if largest is None else largest
    arguments = (ctypes.byref(fields), n_layer, budget, n_protected, limit, found.ctypes.data)
    library.call("edgekv_layer_budgets", *arguments)
    return found.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_ends_are_the_papers(backend):
    """F = 480: the last layer has F / 20 = 24 free cells, the first 960 - 24, three between at equal steps."""
    assert split(5, 512, 32, backend) == [968, 740, 512, 284, 56]
    assert split(5, 512, 32, backend, beta=2) == [752, 632, 512, 392, 272]
    assert split(2, 512, 512, backend) == [512, 512]
    assert split(1, 512, 32, backend) == [512]
    assert split(0, 512, 32, backend) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_left_goes_where_most_is_lacking(backend):
    """Targets 19.5, 13.17, 6.83 and 0.5 of 40: the third first, then the first of those that lack a half."""
    assert split(4, 10, 0, backend) == [20, 13, 7, 0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_layer", [1, 2, 3, 16, 30, 80])
@pytest.mark.parametrize("beta", [1, 1.5, 7, 20, 1e9, np.inf])
def test_budgets_fall_evenly_and_their_mean_is_exact(beta, n_layer, backend):
    rng = np.random.default_rng(n_layer)
    for _ in range(20):
        budget = int(rng.integers(1, 5000))
        n_protected = int(rng.integers(0, budget + 1))
        found = split(n_layer, budget, n_protected, backend, beta)
        assert sum(found) == n_layer * budget
        assert found == sorted(found, reverse=True)
        assert found[-1] >= n_protected
        if n_layer == 1 or beta == 1:
            assert found == [budget] * n_layer
            continue
        free = budget - n_protected
        assert found[0] == pytest.approx(n_protected + 2 * free - free / beta, abs=1)
        assert found[-1] == pytest.approx(n_protected + free / beta, abs=1)
        steps = np.diff(found)
        assert np.ptp(steps) <= 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("beta", [2, 20])
def test_what_a_layer_may_not_hold_the_others_get(beta, backend):
    rng = np.random.default_rng(beta)
    for _ in range(50):
        n_layer, budget = int(rng.integers(2, 40)), int(rng.integers(1, 1000))
        n_protected, largest = int(rng.integers(0, budget + 1)), int(rng.integers(budget, 2 * budget + 2))
        free, capped = (split(n_layer, budget, n_protected, backend, beta, limit) for limit in (None, largest))
        assert sum(capped) == n_layer * budget
        assert capped == sorted(capped, reverse=True)
        assert max(capped) <= largest
        assert all(c >= min(f, largest) for c, f in zip(capped, free, strict=True))
    assert split(9, 100, 10, backend, beta, largest=100) == [100] * 9


def test_native_equals_reference():
    rng = np.random.default_rng(0)
    for _ in range(500):
        n_layer, budget = int(rng.integers(1, 100)), int(rng.integers(1, 5000))
        n_protected, largest = int(rng.integers(0, budget + 1)), int(rng.integers(budget, 3 * budget))
        beta = float(rng.choice([1, 2, 20, rng.uniform(1, 50)]))
        native, reference = (split(n_layer, budget, n_protected, backend, beta, largest) for backend in BACKENDS)
        assert native == reference


@pytest.mark.parametrize("backend", BACKENDS)
def test_impossible_budgets_are_an_error(backend):
    with pytest.raises(BudgetError, match=r"^33 protected cells exceed the budget of 32; raise the budget or protect"):
        split(4, 32, 33, backend)
    with pytest.raises(ConfigError, match=r"^largest=31 is less than the budget of 32; raise it or lower the budget"):
        split(4, 32, 8, backend, largest=31)


@pytest.mark.parametrize("spec", ["sink", "tova+caote", "snapkv+critical+ada"])
def test_other_policies_give_every_layer_the_same(spec):
    policy = parse_policy(spec)
    assert policy.layer_budgets(3, 100, 10) == [100, 100, 100]
    with pytest.raises(BudgetError, match="101 protected cells exceed the budget of 100"):
        policy.layer_budgets(3, 100, 101)
    with pytest.raises(ConfigError, match="largest=99 is less than the budget of 100"):
        policy.layer_budgets(3, 100, 10, largest=99)


@pytest.mark.parametrize(
    "spec", ["sink+pyramid(beta=4)", "snapkv+pyramid(beta=4)+ada", "h2o+critical+ada+pyramid(beta=4)"]
)
def test_whatever_it_wraps_and_whatever_wraps_it(spec):
    assert parse_policy(spec).layer_budgets(3, 100, 20) == [160, 100, 40]
