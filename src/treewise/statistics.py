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
    smallest = max(2.0 ** (1 - len(differences)), 1 / (resamples + 1))
    return Paired(interval(differences), float(found.pvalue), smallest)
