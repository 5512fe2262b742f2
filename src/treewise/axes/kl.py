"""KL to the reference: per-token estimates from log π − log π_ref, `[A]`.

                  as a loss it has the gradient of                      as a part of the reward
    k1            nothing (0 in expectation: refused)                   KL(π ‖ π_ref) of the answer
    k2            KL(π ‖ π_ref) of each token, prefixes held fixed      biased
    k3            KL(π_ref ‖ π) of each token, prefixes held fixed      biased
    k3_unbiased   that of k2, off policy too (but for the prefixes)     (refused)

Source: Schulman, "Approximating KL divergence" (2020); the gradients: arXiv 2510.01555.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from treewise.axes.ratio import MAX_LOG_RATIO, bounded_exp

if TYPE_CHECKING:
    from torch import Tensor


def k1(to_reference: Tensor, to_old: Tensor) -> Tensor:
    """`log(π/π_ref)`."""
    return to_reference


def k2(to_reference: Tensor, to_old: Tensor) -> Tensor:
    """`½ (log(π/π_ref))²`."""
    return to_reference.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO) ** 2 / 2


def k3(to_reference: Tensor, to_old: Tensor) -> Tensor:
    """`π_ref/π − log(π_ref/π) − 1`. Source: DeepSeekMath, arXiv 2402.03300, eq. 4."""
    difference = (-to_reference).clamp(max=MAX_LOG_RATIO)
    return difference.expm1() - difference


def k3_unbiased(to_reference: Tensor, to_old: Tensor) -> Tensor:
    """`ρ · k3`, with a gradient through ρ = π/π_old. Source: DeepSeek-V3.2, arXiv 2512.02556, §3.1."""
    half = MAX_LOG_RATIO / 2  # of the product of two exponentials each may have half
    return bounded_exp(to_old.clamp(max=half)) * k3(to_reference.clamp(min=-half), to_old)


# Every estimate takes log π − log π_ref and log π − log π_old.
ESTIMATORS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType(
    {"k1": k1, "k2": k2, "k3": k3, "k3_unbiased": k3_unbiased}
)
