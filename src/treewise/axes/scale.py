"""Scale: what advantages are divided by, over the groups of one batch.

Functions of three lists with an entry per group: the advantages ([A], or [G] where a rule gives one to each answer),
for how many sampled tokens each of them stands, and the values that the rule compared: the answers' rewards, or all
step rewards. The result has the advantages' shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from treewise.axes.advantage import SPREAD_TOLERANCE, STD_EPSILON
from treewise.types import FloatArray

Arrays = Sequence[FloatArray]


def std(advantages: Arrays, tokens: Arrays, compared: Arrays) -> list[FloatArray]:
    """`a / (std r + ε)`, of the group's rewards (or all of its step rewards), ddof 1.

    Source: GRPO, arXiv 2402.03300; ddof and ε = 1e-4 are TRL's.
    """
    return [a / (_std(values) + STD_EPSILON) for a, values in zip(advantages, compared, strict=True)]


def none(advantages: Arrays, tokens: Arrays, compared: Arrays) -> list[FloatArray]:
    """`a`. Source: Dr. GRPO, arXiv 2503.20783."""
    return list(advantages)


def mean(advantages: Arrays, tokens: Arrays, compared: Arrays) -> list[FloatArray]:
    """`a / mean r` of the group, for rewards ≥ 0. Source: MaxRL, arXiv 2602.02710, algorithm 1."""
    lowest = min((float(values.min()) for values in compared if len(values)), default=0.0)
    if lowest < 0:
        raise ValueError(f"scale 'mean' needs rewards of at least 0, and there is one of {lowest:g}; use another scale")
    return [a / (values.mean() if values.any() else 1.0) for a, values in zip(advantages, compared, strict=True)]


def batch_std(advantages: Arrays, tokens: Arrays, compared: Arrays) -> list[FloatArray]:
    """`a / (std + ε)` of all rewards of the batch, ddof 1. Source: TRL's scale_rewards = "batch"; arXiv 2508.08221."""
    deviation = _std(np.concatenate([np.empty(0), *compared]))
    return [a / (deviation + STD_EPSILON) for a in advantages]


def whiten(advantages: Arrays, tokens: Arrays, compared: Arrays) -> list[FloatArray]:
    """`(a − mean) / (std + ε)` over the batch's answers, ddof 1. Source: REINFORCE++ with baseline, GDPO."""
    return _whiten(advantages, [np.ones(len(a)) for a in advantages])


def whiten_tokens(advantages: Arrays, tokens: Arrays, compared: Arrays) -> list[FloatArray]:
    """`(a − mean) / (std + ε)` over the batch's sampled tokens, ddof 1. Source: REINFORCE++, arXiv 2501.03262."""
    return _whiten(advantages, tokens)


def _whiten(advantages: Arrays, counts: Arrays) -> list[FloatArray]:
    """Subtract the mean and divide by the deviation of values that count so many times."""
    values, times = (np.concatenate([np.empty(0), *arrays]) for arrays in (advantages, counts))
    if times.sum() < 2 or np.ptp(values[times > 0]) <= SPREAD_TOLERANCE:
        return [np.zeros_like(a) for a in advantages]
    mean = (times @ values) / times.sum()
    if abs(mean) <= 1e-12 * np.abs(values).max():
        mean = 0.0  # it is 0 but for rounding, and what is exactly 0 must stay so
    deviation = np.sqrt(times @ (values - mean) ** 2 / (times.sum() - 1))
    return [(a - mean) / (deviation + STD_EPSILON) for a in advantages]


def _std(values: FloatArray) -> float:
    """Sample standard deviation; 0 for fewer than two values."""
    return float(values.std(ddof=1)) if len(values) > 1 else 0.0


SCALES: Mapping[str, Callable[[Arrays, Arrays, Arrays], list[FloatArray]]] = MappingProxyType(
    {
        "std": std,
        "none": none,
        "mean": mean,
        "batch_std": batch_std,
        "whiten": whiten,
        "whiten_tokens": whiten_tokens,
    }
)
