r"""What k answers to each of n problems say about a model, and about the difference of two.

    correct[n, k] ─┬─▶ avg@k     mean of every answer
                   ├─▶ pass@k    chance that one of k answers is right       1 − C(n−c, k) / C(n, k)
                   └─▶ maj@k     whether the answer that most of k agree on is right

A benchmark's problems are a sample of those that one could have asked, and answers to one problem resemble each other.
So the problem is the unit: every figure is a mean over problems of one value each, and its error comes from how these
values differ. Answers without a verdict leave, as if they had not been given.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from treewise.statistics import sign_flips
from treewise.types import FloatArray

_Z = 1.959964  # the normal distribution's 97.5 % quantile
_POWER = 0.841621  # and its 80 % quantile
_RESAMPLES = 10_000


class Mean(NamedTuple):
    """A mean over `n` problems with its standard error and 95 % interval; nan where they can't be told."""

    mean: float
    stderr: float
    low: float
    high: float
    n: int


class Paired(NamedTuple):
    """A difference of two models on the same `n` problems, with its 95 % interval.

    Attributes:
        better, worse: problems on which the first model's value is higher, or lower, than the second one's.
        p: two-sided; exact for values of 0 and 1 (McNemar's test), by random signs otherwise.
    """

    mean: float
    low: float
    high: float
    better: int
    worse: int
    n: int
    p: float


def pass_at_k(n: int, c: int, k: int) -> float:
    """The chance that of k answers, drawn without replacement from n of which c are right, one is right.

    Unbiased for the chance that one of k new answers is. Source: arXiv 2107.03374.

    Raises:
        ValueError: unless 1 ≤ k ≤ n and 0 ≤ c ≤ n.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} can't be told from {n} answers to a problem; give k from 1 to {n}")
    if not 0 <= c <= n:
        raise ValueError(f"{c} of {n} answers can't be right")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def majority(votes: Sequence[Hashable | None], right: Hashable) -> tuple[float, bool]:
    """The share of the most frequent votes that is right, and whether several are the most frequent.

    Args:
        votes: one per answer: which of the answers that mean the same it is; `None` abstains.
        right: the vote for the right answer.

    Returns:
        1 or 0; of m votes that tie 1/m if the right one is among them, as if one of them were drawn. 0 without votes.
    """
    counts: dict[Hashable, int] = {}
    for vote in votes:
        if vote is not None:
            counts[vote] = counts.get(vote, 0) + 1
    top = [vote for vote, count in counts.items() if count == max(counts.values())]
    return (1 / len(top) if right in top else 0.0), len(top) > 1


def mean_of(values: Sequence[float], *, answers: int = 1) -> Mean:
    """Mean of one value in [0, 1] per problem, its standard error, and a 95 % interval that stays in [0, 1].

    The interval is Wilson's for as many independent answers as would give the same standard error: at least one and
    at most `answers` per problem. So 0 of 30 is no certainty, and k answers to a problem count as more than one only
    as far as they differ.
    """
    n = len(values)
    if not n:
        return Mean(math.nan, math.nan, math.nan, math.nan, 0)
    array = np.asarray(values, dtype=np.float64)
    if not (np.all(array >= -1e-12) and np.all(array <= 1 + 1e-12)):
        raise ValueError(f"a share lies between 0 and 1, and these from {array.min()} to {array.max()}")
    mean = float(np.clip(array.mean(), 0.0, 1.0))
    error = float(array.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    spread = float(array.var())
    independent = n * mean * (1 - mean) / spread if spread > 0 else (n if mean in (0.0, 1.0) else n * answers)
    return Mean(mean, error, *wilson(mean, min(max(independent, n), n * answers)), n)


def wilson(share: float, n: float) -> tuple[float, float]:
    """95 % interval of a share of n independent answers. Source: Wilson 1927."""
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2)) / (1 + _Z**2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def compare(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """Our mean minus theirs, over one value of each per problem.

    The interval is the percentile bootstrap's, which draws problems; the same ones each time it is called.

    Raises:
        ValueError: unless both have the same problems, one at least.
    """
    if len(ours) != len(theirs) or not len(ours):
        raise ValueError(f"{len(ours)} and {len(theirs)} values can't be compared one by one")
    differences = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    n = len(differences)
    generator = np.random.default_rng(0)
    means = [float(differences[generator.integers(0, n, n)].mean()) for _ in range(_RESAMPLES)]
    low, high = np.quantile(means, (0.025, 0.975)) if n > 1 else (math.nan, math.nan)
    better, worse = int((differences > 1e-12).sum()), int((differences < -1e-12).sum())
    return Paired(float(differences.mean()), float(low), float(high), better, worse, n, _p(differences, better, worse))


def _p(differences: FloatArray, better: int, worse: int) -> float:
    from scipy import stats

    if not better + worse:
        return 1.0
    if bool(np.isin(differences, (-1.0, 0.0, 1.0)).all()):
        return float(stats.binomtest(better, better + worse).pvalue)
    return sign_flips(differences[np.abs(differences) > 1e-12])


class Detectable(NamedTuple):
    """How large a difference to a second model on the same problems can be told from chance.

    Attributes:
        difference: the true difference in the mean that is found (p < .05) in four of five comparisons, if the second
            model answers independently of the first.
        least: below this share no difference of one answer each is ever found: six problems in one direction and none
            in the other are the fewest with p < .05.
    """

    difference: float
    least: float


def detectable(values: Sequence[float]) -> Detectable:
    """Of one value per problem."""
    n = len(values)
    if not n:
        return Detectable(math.nan, math.nan)
    # Two right and two wrong answers more (Agresti & Coull): a model that solves nothing is no proof of no spread.
    array = np.concatenate([np.asarray(values, dtype=np.float64), [0.0, 0.0, 1.0, 1.0]])
    return Detectable(min(1.0, (_Z + _POWER) * math.sqrt(2 * array.var() / n)), min(1.0, 6 / n))
