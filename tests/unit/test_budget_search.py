"""The search for the largest budget that fits: the answers of a bisection, from few plans."""

from __future__ import annotations

import random

import pytest

from edgekv.planning.budget_search import BudgetSearch

MOST = 8000


def largest_by_halving(fits, least, most):
    """Return the largest budget that fits, as the native planner finds it; None if the least one does not."""
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


@pytest.mark.parametrize("least", [1, 37, 4001])
@pytest.mark.parametrize(("shape", "most_plans"), [(straight, 5), (bent, 8), (stepped, 10 + 13)])
def test_a_few_plans_give_the_answers_of_a_bisection(shape, most_plans, least):
    for ceiling in random.Random(1).sample(range(260_000_000), 40):
        spare, planned = shape(ceiling), []

        def noted(budget, spare=spare, planned=planned):
            planned.append(budget)
            return spare(budget)

        search = BudgetSearch(noted, MOST)
        expected = largest_by_halving(lambda budget, spare=spare: spare(budget) >= 0, least, MOST)
        assert largest_by_halving(search.fits, least, MOST) == expected
        assert len(planned) == len(set(planned)) <= most_plans


def test_a_named_budget_takes_one_plan():
    planned = []
    search = BudgetSearch(lambda budget: planned.append(budget) or 0, MOST)
    assert search.fits(512)
    assert planned == [512]
