"""Figures of repetition on sequences made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from bench.papers.long_generation import longest_repeat, repetition


def test_a_loop():
    found = repetition([1, 2, 3] * 4)
    assert found["distinct"] == {"1": 3 / 12, "2": 3 / 11, "3": 3 / 10, "4": 3 / 9}
    assert found["repeated_4"] == pytest.approx(6 / 9)
    assert (found["longest_repeat"], found["repeat_distance"]) == (9, 3)


def test_nothing_repeated():
    found = repetition([4, 1, 3, 2, 5])
    assert set(found["distinct"].values()) == {1.0}
    assert found["repeated_4"] == 0
    assert (found["longest_repeat"], found["repeat_distance"]) == (0, None)


def test_texts_shorter_than_an_ngram():
    assert repetition([7, 7])["distinct"] == {"1": 0.5, "2": 1.0, "3": None, "4": None}
    assert repetition([7, 7])["repeated_4"] is None
    assert repetition([])["distinct"]["1"] is None
    assert longest_repeat([]) == (0, None)


def test_a_sentence_said_twice():
    assert longest_repeat([9, 1, 2, 3, 8, 7, 6, 1, 2, 3, 5, 5]) == (3, 6)


@pytest.mark.parametrize("seed", range(20))
def test_the_longest_repeat_of_random_tokens(seed):
    """Against every pair of beginnings."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, rng.integers(1, 6), rng.integers(1, 40)).tolist()
    n = len(tokens)
    runs = {}  # lag -> its longest run
    for a in range(n):
        for b in range(a + 1, n):
            length = next((i for i in range(n - b) if tokens[a + i] != tokens[b + i]), n - b)
            runs[b - a] = max(runs.get(b - a, 0), length)
    most = max(runs.values(), default=0)
    nearest = min((lag for lag, run in runs.items() if run == most), default=None) if most else None
    assert longest_repeat(tokens) == (most, nearest)
