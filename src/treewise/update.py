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

from treewise.credit import CreditedGroup, denominator
from treewise.objective import TokenTerms, loss, token_terms
from treewise.optimizer import Optimizer
from treewise.packing import MicroBatch, pack
from treewise.policy import Policy
from treewise.presets import Objective


@dataclass(slots=True)
class Tally:
    """Sums over sampled tokens, from which the step's metrics are made."""

    loss: float = 0.0
    tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    largest_mismatch: float = 0.0

    def add(
        self, batch: MicroBatch, value: Tensor, old_logprobs: Tensor, terms: TokenTerms, objective: Objective
    ) -> None:
        """Count one micro-batch. The sampler is compared with the policy that it sampled from."""
        ratios, advantages = terms.ratios.detach(), torch.as_tensor(batch.advantages)
        low = (ratios < 1 - objective.clip_low) & (advantages.to(ratios) < 0)
        high = (ratios > 1 + objective.clip_high) & (advantages.to(ratios) > 0)
        mismatch = (old_logprobs.double().cpu() - torch.as_tensor(batch.sampler_logprobs)).abs()
        parts = {
            "clip_ratio/low_mean": low,
            "clip_ratio/high_mean": high,
            "clip_ratio/region_mean": low | high,
            "sampling/sampling_logp_difference/mean": mismatch,
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
    """The micro-batches of one optimizer step with their log-probs under the sampling and the reference policy."""

    batches: list[MicroBatch]
    old_logprobs: list[Tensor | None]
    ref_logprobs: list[Tensor | None]


def prepare(
    groups: Sequence[CreditedGroup], policy: Policy, objective: Objective, *, budget: int, keep_old: bool
) -> MiniBatch:
    """Fix D over all of the step's groups, then pack those that have a signal.

    Args:
        groups: every group of the optimizer step.
        budget: tokens of a micro-batch.
        keep_old: score log π_old now, because the policy will have moved when the loss is computed.
    """
    total = denominator(
        [length for group in groups for length in group.lengths],
        aggregation=objective.aggregation,
        max_completion_tokens=objective.max_completion_tokens,
    )
    signal = [g for g in groups if len(g.advantages) and (objective.kl_coef or np.any(g.advantages))]
    batches = pack(signal, denominator=total, budget=budget, flat=policy.path == "flat")
    old: list[Tensor | None] = [None] * len(batches)
    if keep_old:
        with torch.no_grad():
            old = [policy.logprobs(batch) for batch in batches]
    ref = [policy.reference_logprobs(batch) if objective.kl_coef else None for batch in batches]
    return MiniBatch(batches, old, ref)


def accumulate(minibatch: MiniBatch, policy: Policy, objective: Objective) -> Tally:
    """Add the gradient of the step's loss to the weights, one micro-batch after the other."""
    tally = Tally()
    for batch, old, ref in zip(minibatch.batches, minibatch.old_logprobs, minibatch.ref_logprobs, strict=True):
        logprobs = policy.logprobs(batch)
        # On policy π_old is π itself: the ratio is 1, its gradient is not 0.
        old = logprobs.detach() if old is None else old
        terms = token_terms(
            logprobs,
            advantages=torch.as_tensor(batch.advantages).to(logprobs),
            old_logprobs=old,
            ref_logprobs=ref,
            objective=objective,
        )
        value = loss(terms, torch.as_tensor(batch.coefficients).to(logprobs))
        value.backward()
        tally.add(batch, value, old, terms, objective)
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
    skipped = empty = largest = 0.0
    number = first_update
    for _ in range(passes):
        for minibatch in prepared:
            if not minibatch.batches:
                empty += 1
                rows.append({"loss": 0.0})
                number += 1
                continue
            tally = accumulate(minibatch, policy, objective)
            result = optimizer.step(number)
            number += 1
            skipped += not result.applied
            skipped_in_a_row = 0 if result.applied else skipped_in_a_row + 1
            largest = max(largest, tally.largest_mismatch)
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
    return metrics, skipped_in_a_row


def _computed(batch: MicroBatch, policy: Policy) -> int:
    """Tokens that pass through the model for a micro-batch."""
    if policy.path == "tree":
        return len(batch.tokens)
    return len(batch.transcripts) * max(len(transcript) for transcript in batch.transcripts)
