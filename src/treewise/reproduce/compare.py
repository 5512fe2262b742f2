"""Curves of training runs against each other: how soon one reaches the peak of another.

    score │      ┌── peak of the baseline's run       reached: where the line through the other run's evaluations
          │    ╭─●──╮   ╭─── other run                         first is that high
          │  ╭─╯ ┊  ╰───╯                             ratio:   what that had cost, over what the peak had cost
          └──────┴──────────── step                            (∞ if it is never that high)

A peak is the largest of several noisy numbers, so even the baseline reaches the peak of its own other seeds sooner or
later than they did. What a ratio means can only be told beside the ratios of the baseline with itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from treewise.types import FloatArray

ROUNDING = 1e-12  # of a mean of shares: what is that high up to rounding is that high
DEALS = 10_000  # ways of dealing runs into roles that are looked at; all of them where there are no more


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


class Relabelled(NamedTuple):
    """What `sooner` is when runs are dealt into the two roles at random: 95 % of the deals lie in [low, high].

    `p` is two-sided: twice the share of deals at least as far out as the real one. `smallest` is the least it can be.
    """

    low: float
    high: float
    p: float
    smallest: float


def relabelled(pairs: FloatArray, baselines: int) -> Relabelled:
    """Permutation test of `sooner`.

    Args:
        pairs: [runs, runs] ratio of the column's run to the peak of the row's.
        baselines: so many of the first runs are the baseline's, the rest the other method's.
    """
    real = sooner(pairs[:baselines, baselines:])
    deals = np.array([sooner(pairs[np.ix_(rows, columns)]) for rows, columns in _deals(len(pairs), baselines)])
    known = deals[~np.isnan(deals)]
    smallest = 2 / len(deals)
    if math.isnan(real):
        return Relabelled(math.nan, math.nan, math.nan, smallest)
    # A deal without any ratio counts as being as far out, on both sides.
    beyond = [np.mean(np.isnan(deals) | side) for side in (deals >= real - ROUNDING, deals <= real + ROUNDING)]
    low, high = np.quantile(known, [0.025, 0.975])
    return Relabelled(float(low), float(high), min(1.0, 2 * float(min(beyond))), smallest)


def _deals(runs: int, baselines: int) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Baselines and others, every way if there are not too many; the real one is among them."""
    if math.comb(runs, baselines) <= DEALS:
        for chosen in itertools.combinations(range(runs), baselines):
            yield chosen, sorted(set(range(runs)) - set(chosen))
        return
    generator = np.random.default_rng(0)
    yield range(baselines), range(baselines, runs)
    for _ in range(DEALS - 1):
        order = generator.permutation(runs).tolist()
        yield order[:baselines], order[baselines:]
