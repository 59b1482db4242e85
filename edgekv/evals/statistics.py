"""Confidence of mean scores, and tests of two settings on the same samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgekv.extras import needed

CONFIDENCE = 0.95
N_RESAMPLES = 9_999
SEED = 0


@dataclass(frozen=True)
class Interval:
    """A mean of n scores in [0, 1], and a 95 % interval for the true one."""

    mean: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.mean:.0%} [{self.low:.0%}, {self.high:.0%}]"


@dataclass(frozen=True)
class Gap:
    """The mean of n paired differences, and a 95 % interval for the true one; None = one pair does not tell."""

    mean: float
    low: float | None
    high: float | None
    n: int


def interval(scores: Sequence[float]) -> Interval:
    """The percentile bootstrap of a mean, with a fixed seed.

    If all scores are 0, or all are 1, every resample would be the same, and the interval would have no width. The exact
    (Clopper-Pearson) bounds are returned then. Raises ConfigError without the extra "eval".
    """
    stats = needed("scipy.stats", "eval")
    values = np.asarray(scores, dtype=np.float64)
    mean = float(values.mean())
    if mean in (0.0, 1.0):
        bounds = stats.binomtest(round(mean * len(values)), len(values)).proportion_ci(CONFIDENCE, method="exact")
    elif np.ptp(values) == 0:  # nothing to resample, and no proportion
        return Interval(mean, mean, mean, len(values))
    else:
        bounds = stats.bootstrap(
            (values,),
            np.mean,
            confidence_level=CONFIDENCE,
            n_resamples=N_RESAMPLES,
            method="percentile",
            rng=np.random.default_rng(SEED),
        ).confidence_interval
    return Interval(mean, float(bounds.low), float(bounds.high), len(values))


def gap(first: Sequence[float], second: Sequence[float]) -> Gap:
    """Return the mean of first minus second on the same samples, with Student's t interval, which suits few samples.

    Raises ConfigError without the extra "eval".
    """
    stats = needed("scipy.stats", "eval")
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    n, mean = len(differences), float(differences.mean())
    if n < 2:
        return Gap(mean, None, None, n)
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * differences.std(ddof=1) / np.sqrt(n))
    return Gap(mean, mean - reach, mean + reach, n)


def paired_p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """The probability of a difference of means at least as large, if first and second were equally good on each sample.

    Two-sided; the sign of each sample's difference is permuted. For scores of 0 and 1 this is McNemar's exact test.
    Returns 1 if no sample differs. Raises ConfigError without the extra "eval".
    """
    stats = needed("scipy.stats", "eval")
    differences = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
    differing = differences[differences != 0]
    if len(differing) == 0:
        return 1.0
    if np.ptp(np.abs(differing)) == 0:  # then the number of signs says it all, exactly
        return float(stats.binomtest(int((differing > 0).sum()), len(differing)).pvalue)
    test = stats.permutation_test(
        (differences, np.zeros_like(differences)),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=N_RESAMPLES,
        rng=np.random.default_rng(SEED),
    )
    return float(test.pvalue)
