"""Rollout correction: weights for what the sampler and the trainer compute differently from the same weights.

    k = π_old / π_sampler       truncate: min(k, 2)        mask: k inside [.5, 5], else 0
        token · sequence (product) · geometric (mean of the logarithms)

The detached weight multiplies what is maximised, not the KL and not D. A log-prob that the sampler could not tell
has k = 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from pydantic import Field

from treewise.axes.ratio import bounded_exp, trajectory_mean, trajectory_sum

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "sequence", "geometric"]
_LEVEL = "token, sequence (product of its ratios) or geometric (their geometric mean)"


class Correction(Protocol):
    """A rule from log π_old − log π_sampler to a weight, `[A]`."""

    def __call__(self, log_ratios: Tensor, trajectory: Tensor) -> Tensor:
        """The weight of every token."""
        ...


@dataclass(frozen=True, slots=True)
class NoCorrection:
    """`1`: the mismatch is measured and not corrected."""

    def __call__(self, log_ratios: Tensor, trajectory: Tensor) -> Tensor:
        return log_ratios.new_ones(log_ratios.shape)


def _at(level: Level, log_ratios: Tensor, trajectory: Tensor) -> Tensor:
    match level:
        case "token":
            return bounded_exp(log_ratios)
        case "sequence":
            return bounded_exp(trajectory_sum(log_ratios, trajectory))
        case "geometric":
            return bounded_exp(trajectory_mean(log_ratios, trajectory))


@dataclass(frozen=True, slots=True)
class Truncate:
    """`clip(k, low, high)`: truncated importance sampling.

    Source: Yao et al., "Your efficient RL framework secretly brings you off-policy RL training" (2025).
    """

    correction_level: Annotated[Level, Field(description=f"what k compares: {_LEVEL}")] = "token"
    correction_low: Annotated[float, Field(ge=0, le=1, description="smallest weight k")] = 0.0
    correction_high: Annotated[float, Field(ge=1, description="largest weight k")] = 2.0

    def __call__(self, log_ratios: Tensor, trajectory: Tensor) -> Tensor:
        return _at(self.correction_level, log_ratios, trajectory).clamp(self.correction_low, self.correction_high)


@dataclass(frozen=True, slots=True)
class Mask:
    """`k` where low ≤ k ≤ high, else 0: masked importance sampling. Source: IcePop, Ring-1T, arXiv 2510.18855."""

    correction_level: Annotated[Level, Field(description=f"what k compares: {_LEVEL}")] = "token"
    correction_low: Annotated[float, Field(ge=0, le=1, description="smallest weight k")] = 0.5
    correction_high: Annotated[float, Field(ge=1, description="largest weight k")] = 5.0

    def __call__(self, log_ratios: Tensor, trajectory: Tensor) -> Tensor:
        weights = _at(self.correction_level, log_ratios, trajectory)
        return weights.masked_fill((weights < self.correction_low) | (weights > self.correction_high), 0.0)


CORRECTIONS: Mapping[str, type[Correction]] = MappingProxyType(
    {"none": NoCorrection, "truncate": Truncate, "mask": Mask}
)
