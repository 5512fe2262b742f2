"""The per-token objective in trajectory space, in its textbook form.

    log π − log π_old ──ratio level──▶ log ρ ──trust region──▶ surrogate(ρ, a) ─ β · kl ──▶ loss = −Σ coefficient · term

Everything is a flat tensor `[A]`, one entry per sampled token of each trajectory; the caller multiplies by the step's
coefficients and sums. Nothing here knows about trees, micro-batches or models, and nothing takes a mean.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from treewise.axes import Objective
from treewise.axes.kl import ESTIMATORS
from treewise.axes.length_weight import LearnedPreference
from treewise.axes.ratio import RATIOS, bounded_exp
from treewise.axes.trust_region import Tokens
from treewise.credit import CreditedGroup


class TokenTerms(NamedTuple):
    """Per-token values [A]: what is maximised, and its parts for the records.

    `ratios` are at the objective's level, `clipped` marks tokens that the trust region acts on, `corrections` are the
    weights against the sampler's mismatch, and `kl` is `None` without a KL term in the loss.
    """

    objective: Tensor
    ratios: Tensor
    clipped: Tensor
    corrections: Tensor
    kl: Tensor | None


def token_terms(
    logprobs: Tensor,
    *,
    advantages: Tensor,
    old_logprobs: Tensor,
    sampler_logprobs: Tensor,
    ref_logprobs: Tensor | None,
    trajectory: Tensor,
    objective: Objective,
) -> TokenTerms:
    """surrogate(ρ, a) − β·kl for every sampled token, [A].

    Args:
        logprobs: log π of the sampled tokens, with gradient.
        advantages, old_logprobs: same shape, without gradient. On policy `old_logprobs` is `logprobs` detached: then
            the ratio is 1, its gradient is not 0.
        sampler_logprobs: what the sampler reported, nan (or infinite) where it could not tell.
        ref_logprobs: log π_ref; needed exactly when there is a KL term in the loss.
        trajectory: which trajectory a token belongs to; all its sampled tokens must be here.
    """
    assert logprobs.ndim == 1, f"trajectory space is flat, got shape {tuple(logprobs.shape)}"
    sampler_logprobs = torch.where(sampler_logprobs.isfinite(), sampler_logprobs, old_logprobs)
    corrections = objective.correction(old_logprobs - sampler_logprobs, trajectory)
    base = sampler_logprobs if objective.ratio_base == "sampler" else old_logprobs
    log_ratios = RATIOS[objective.ratio](logprobs - base, trajectory)
    surrogate = objective.trust_region(Tokens(logprobs, base, advantages, trajectory, log_ratios))
    values = corrections * surrogate.values
    ratios = bounded_exp(log_ratios)
    if objective.kl_coef == 0.0 or objective.kl_in == "reward":
        return TokenTerms(values, ratios, surrogate.clipped, corrections, None)
    assert ref_logprobs is not None, "kl_coef is set, so reference log-probs are needed"
    kl = ESTIMATORS[objective.kl_estimator](logprobs - ref_logprobs, logprobs - old_logprobs)
    return TokenTerms(values - objective.kl_coef * kl, ratios, surrogate.clipped, corrections, kl)


def length_weights(group: CreditedGroup, objective: Objective, preference: Tensor) -> Tensor:
    """The learned weight of each scored trajectory, by the lengths of those that the loss counts (1 elsewhere), [G]."""
    assert isinstance(objective.length_weight, LearnedPreference)
    counted = torch.as_tensor(group.trained)
    lengths = torch.as_tensor(group.tree.lengths, dtype=torch.float64)
    weights = objective.length_weight(lengths[counted], preference)
    return lengths.new_ones(len(lengths)).masked_scatter(counted, weights)


def loss(terms: TokenTerms, coefficients: Tensor) -> Tensor:
    """−Σ coefficient · term, where the coefficients already hold |λ|^(−p), 1/length and 1/D."""
    return -(coefficients * terms.objective).sum()
