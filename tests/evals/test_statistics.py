"""Intervals and the paired test, against what they mean."""

import itertools

import numpy as np
import pytest

from edgekv.evals.statistics import interval, paired_p_value


def test_an_interval_holds_the_true_mean_as_often_as_it_says():
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(200):
        found = interval((rng.random(40) < 0.6).astype(float))
        held += found.low <= 0.6 <= found.high
    assert 0.88 <= held / 200 <= 0.99


def test_scores_that_are_all_alike_claim_no_certainty():
    found = interval([1.0] * 10)
    assert (found.mean, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(0.025 ** (1 / 10))  # all right with this chance still has 2.5 %
    assert interval([0.0] * 10).high == pytest.approx(1 - found.low)


def test_more_samples_narrow_an_interval():
    few, many = interval([0.0, 1.0] * 5), interval([0.0, 1.0] * 50)
    assert many.high - many.low < few.high - few.low


def permuted(first, second):
    """The share of all sign assignments whose mean differs at least as much, by hand."""
    differences = np.array(first) - np.array(second)
    found = [
        abs(np.dot(signs, differences)) >= abs(differences.sum()) - 1e-12
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    return np.mean(found)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1, 1, 1, 1, 0, 1, 1, 0], [0, 0, 1, 0, 0, 0, 0, 1]),
        ([1, 0.5, 0.25, 1, 0.75], [0, 0.5, 0.5, 0.25, 0]),
        ([0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]),
    ],
)
def test_the_paired_test_counts_sign_assignments(first, second):
    assert paired_p_value(first, second) == pytest.approx(permuted(first, second))


def test_no_difference_is_no_evidence():
    assert paired_p_value([1, 0, 1], [1, 0, 1]) == 1.0
