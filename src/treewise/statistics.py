"""Intervals and tests over seeds, and how people read them.

0.12, 0.30, 0.25                  "+0.22 (+0.12, +0.30, +0.25)"    too few for an interval: the values themselves
0.12, 0.30, 0.25, 0.20, 0.1, 0.2  "+0.20 [+0.12, +0.27]"
0.00, 0.00, 0.00, 0.00, 0.0, 0.0  "+0.00 (all equal)"              no spread: nothing says how much there could be
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from treewise.types import FloatArray

FEWEST = 6  # values to an interval; of fewer no test by signs can give p < .05, as 2 / 2^5 is .0625
RESAMPLES = 10_000  # signs drawn, or permutations; all of them where there are no more
ROUNDING = 1e-12  # of means of shares: what is equal up to rounding is equal
EVERYTHING = (-math.inf, math.inf)


class Estimate(NamedTuple):
    """A mean with its 95 % interval; the limits are nan where they can't be told."""

    mean: float
    low: float
    high: float


def interval(values: FloatArray, *, within: tuple[float, float] = EVERYTHING) -> Estimate:
    """Mean and 95 % t interval of values that are independent, such as one per seed.

    Args:
        within: what a value can be; the limits are cut there.
    """
    from scipy import stats

    mean = float(values.mean())
    if len(values) < FEWEST or np.ptp(values) <= ROUNDING:
        return Estimate(mean, math.nan, math.nan)
    found = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    return Estimate(mean, max(float(found.low), within[0]), min(float(found.high), within[1]))


def shown(values: FloatArray, form: str, *, within: tuple[float, float] = EVERYTHING) -> str:
    """Mean and interval for people, each number by the format `form`."""
    mean, low, high = interval(values, within=within)
    if not math.isnan(low):
        text = f"{mean:{form}} [{low:{form}}, {high:{form}}]"
    elif len(values) >= FEWEST:
        text = f"{mean:{form}} (all equal)"
    else:
        text = f"{mean:{form}}" + (f" ({', '.join(f'{value:{form}}' for value in values)})" if len(values) > 1 else "")
    return text.replace("-", "−")


def counted(number: int, noun: str, plural: str = "") -> str:
    """1 seed, 2 seeds; 1 batch, 2 batches."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def sign_flips(differences: FloatArray) -> float:
    """Two-sided p of one difference per seed: the share of random signs that give a mean as far from 0.

    Exact up to 13 seeds.
    """
    from scipy import stats

    if len(differences) == 1:
        return 1.0  # both of its signs are as far from 0
    generator = np.random.default_rng(0)
    found = stats.permutation_test(
        (differences,), np.mean, permutation_type="samples", n_resamples=RESAMPLES, rng=generator
    )
    return float(found.pvalue)


def smallest_p(seeds: int) -> float:
    """The least that `sign_flips` can give for so many seeds."""
    return 2.0 ** (1 - seeds) if 2**seeds <= RESAMPLES else 2 / (RESAMPLES + 1)


def visible(differences: FloatArray) -> float:
    """The true difference at which four in five t intervals would exclude 0, if seeds spread as here; nan for none."""
    from scipy import stats

    mean, _, high = interval(differences)
    freedom = len(differences) - 1
    return float((high - mean) * (1 + stats.t.ppf(0.8, freedom) / stats.t.ppf(0.975, freedom)))
