"""The per-token objective in trajectory space, in its textbook form.

Every function takes flat tensors `[A]`, one entry per sampled token of each trajectory, and returns
per-token values; the caller multiplies by the step's coefficients and sums. Nothing here knows about
trees, micro-batches or models, and nothing takes a mean.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from treewise.presets import Objective

# exp of a larger log-ratio overflows float32 and its gradient becomes nan (0 · inf). Such a token is beyond
# repair by a gradient step; it keeps a finite value and gets no gradient.
MAX_LOG_RATIO = 80.0


def ratio(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """ρ = π/π_old, [A]. On policy `old_logprobs` is `logprobs` detached: the value is 1, the gradient is not 0."""
    return (logprobs - old_logprobs).clamp(max=MAX_LOG_RATIO).exp()


def clipped_surrogate(ratios: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float) -> Tensor:
    """min(ρ·a, clip(ρ, 1−ε_low, 1+ε_high)·a), [A]; to be maximised.

    Source: PPO, arXiv 1707.06347; two bounds: DAPO, arXiv 2503.14476.
    """
    return torch.minimum(ratios * advantages, ratios.clamp(1 - clip_low, 1 + clip_high) * advantages)


def k3(logprobs: Tensor, ref_logprobs: Tensor) -> Tensor:
    """π_ref/π − log(π_ref/π) − 1, [A]: an unbiased estimate of KL(π ‖ π_ref) under π.

    Source: Schulman, "Approximating KL divergence" (2020); DeepSeekMath, arXiv 2402.03300, eq. 4.
    """
    difference = (ref_logprobs - logprobs).clamp(max=MAX_LOG_RATIO)
    return torch.expm1(difference) - difference


class TokenTerms(NamedTuple):
    """Per-token values [A]: what is maximised, and its parts for the records (`kl` is `None` without β)."""

    objective: Tensor
    ratios: Tensor
    kl: Tensor | None


def token_terms(
    logprobs: Tensor,
    *,
    advantages: Tensor,
    old_logprobs: Tensor,
    ref_logprobs: Tensor | None,
    objective: Objective,
) -> TokenTerms:
    """min(ρ·a, clip(ρ)·a) − β·k3 for every sampled token, [A].

    Args:
        logprobs: log π of the sampled tokens, with gradient.
        advantages, old_logprobs: same shape, without gradient.
        ref_logprobs: log π_ref; needed exactly when `objective.kl_coef` is not 0.
    """
    assert logprobs.ndim == 1, f"trajectory space is flat, got shape {tuple(logprobs.shape)}"
    ratios = ratio(logprobs, old_logprobs)
    surrogate = clipped_surrogate(ratios, advantages, clip_low=objective.clip_low, clip_high=objective.clip_high)
    if objective.kl_coef == 0.0:
        return TokenTerms(surrogate, ratios, None)
    assert ref_logprobs is not None, "kl_coef is set, so reference log-probs are needed"
    kl = k3(logprobs, ref_logprobs)
    return TokenTerms(surrogate - objective.kl_coef * kl, ratios, kl)


def loss(terms: TokenTerms, coefficients: Tensor) -> Tensor:
    """−Σ coefficient · term, where the coefficients already hold |λ|^(−p), 1/length and 1/D."""
    return -(coefficients * terms.objective).sum()
