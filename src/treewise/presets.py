"""The table of published objectives: a method is a row of options, not a class.

Every option is explained once, in `Objective`. A preset names a paper and sets the options in which
it differs; the user's own options go on top of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

Aggregation = Literal["sequence", "token", "constant"]
Scale = Literal["std", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """`loss = −1/D · Σ_it |λ(i,t)|^(−p) · [min(ρ·a, clip(ρ, 1−ε_low, 1+ε_high)·a) − β·k3]`, resolved.

    Attributes:
        scale: divide the centred reward by the group's standard deviation, or not.
        aggregation: what D is, over all groups of the optimizer step: `token` the sampled tokens,
            `sequence` the trajectories (each token is also divided by its trajectory's length),
            `constant` trajectories × `max_completion_tokens`.
        weight_exponent: p; 0 weighs every token alike, 1 is λ-GRPO.
        clip_low, clip_high: ε_low and ε_high of the trust region.
        kl_coef: β, the weight of the k3 estimate of KL(π ‖ π_ref).
        max_completion_tokens: the constant of `constant` aggregation; `None` elsewhere.
    """

    scale: Scale = "std"
    aggregation: Aggregation = "token"
    weight_exponent: float = 0.0
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.0
    max_completion_tokens: int | None = None

    def __str__(self) -> str:
        constant = f" of {self.max_completion_tokens} tokens an answer" if self.max_completion_tokens else ""
        return (
            f"aggregation {self.aggregation}{constant} · scale {self.scale} · clip {self.clip_low:g}/{self.clip_high:g}"
            f" · weight |λ|^-{self.weight_exponent:g} · KL {self.kl_coef:g}"
        )


@dataclass(frozen=True, slots=True)
class Preset:
    """One row of the table: where the method comes from and the options that make it."""

    source: str
    options: Mapping[str, Any]


def _row(source: str, **options: Any) -> Preset:
    return Preset(source, MappingProxyType(options))


PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "grpo": _row("DeepSeekMath, arXiv 2402.03300", aggregation="sequence", scale="std"),
        "dr_grpo": _row("Dr. GRPO, arXiv 2503.20783", aggregation="constant", scale="none"),
        "dapo": _row("DAPO, arXiv 2503.14476", aggregation="token", scale="std", clip_high=0.28),
        "lambda_grpo": _row("λ-GRPO, arXiv 2509.21154", aggregation="token", scale="std", weight_exponent=1.0),
    }
)


def resolve(preset: str, overrides: Mapping[str, Any], *, max_new_tokens: int | None = None) -> Objective:
    """The options of a preset with the user's own on top.

    Args:
        preset: a name of the table.
        overrides: options that differ from the preset.
        max_new_tokens: the sampler's limit, the default of `max_completion_tokens` where that is needed.

    Raises:
        ValueError: for an unknown preset, or `max_completion_tokens` where it has no effect or is missing.
    """
    if preset not in PRESETS:
        raise ValueError(f"unknown preset {preset!r}; there are {', '.join(PRESETS)}")
    objective = Objective(**{**PRESETS[preset].options, **overrides})
    if objective.aggregation == "constant" and objective.max_completion_tokens is None:
        if max_new_tokens is not None:
            return replace(objective, max_completion_tokens=max_new_tokens)
        raise ValueError(
            "aggregation 'constant' divides by trajectories × max_completion_tokens: "
            "set objective.max_completion_tokens"
        )
    if objective.aggregation != "constant" and objective.max_completion_tokens is not None:
        raise ValueError(
            f"objective.max_completion_tokens = {objective.max_completion_tokens} has no effect with "
            f"aggregation {objective.aggregation!r}; leave it out or choose aggregation 'constant'"
        )
    return objective
