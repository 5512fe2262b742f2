"""Trust region: how far a token may move the policy away from the one that sampled it.

    surrogate
        │        ┌───── clip: no gradient beyond 1 + ε            cispo: weight capped, gradient stays
        │      ╱ ╎      (a > 0)                                   sapo: fades smoothly
        │    ╱   ╎                                                dppo: off where π left the sampler's policy
        └──┴─────┴──▶ ρ
           1   1 + ε

Every region is a small frozen object with its options and a pure function of `Tokens`. At ρ = 1 all of them have the
gradient of the unclipped form, ρ · a (for `log_clip` that of an answer's mean ρ); their values may differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Protocol

from pydantic import Field

from treewise.axes.ratio import bounded_exp, trajectory_mean

if TYPE_CHECKING:
    from torch import Tensor


class Tokens(NamedTuple):
    """What a region looks at, one entry per sampled token, `[A]`. A gradient flows through `logprobs` and
    `log_ratios` only.

    Attributes:
        logprobs: log π.
        base_logprobs: log-probs of the policy that the ratio compares with.
        advantages: a.
        trajectory: which trajectory the token belongs to.
        log_ratios: log ρ at the objective's ratio level.
    """

    logprobs: Tensor
    base_logprobs: Tensor
    advantages: Tensor
    trajectory: Tensor
    log_ratios: Tensor


class Surrogate(NamedTuple):
    """`values` [A] are to be maximised; `clipped` [A] marks tokens whose gradient the region cut off or capped."""

    values: Tensor
    clipped: Tensor


class TrustRegion(Protocol):
    """A rule from tokens to what is maximised."""

    def __call__(self, tokens: Tokens) -> Surrogate:
        """The surrogate of every token."""
        ...


def _none(tokens: Tokens) -> Tensor:
    """No token is clipped."""
    return tokens.advantages.new_zeros(tokens.advantages.shape).bool()


@dataclass(frozen=True, slots=True)
class Unclipped:
    """`ρ · a`: the importance-weighted policy gradient."""

    def __call__(self, tokens: Tokens) -> Surrogate:
        values = bounded_exp(tokens.log_ratios) * tokens.advantages
        return Surrogate(values, _none(tokens))


@dataclass(frozen=True, slots=True)
class Clip:
    """`min(min(ρ, δ) · a, clip(ρ, 1 − ε_low, 1 + ε_high) · a)`; without δ it's `min(ρ · a, clip(ρ) · a)`.

    δ takes the gradient from tokens of a < 0 whose ρ has exploded. Source: PPO, arXiv 1707.06347; two bounds: DAPO,
    arXiv 2503.14476; δ: INTELLECT-2, arXiv 2505.07291.
    """

    clip_low: Annotated[float, Field(gt=0, le=1, description="ε below 1 of the ratio clip")] = 0.2
    clip_high: Annotated[float, Field(gt=0, description="ε above 1 of the ratio clip")] = 0.2
    clip_max: Annotated[float | None, Field(gt=1, description="δ, bound of the ratio where a < 0; none: no bound")] = (
        None
    )

    def __post_init__(self) -> None:
        if self.clip_max is not None and self.clip_max <= 1 + self.clip_high:
            raise ValueError(
                f"objective.clip_max = {self.clip_max:g} must be above 1 + clip_high = {1 + self.clip_high:g}; "
                "below, it would move the upper clip"
            )

    def __call__(self, tokens: Tokens) -> Surrogate:
        ratios, advantages = bounded_exp(tokens.log_ratios), tokens.advantages
        low, high = 1 - self.clip_low, 1 + self.clip_high
        raw = ratios if self.clip_max is None else ratios.clamp(max=self.clip_max)
        values = (raw * advantages).minimum(ratios.clamp(low, high) * advantages)
        clipped = ((ratios < low) & (advantages < 0)) | ((ratios > high) & (advantages > 0))
        if self.clip_max is not None:
            clipped = clipped | ((ratios > self.clip_max) & (advantages < 0))
        return Surrogate(values, clipped)


@dataclass(frozen=True, slots=True)
class Cispo:
    """`sg(min(ρ, cap)) · a · log π`: the weight is capped, no token loses its gradient.

    Source: CISPO, arXiv 2506.13585, whose cap is not published; 5 is what TRL recommends, after ScaleRL,
    arXiv 2510.13786.
    """

    weight_max: Annotated[float, Field(ge=1, description="cap of the detached ratio, absolute (not 1 + ε)")] = 5.0

    def __call__(self, tokens: Tokens) -> Surrogate:
        weights = bounded_exp(tokens.log_ratios.detach())
        values = weights.clamp(max=self.weight_max) * tokens.advantages * tokens.logprobs
        return Surrogate(values, (weights > self.weight_max) & (tokens.advantages != 0))


@dataclass(frozen=True, slots=True)
class LogClip:
    """`exp(mean over the answer of clipped log ρ) · a`: min(log ρ, ε_high) where a > 0, max(log ρ, −ε_low) where a < 0.

    The clip comes before the mean, so a clipped token still scales the others. Source: GMPO, arXiv 2507.20673.
    """

    log_clip_low: Annotated[float, Field(gt=0, description="bound below of log ρ, where a < 0")] = 0.4
    log_clip_high: Annotated[float, Field(gt=0, description="bound above of log ρ, where a > 0")] = 0.4

    def __call__(self, tokens: Tokens) -> Surrogate:
        advantages, log_ratios = tokens.advantages, tokens.log_ratios
        high = (advantages > 0) & (log_ratios > self.log_clip_high)
        low = (advantages < 0) & (log_ratios < -self.log_clip_low)
        inside = log_ratios.masked_fill(high, self.log_clip_high).masked_fill(low, -self.log_clip_low)
        return Surrogate(bounded_exp(trajectory_mean(inside, tokens.trajectory)) * advantages, high | low)


@dataclass(frozen=True, slots=True)
class Sapo:
    """`4/τ · σ(τ(ρ − 1)) · a`, τ by the sign of a: a smooth gate in the place of a clip. At ρ = 1 it is worth 2a/τ.

    Source: SAPO, arXiv 2511.20347.
    """

    gate_positive: Annotated[float, Field(gt=0, description="τ of the gate where a > 0")] = 1.0
    gate_negative: Annotated[float, Field(gt=0, description="τ of the gate where a ≤ 0")] = 1.05

    def __call__(self, tokens: Tokens) -> Surrogate:
        ratios, advantages = bounded_exp(tokens.log_ratios), tokens.advantages
        tau = ratios.detach().new_full(ratios.shape, self.gate_negative).masked_fill(advantages > 0, self.gate_positive)
        values = 4 / tau * (tau * (ratios - 1)).sigmoid() * advantages
        return Surrogate(values, _none(tokens))


@dataclass(frozen=True, slots=True)
class Dppo:
    """`keep · sg(min(ρ, cap)) · a · log π`; a token that moved further than its divergence bound, and moves on, is off.

    With p = π and q = the sampling policy's probability of the token, the divergence is |p − q| (tv) or that of two
    Bernoulli variables, KL(q ‖ p). Source: DPPO, arXiv 2602.04879 (its binary forms).
    """

    divergence: Annotated[Literal["tv", "kl"], Field(description="measure of the distance of a token")] = "tv"
    divergence_low: Annotated[float, Field(gt=0, description="bound where a < 0 and π fell")] = 0.15
    divergence_high: Annotated[float, Field(gt=0, description="bound where a > 0 and π rose")] = 0.15
    weight_max: Annotated[float, Field(ge=1, description="cap of the detached ratio, absolute (not 1 + ε)")] = 20.0

    def __call__(self, tokens: Tokens) -> Surrogate:
        now, base, advantages = tokens.logprobs.detach(), tokens.base_logprobs, tokens.advantages
        p, q = now.exp(), base.exp()
        distance = (p - q).abs() if self.divergence == "tv" else _bernoulli_kl(q, base, p, now)
        off = ((advantages > 0) & (p > q) & (distance > self.divergence_high)) | (
            (advantages < 0) & (p < q) & (distance > self.divergence_low)
        )
        weights = bounded_exp(tokens.log_ratios.detach()).clamp(max=self.weight_max)
        return Surrogate((weights * advantages).masked_fill(off, 0.0) * tokens.logprobs, off)


def _bernoulli_kl(q: Tensor, log_q: Tensor, p: Tensor, log_p: Tensor) -> Tensor:
    """KL(Bernoulli q ‖ Bernoulli p), exact for tokens that are nearly sure; infinite where only p is 1."""
    rest_q, rest_p = (-log_q.expm1()).clamp(min=0), (-log_p.expm1()).clamp(min=0)
    return q * (log_q - log_p) + (rest_q * (rest_q.log() - rest_p.log())).masked_fill(rest_q <= 0, 0.0)


@dataclass(frozen=True, slots=True)
class Vespo:
    """`sg(φ(W)) · a · log π` with `φ(W) = W^c · exp(l · (1 − W))`, c and l by the sign of a; W is the answer's ratio.

    W is kept within 1e-8 and e²⁰. Source: VESPO, arXiv 2602.10693.
    """

    shape_positive: Annotated[float, Field(gt=0, description="exponent c of W where a ≥ 0")] = 2.0
    rate_positive: Annotated[float, Field(gt=0, description="rate l of W where a ≥ 0")] = 3.0
    shape_negative: Annotated[float, Field(gt=0, description="exponent c of W where a < 0")] = 3.0
    rate_negative: Annotated[float, Field(gt=0, description="rate l of W where a < 0")] = 2.0

    def __call__(self, tokens: Tokens) -> Surrogate:
        # The bounds are those of the authors' code: W of 1e-8 to e²⁰.
        log_weights, negative = tokens.log_ratios.detach().clamp(math.log(1e-8), 20.0), tokens.advantages < 0
        shape = log_weights.new_full(log_weights.shape, self.shape_positive).masked_fill(negative, self.shape_negative)
        rate = log_weights.new_full(log_weights.shape, self.rate_positive).masked_fill(negative, self.rate_negative)
        phi = (shape * log_weights + rate * (1 - log_weights.exp())).exp()
        return Surrogate(phi * tokens.advantages * tokens.logprobs, _none(tokens))


TRUST_REGIONS: Mapping[str, type[TrustRegion]] = MappingProxyType(
    {
        "none": Unclipped,
        "clip": Clip,
        "cispo": Cispo,
        "log_clip": LogClip,
        "sapo": Sapo,
        "dppo": Dppo,
        "vespo": Vespo,
    }
)
