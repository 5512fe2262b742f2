"""From credited groups to an optimizer step.

groups ─ D ─▶ drop what has no signal ─▶ pack ─▶ log-probs ─▶ objective ─▶ backward (sum) ─▶ clip ─▶ step
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treewise.axes import Objective
from treewise.credit import CreditedGroup, denominator_of, has_signal
from treewise.objective import TokenTerms, length_weights, loss, token_terms
from treewise.optimizer import Optimizer
from treewise.packing import MicroBatch, pack
from treewise.policy import Policy


@dataclass(slots=True)
class Tally:
    """Sums over sampled tokens, from which the step's metrics are made."""

    loss: float = 0.0
    tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    largest_mismatch: float = 0.0

    def add(self, batch: MicroBatch, value: Tensor, old_logprobs: Tensor, terms: TokenTerms) -> None:
        """Count one micro-batch. The sampler is compared with the policy that it sampled from."""
        positive = torch.as_tensor(batch.advantages).to(terms.clipped.device) > 0
        difference = old_logprobs.double().cpu() - torch.as_tensor(batch.sampler_logprobs)
        mismatch = difference.nan_to_num(0.0).abs()
        parts = {
            "clip_ratio/low_mean": terms.clipped & ~positive,
            "clip_ratio/high_mean": terms.clipped & positive,
            "clip_ratio/region_mean": terms.clipped,
            "sampling/sampling_logp_difference/mean": mismatch,
            "sampling/importance_sampling_ratio/mean": difference.nan_to_num(0.0).exp(),
            "sampling/unknown": difference.isnan(),
            "sampling/correction/mean": terms.corrections,
        }
        if terms.kl is not None:
            parts["kl"] = terms.kl.detach()
        self.loss += float(value.detach())
        self.tokens += len(batch.index)
        for name, part in parts.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(part.double().sum())
        self.largest_mismatch = max(self.largest_mismatch, float(mismatch.max()))


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """The micro-batches of one optimizer step, their log-probs under the sampling and the reference policy, and the
    packed groups (for a length weight)."""

    batches: list[MicroBatch]
    old_logprobs: list[Tensor | None]
    ref_logprobs: list[Tensor | None]
    groups: list[CreditedGroup]


def prepare(
    groups: Sequence[CreditedGroup],
    policy: Policy,
    objective: Objective,
    *,
    budget: int,
    keep_old: bool,
) -> MiniBatch:
    """Fix D over all of the step's groups, then pack those that have a signal.

    Args:
        groups: every group of the optimizer step.
        budget: tokens of a micro-batch.
        keep_old: score log π_old now, because the policy will have moved when the loss is computed.
    """
    in_loss = objective.kl_coef > 0 and objective.kl_in == "loss"
    signal = [group for group in groups if in_loss or has_signal(group)]
    batches = pack(signal, denominator=denominator_of(groups, objective), budget=budget, flat=policy.path == "flat")
    old: list[Tensor | None] = [None] * len(batches)
    if keep_old:
        with torch.no_grad():
            old = [policy.logprobs(batch) for batch in batches]
    ref = [policy.reference_logprobs(batch) if in_loss else None for batch in batches]
    return MiniBatch(batches, old, ref, signal)


def accumulate(minibatch: MiniBatch, policy: Policy, objective: Objective, preference: Tensor | None = None) -> Tally:
    """Add the gradient of the step's loss to the weights, one micro-batch after the other.

    Args:
        preference: the learned scalar of a length weight; it gets its gradient, too.
    """
    tally = Tally()
    for batch, old, ref in zip(minibatch.batches, minibatch.old_logprobs, minibatch.ref_logprobs, strict=True):
        logprobs = policy.logprobs(batch)
        # On policy π_old is π itself: the ratio is 1, its gradient is not 0.
        old = logprobs.detach() if old is None else old
        terms = token_terms(
            logprobs,
            advantages=torch.as_tensor(batch.advantages).to(logprobs),
            old_logprobs=old,
            sampler_logprobs=torch.as_tensor(batch.sampler_logprobs).to(logprobs),
            ref_logprobs=ref,
            trajectory=torch.as_tensor(batch.trajectory, device=logprobs.device),
            objective=objective,
        )
        coefficients = torch.as_tensor(batch.coefficients).to(logprobs)
        if preference is not None:
            by_group = [length_weights(group, objective, preference) for group in minibatch.groups]
            rows = torch.stack([by_group[group][member] for group, member in batch.origin])
            coefficients = coefficients * rows.to(logprobs)[torch.as_tensor(batch.trajectory, device=logprobs.device)]
        value = loss(terms, coefficients)
        value.backward()
        tally.add(batch, value, old, terms)
    return tally


def update(
    groups: Sequence[CreditedGroup],
    policy: Policy,
    optimizer: Optimizer,
    objective: Objective,
    *,
    budget: int,
    passes: int,
    minibatches: int,
    first_update: int,
    skipped_in_a_row: int = 0,
) -> tuple[dict[str, Any], int]:
    """Train on one sampled batch: `passes` × `minibatches` optimizer steps.

    Returns:
        The metrics of the batch: means over its optimizer steps; `skipped` counts steps whose gradient was
        not finite and `empty` those in which no token had a coefficient (no optimizer step is made then).
        Also how many optimizer steps up to the last one were skipped in a row.
    """
    chosen = [list(part) for part in np.array_split(np.arange(len(groups)), minibatches)]
    keep_old = passes * minibatches > 1
    prepared = [
        prepare([groups[n] for n in part], policy, objective, budget=budget, keep_old=keep_old) for part in chosen
    ]
    rows: list[dict[str, float]] = []
    skipped = empty = 0.0
    largest: float | None = None
    number = first_update
    for _ in range(passes):
        for minibatch in prepared:
            if not minibatch.batches:
                empty += 1
                rows.append({"loss": 0.0})
                number += 1
                continue
            tally = accumulate(minibatch, policy, objective, optimizer.preference)
            result = optimizer.step(number)
            number += 1
            skipped += not result.applied
            skipped_in_a_row = 0 if result.applied else skipped_in_a_row + 1
            largest = max(largest or 0.0, tally.largest_mismatch)
            rows.append(
                {"loss": tally.loss, "grad_norm": result.grad_norm, "learning_rate": result.learning_rate}
                | {name: total / tally.tokens for name, total in tally.sums.items()}
            )
    names = dict.fromkeys(name for row in rows for name in row)
    means = {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}
    total = sum(len(trajectory.tokens) for group in groups for trajectory in group.trajectories)
    computed = sum(_computed(batch, policy) for minibatch in prepared for batch in minibatch.batches)
    metrics = means | {
        "sampling/sampling_logp_difference/max": largest,
        "tree/tokens_saved": 1.0 - computed / total if total else None,
        "updates/skipped": int(skipped),
        "updates/empty": int(empty),
    }
    if optimizer.preference is not None:
        metrics["preference"] = float(optimizer.preference.detach())
    return metrics, skipped_in_a_row


def _computed(batch: MicroBatch, policy: Policy) -> int:
    """Tokens that pass through the model for a micro-batch."""
    if policy.path == "tree":
        return len(batch.tokens)
    return len(batch.transcripts) * max(len(transcript) for transcript in batch.transcripts)
