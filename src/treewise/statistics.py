"""Intervals and tests over seeds and trials."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from treewise.types import FloatArray


class Estimate(NamedTuple):
    """A mean with its 95 % interval; the limits are nan where they can't be told."""

    mean: float
    low: float
    high: float


def interval(values: FloatArray) -> Estimate:
    """Mean and 95 % t interval of values that are independent, such as one per seed."""
    from scipy import stats

    mean = float(values.mean())
    if len(values) < 2:
        return Estimate(mean, float("nan"), float("nan"))
    half = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values)))
    return Estimate(mean, mean - half, mean + half)


def difference(values: FloatArray, baseline: FloatArray) -> Estimate:
    """Mean of one method's values minus another's, with Welch's 95 % interval: for runs that don't pair up."""
    from scipy import stats

    mean = float(values.mean() - baseline.mean())
    if min(len(values), len(baseline)) < 2:
        return Estimate(mean, float("nan"), float("nan"))
    parts = [sample.var(ddof=1) / len(sample) for sample in (values, baseline)]
    if not sum(parts):
        return Estimate(mean, mean, mean)
    freedom = sum(parts) ** 2 / sum(p**2 / (len(s) - 1) for p, s in zip(parts, (values, baseline), strict=True))
    half = float(stats.t.ppf(0.975, freedom) * np.sqrt(sum(parts)))
    return Estimate(mean, mean - half, mean + half)


@dataclass(frozen=True, slots=True)
class Paired:
    """What two methods differ by over the same seeds, and how likely signs drawn at random give as much.

    `smallest` is the least p-value that so many seeds can give.
    """

    difference: Estimate
    p: float
    smallest: float


def paired(differences: FloatArray) -> Paired:
    """Mean difference with its t interval, and the two-sided sign-flip test (exact up to 13 seeds)."""
    from scipy import stats

    resamples = 10_000
    found = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=resamples, rng=np.random.default_rng(0)
    )
    exact = 2 ** len(differences) <= resamples
    smallest = 2.0 ** (1 - len(differences)) if exact else 2 / (resamples + 1)
    return Paired(interval(differences), float(found.pvalue), smallest)
