"""Ratio level: what ρ compares, the token or the whole answer. Functions of log π − log π_old, `[A]` → `[A]`.

token            d_t                       one ratio a token (PPO, GRPO)
sequence         mean over the answer      the geometric mean of its tokens' ratios (GSPO)
sequence_token   sg(mean) + log π − sg(log π)
product          sum over the answer       the ratio of the whole answer (RLOO, VESPO)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# exp of a larger log-ratio overflows float32 and its gradient becomes nan (0 · inf). Such a token is beyond
# repair by a gradient step; it keeps a finite value and gets no gradient.
MAX_LOG_RATIO = 80.0


def bounded_exp(log_ratios: Tensor) -> Tensor:
    """ρ = exp(log ρ), finite for every log-ratio."""
    return log_ratios.clamp(max=MAX_LOG_RATIO).exp()


def trajectory_sum(values: Tensor, trajectory: Tensor) -> Tensor:
    """[A] each token's entry is the sum over its trajectory's sampled tokens."""
    count = int(trajectory.max()) + 1 if len(trajectory) else 0
    return values.new_zeros(count).index_add(0, trajectory, values)[trajectory]


def trajectory_mean(values: Tensor, trajectory: Tensor) -> Tensor:
    """[A] each token's entry is the mean over its trajectory's sampled tokens."""
    return trajectory_sum(values, trajectory) / trajectory_sum(values.new_ones(values.shape), trajectory)


def token(log_ratios: Tensor, trajectory: Tensor) -> Tensor:
    """`log ρ_t = log π − log π_old`. Source: PPO, arXiv 1707.06347."""
    return log_ratios


def sequence(log_ratios: Tensor, trajectory: Tensor) -> Tensor:
    """`log s_i = mean_t log ρ_t`, one for the whole answer. Source: GSPO, arXiv 2507.18071, eq. 7."""
    return trajectory_mean(log_ratios, trajectory)


def sequence_token(log_ratios: Tensor, trajectory: Tensor) -> Tensor:
    """`log s_it = sg(log s_i) + log π − sg(log π)`: the answer's value, the token's gradient.

    Equal to `sequence` where an answer has one advantage. Source: GSPO-token, arXiv 2507.18071, eq. 14.
    """
    return trajectory_mean(log_ratios, trajectory).detach() + log_ratios - log_ratios.detach()


def product(log_ratios: Tensor, trajectory: Tensor) -> Tensor:
    """`log W_i = Σ_t log ρ_t`: the answer as one action. Source: RLOO, arXiv 2402.14740."""
    return trajectory_sum(log_ratios, trajectory)


RATIOS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"token": token, "sequence": sequence, "sequence_token": sequence_token, "product": product}
)
