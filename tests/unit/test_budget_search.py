"""The library's search for the largest budget that fits: the answers of a bisection, from few estimates."""

from __future__ import annotations

import random

import pytest
from faked_estimates import choose_setting

from edgekv.binding import plan_structs
from edgekv.options import KV_TYPES

MOST = 8000


def largest_by_halving(fits, least, most):
    """Return the largest budget that fits, by bisection; None if the least one does not."""
    if not fits(least):
        return None
    low, high = least, most + 1
    while high - low > 1:
        tried = low + (high - low) // 2
        low, high = (tried, high) if fits(tried) else (low, tried)
    return low


def bent(ceiling):
    """Return the bytes that a budget leaves if heads share cells: a cell costs more from some budget on."""
    return lambda budget: ceiling - 100_000 - 27_450 * budget - 2_676 * max(0, budget - 1100)


def stepped(ceiling):
    """Return the bytes that a budget leaves if they grow by steps of 4,000 cells."""
    return lambda budget: ceiling - 50_000_000 * (budget // 4000)


def straight(ceiling):
    return lambda budget: ceiling - 100_000 - 28_330 * budget


def searched(spare, least, most, **named):
    """Return the largest budget that the library finds, or None, and the budgets that it asked for."""
    asked = []

    def spare_of(setting):
        asked.append(setting.budget)
        return spare(setting.budget)

    only = {"block": 128, "kv_type": KV_TYPES["f16"]}
    choice = plan_structs.Choice(least_budget=least, n_ctx_train=most, **(only | named))
    found = choose_setting(choice, spare_of, largest=not named)
    return None if found is None else found.budget, asked


@pytest.mark.parametrize("least", [1, 37, 4001])
@pytest.mark.parametrize(("shape", "most_asked"), [(straight, 5), (bent, 8), (stepped, 10 + 13)])
def test_a_few_estimates_give_the_answers_of_a_bisection(shape, most_asked, least):
    for ceiling in random.Random(1).sample(range(260_000_000), 40):
        spare = shape(ceiling)
        expected = largest_by_halving(lambda budget, spare=spare: spare(budget) >= 0, least, MOST)
        found, asked = searched(spare, least, MOST)
        assert found == expected
        assert len(asked) == len(set(asked)) <= most_asked


def test_a_named_budget_takes_one_estimate():
    assert searched(lambda budget: 0, 1, MOST, budget=512) == (512, [512])
