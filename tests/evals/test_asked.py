"""Tables of tasks that ask: what is compared with what, on the same texts alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from imported_later import imported_later

from edgekv.evals.case import Case
from edgekv.evals.setting import Setting
from edgekv.evals.statistics import gap
from edgekv.evals.tasks import NEEDLE
from edgekv.evals.tasks.asked import lines, table

stats = imported_later("scipy.stats")

FULL = {0: (1.0, 0.5), 1: (1.0, 0.7), 2: (0.0, 0.9), 3: (1.0, 0.1)}  # by seed: score and nll
KEYS = {0: (0.0, 1.5), 1: (0.0, 1.1), 2: (0.0, 2.9), 3: (1.0, 0.2)}
GENERAL = {0: (0.0, 1.0), 1: (1.0, 0.9), 2: (0.0, 1.9)}


def measured(found, *, budget=256, figures=("score", "nll"), length=1000, **fields):
    setting = Setting(budget=budget, **fields)
    return [
        (Case(NEEDLE, setting, length, seed, None, {"depth": None}), dict(zip(figures, found[seed], strict=False)))
        for seed in found
    ]


@pytest.fixture
def all_of_them():
    return [
        *measured(FULL, policy="full"),
        *measured(KEYS),
        *measured(GENERAL, focus="What?"),
    ]


def test_the_gap_to_the_full_cache_is_paired(all_of_them):
    full, keys, general = (line.likelihood for line in lines(all_of_them))
    assert full.above_full is None
    expected = stats.ttest_1samp([1.0, 0.4, 2.0, 0.1], 0)
    bounds = expected.confidence_interval(0.95)
    assert keys.mean == pytest.approx(5.7 / 4)
    assert keys.above_full.mean == pytest.approx(3.5 / 4)
    assert (keys.above_full.low, keys.above_full.high) == pytest.approx((bounds.low, bounds.high))
    assert (general.above_full.mean, general.above_full.n) == (pytest.approx((0.5 + 0.2 + 1.0) / 3), 3)


def test_full_caches_of_several_grids_are_one():
    fields = {"budget": 512, "focus": "question", "reposition": "always"}
    of_one = [*measured(FULL, policy="full"), *measured(KEYS)]
    of_another = [*measured({0: FULL[0]}, policy="full", **fields), *measured({0: KEYS[0]}, **fields)]
    full, keys, others = lines([*of_one, *of_another])
    assert full.score.n == 4
    assert (keys.likelihood.above_full.n, others.likelihood.above_full.n) == (4, 1)


def test_the_baseline_is_compared_by_likelihood_too(all_of_them):
    full, keys, general = lines(all_of_them, "focus: What?")
    assert full.likelihood.p_value is general.likelihood.p_value is None
    assert keys.likelihood.p_value == pytest.approx(0.25)  # two of eight choices of signs are as far from 0
    assert keys.p_value == pytest.approx(1.0)


def test_columns_are_there_for_what_was_measured(all_of_them):
    made = table(all_of_them)
    row = dict(zip(made.headers, made.rows[1], strict=True))
    assert row["nll"] == "1.43"
    assert row["above full"] == "+0.88"
    assert row["its 95 %"].startswith("-0.")
    assert made.data[1]["nll_above_full"] == pytest.approx(3.5 / 4)
    plain = table(measured(KEYS, figures=("score",)))
    assert plain.headers[-1] == "p"
    assert not any("nll" in name for name in plain.data[0])


def test_one_text_has_no_interval():
    line = lines([*measured({0: (0.0, 1.0)}), *measured(FULL, policy="full")])[0]
    assert dataclasses.astuple(line.likelihood.above_full) == (0.5, None, None, 1)
    assert table([*measured({0: (0.0, 1.0)}), *measured(FULL, policy="full")]).rows


def test_the_interval_holds_the_true_gap_as_often_as_it_says():
    rng = np.random.default_rng(0)
    found = [gap(rng.normal(0.3, 1.0, 12), rng.normal(0.0, 1.0, 12)) for _ in range(2000)]
    assert np.mean([each.low < 0.3 < each.high for each in found]) == pytest.approx(0.95, abs=0.015)
