"""Curves of training runs against each other: how soon one reaches another's peak, and what differs at the end.

    score │      ┌── peak of the baseline's run        reached: the first evaluation at which the other run's
          │    ╭─●──╮   ╭─── other run                 running mean is at least that high
          │  ╭─╯ ┊  ╰───╯                              ratio:   its step over the step of the peak
          └──────┴──────────── step                             (∞ if it never gets there)

The peak is the largest of several noisy numbers, so even the baseline reaches the peak of its own other seeds at
another step than their own. What a ratio means can only be told beside the ratios of the baseline with itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treewise.types import FloatArray

ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Curve:
    """Evaluations of one run.

    Attributes:
        score: [n] held-out mean at each evaluation, the first before training.
        cost: name → [n] what had been spent until then: steps, sampled tokens, seconds.
    """

    score: FloatArray
    cost: dict[str, FloatArray]


def trailing_mean(values: FloatArray, window: int) -> FloatArray:
    """Mean of each value and up to `window` − 1 before it, so that no evaluation knows a later one."""
    return np.array([values[max(0, end - window) : end].mean() for end in range(1, len(values) + 1)])


def _first_at(values: FloatArray, height: float) -> int | None:
    # A mean of shares is rounded: what is that high up to rounding is that high.
    there = np.flatnonzero(values >= height - ROUNDING)
    return int(there[0]) if len(there) else None


def peak(curve: Curve, window: int) -> tuple[int, float]:
    """At which evaluation the running mean is highest (the first of equals), and that value."""
    smooth = trailing_mean(curve.score, window)
    height = float(smooth.max())
    at = _first_at(smooth, height)
    assert at is not None, "a curve reaches its own peak"
    return at, height


def ratios(baseline: Curve, other: Curve, *, window: int) -> dict[str, float]:
    """Per cost, what `other` spends to reach the peak of `baseline`, over what the baseline spent: ∞ if it never does.

    nan where the baseline is best before any training: there is no peak to reach then.
    """
    at, height = peak(baseline, window)
    there = _first_at(trailing_mean(other.score, window), height)
    if at == 0:
        return dict.fromkeys(baseline.cost, float("nan"))
    if there is None:
        return dict.fromkeys(baseline.cost, float("inf"))
    return {name: float(other.cost[name][there] / cost[at]) for name, cost in baseline.cost.items()}


def sooner(values: FloatArray) -> float:
    """Share of the ratios below 1, a tie counting half: ½ is what equal methods tend to, apart from the peak's luck."""
    known = values[~np.isnan(values)]
    return float(((known < 1) + 0.5 * (known == 1)).mean()) if len(known) else float("nan")


def relabelled(pairs: FloatArray, baselines: Sequence[int], others: Sequence[int]) -> float:
    """Permutation p-value of `sooner`: how often runs dealt at random into the two roles give as large a share.

    Args:
        pairs: [runs, runs] ratio of the column's run to the peak of the row's; exact up to 10,000 deals.
    """
    from scipy import stats

    def share(a: FloatArray, b: FloatArray) -> float:
        return sooner(pairs[np.ix_(a.astype(int), b.astype(int))])

    found = stats.permutation_test(
        (np.array(baselines), np.array(others)),
        share,
        vectorized=False,
        n_resamples=10_000,
        alternative="greater",
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)
