"""Curves of training runs against each other: how soon one reaches the peak of another.

    score │      ┌── peak of the baseline's run       reached: where the line through the other run's evaluations
          │    ╭─●──╮   ╭─── other run                         first is that high
          │  ╭─╯ ┊  ╰───╯                             ratio:   what that had cost, over what the peak had cost
          └──────┴──────────── step                            (∞ if it is never that high)

A peak is the largest of several noisy numbers, so even the baseline reaches the peak of its own other seeds sooner or
later than they did. What a ratio means can only be told beside the ratios of the baseline with itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from treewise.statistics import RESAMPLES, ROUNDING
from treewise.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Curve:
    """Evaluations of one run.

    Attributes:
        score: [n] held-out mean at each evaluation, the first before training.
        cost: name → [n] what had been spent until then: steps, sampled tokens, seconds.
    """

    score: FloatArray
    cost: dict[str, FloatArray]


def centred_mean(values: FloatArray, window: int) -> FloatArray:
    """Mean of each value and its neighbours, `window` (odd) in all; at both ends of those that there are."""
    half = window // 2
    return np.array([values[max(0, at - half) : at + half + 1].mean() for at in range(len(values))])


def peak(curve: Curve, window: int) -> tuple[int, float]:
    """At which evaluation the running mean is highest (the first of equals), and that value."""
    smooth = centred_mean(curve.score, window)
    return int(np.argmax(smooth >= smooth.max() - ROUNDING)), float(smooth.max())


def reached(curve: Curve, height: float, window: int) -> float:
    """Where the line through the running means first is at `height`, in evaluations; ∞ if nowhere."""
    smooth = centred_mean(curve.score, window)
    there = np.flatnonzero(smooth >= height - ROUNDING)
    if not len(there):
        return math.inf
    at = int(there[0])
    if at == 0:
        return 0.0
    share = (height - smooth[at - 1]) / (smooth[at] - smooth[at - 1])
    return at - 1 + min(1.0, float(share))


def ratios(baseline: Curve, other: Curve, *, window: int) -> dict[str, float]:
    """Per cost, what `other` spends to reach the peak of `baseline`, over what the baseline spent: ∞ if it never does.

    nan where the baseline is best before any training: there is no peak to reach then.
    """
    at, height = peak(baseline, window)
    if at == 0:
        return dict.fromkeys(baseline.cost, math.nan)
    place = reached(other, height, window)
    if math.isinf(place):
        return dict.fromkeys(baseline.cost, math.inf)
    evaluations = np.arange(len(other.score))
    return {
        name: float(np.interp(place, evaluations, other.cost[name]) / spent[at])
        for name, spent in baseline.cost.items()
    }


def sooner(values: FloatArray) -> float:
    """Share of the ratios below 1, a tie counting half; nan if there is none."""
    known = values[~np.isnan(values)]
    return float(((known < 1) + 0.5 * (known == 1)).mean()) if len(known) else math.nan


class PermutationTest(NamedTuple):
    """What `sooner` is if the labels meant nothing: [low, high] holds it in 95 % of the permutations of the runs.

    `p` is two-sided, and `smallest` the least that it can be.
    """

    low: float
    high: float
    p: float
    smallest: float


def permutation_test(pairs: FloatArray, baselines: int) -> PermutationTest:
    """Whether `sooner` is what it would be if runs were labelled at random, which is the baseline's and which not.

    Args:
        pairs: [runs, runs] ratio of the column's run to the peak of the row's.
        baselines: so many of the first runs are the baseline's, the rest the other method's.
    """
    from scipy import stats

    def statistic(rows: IntArray, columns: IntArray) -> float:
        return sooner(pairs[np.ix_(rows, columns)])

    runs = np.arange(len(pairs))
    found = stats.permutation_test(
        (runs[:baselines], runs[baselines:]),
        statistic,
        vectorized=False,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(0),
    )
    drawn = found.null_distribution
    smallest = 2 / (len(drawn) + (math.comb(len(pairs), baselines) > RESAMPLES))
    known = drawn[~np.isnan(drawn)]
    if math.isnan(found.statistic):
        return PermutationTest(math.nan, math.nan, math.nan, smallest)
    low, high = np.quantile(known, [0.025, 0.975])
    # A permutation without any ratio counts as being as far out, on both sides.
    p = min(1.0, float(found.pvalue) + 2 * float(np.isnan(drawn).mean()))
    return PermutationTest(float(low), float(high), p, smallest)
