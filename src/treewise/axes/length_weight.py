"""Length weight: what an answer's terms count besides |λ|^(−p), by its length.

Not to be taken for the λ-GRPO of arXiv 2509.21154, whose λ is a process set: this paper's λ is a learned scalar.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class NoLengthWeight:
    """`1`."""


@dataclass(frozen=True, slots=True)
class LearnedPreference:
    """`G · softmax_i(h_i^λ)` with `h_i = 1 + r · (len_i − mean)/std`; λ is one scalar, learned with the policy.

    The standard deviation is the population's. λ = 0 weighs all alike. Where λ starts and how fast it learns we could
    not find; the defaults are ours. Source: "λ-GRPO: Unifying the GRPO Frameworks with Learnable Token Preferences",
    arXiv 2510.06870.
    """

    preference_spread: Annotated[float, Field(gt=0, description="r, how far lengths spread around 1")] = 1 / 9
    preference_start: Annotated[float, Field(ge=-50, le=50, description="λ before training")] = 0.0
    preference_rate: Annotated[float, Field(gt=0, le=1, description="learning rate of λ")] = 0.01

    def check(self, group_size: int) -> None:
        """Refuse an r that makes h negative for some lengths: |z| goes up to √(G − 1)."""
        if self.preference_spread**2 * (group_size - 1) >= 1:
            raise ValueError(
                f"objective.preference_spread = {self.preference_spread:g} can make 1 + r · z negative for groups of "
                f"{group_size}; it must be below 1/√(G − 1) = {(group_size - 1) ** -0.5:.3g}"
            )

    def __call__(self, lengths: Tensor, preference: Tensor) -> Tensor:
        """[G] weights that sum to G, with a gradient to `preference`; `check` says for which G."""
        if len(lengths) == 0 or lengths.min() == lengths.max():
            return lengths.new_ones(lengths.shape)
        bases = 1 + self.preference_spread * (lengths - lengths.mean()) / lengths.std(correction=0)
        if bases.min() <= 0:
            self.check(len(lengths))
        # Bounded, so that no power overflows to infinity; the softmax is saturated long before.
        return len(lengths) * (bases**preference).clamp(max=1e6).softmax(0)


LengthWeight = NoLengthWeight | LearnedPreference
LENGTH_WEIGHTS: Mapping[str, type[LengthWeight]] = MappingProxyType(
    {"none": NoLengthWeight, "learned": LearnedPreference}
)
