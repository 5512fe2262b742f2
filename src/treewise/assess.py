"""Credit of a batch, with what the policy must be asked before it moves.

    groups ─▶ credit ─┬─▶ KL in the reward: log π_old, log π_ref ─▶ credit again ─┬─▶ credited groups
                      └─▶ top entropy: entropies ─▶ no advantage for sure tokens ─┘

Most objectives need neither, and then this is `credit`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from treewise.axes import Objective
from treewise.axes.kl import ESTIMATORS
from treewise.credit import CreditedGroup, credit
from treewise.packing import MicroBatch, pack
from treewise.policy import Policy
from treewise.types import FloatArray, Group


def assess(
    groups: Sequence[Group],
    policy: Policy,
    objective: Objective,
    *,
    weights: Mapping[str, float] | None = None,
    budget: int,
) -> tuple[list[CreditedGroup], dict[str, float]]:
    """Credit a sampled batch; `policy` must still be the one that sampled it.

    Args:
        weights: of the reward functions by name.
        budget: tokens of a forward pass.

    Returns:
        The credited groups, and means over their sampled tokens for the records.
    """
    credited = credit(groups, objective, weights=weights)
    metrics: dict[str, float] = {}
    if objective.kl_coef and objective.kl_in == "reward":
        old = _per_group(credited, policy, policy.logprobs, budget)
        ref = _per_group(credited, policy, policy.reference_logprobs, budget)
        kl = [kl_estimate(now - before, objective) for now, before in zip(old, ref, strict=True)]
        metrics["kl"] = _mean(kl)
        penalties = [objective.kl_coef * estimate for estimate in kl]
        credited = credit(groups, objective, weights=weights, penalties=penalties)
    if objective.top_entropy is not None:
        entropies = _per_group(credited, policy, policy.entropies, budget)
        metrics["entropy"] = _mean(entropies)
        credited = learn_from_uncertain(credited, entropies, objective.top_entropy)
    return credited, metrics


def kl_estimate(log_ratios: FloatArray, objective: Objective) -> FloatArray:
    """The KL of every sampled token, from log π_old − log π_ref, [A]."""
    to_reference = torch.tensor(log_ratios)
    kl: FloatArray = ESTIMATORS[objective.kl_estimator](to_reference, torch.zeros_like(to_reference)).numpy()
    return kl


def _mean(values: Sequence[FloatArray]) -> float:
    every = np.concatenate([np.empty(0), *values])
    return float(every.mean()) if len(every) else 0.0


def learn_from_uncertain(
    credited: Sequence[CreditedGroup], entropies: Sequence[FloatArray], share: float
) -> list[CreditedGroup]:
    """Leave the advantage to the share of all tokens whose entropy is highest; `entropies` are [A] per group.

    Of n tokens that the loss counts the ⌈share · n⌉ most uncertain are learned from, and those that tie with the last
    of them. D stays that of all tokens. Source: arXiv 2506.01939; the normaliser is TRL's.
    """
    counted = [own[group.trained[group.tree.trajectory]] for group, own in zip(credited, entropies, strict=True)]
    every = np.sort(np.concatenate([np.empty(0), *counted]))
    if not len(every):
        return list(credited)
    bound = every[-math.ceil(share * len(every) - 1e-9)]  # 0.2 · 15 is 3, whatever its rounding
    return [
        replace(group, advantages=np.where(own >= bound, group.advantages, 0.0))
        for group, own in zip(credited, entropies, strict=True)
    ]


@torch.no_grad()
def _per_group(
    groups: Sequence[CreditedGroup], policy: Policy, score: Callable[[MicroBatch], Tensor], budget: int
) -> list[FloatArray]:
    """A score of every sampled token of the scored trajectories, [A] per group."""
    everybody = [replace(group, trained=np.ones_like(group.trained)) for group in groups]
    result: list[FloatArray] = [np.empty(len(group.tree.index)) for group in groups]
    for batch in pack(everybody, denominator=1.0, budget=budget, flat=policy.path == "flat"):
        values = score(batch).double().cpu().numpy()
        for row, ((number, _), span) in enumerate(zip(batch.origin, batch.spans, strict=True)):
            result[number][span] = values[batch.trajectory == row]
    return result
