"""One optimizer step's loss and gradients, by the oracle and by treewise, from the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import oracle
import tiny
import torch
from oracle import Row
from torch import Tensor

from treewise import objective as losses
from treewise.credit import CreditedGroup, credit_group, denominator
from treewise.packing import MicroBatch, pack
from treewise.policy import Policy
from treewise.presets import Objective

Rows = Sequence[Sequence[Row]]
UNLIMITED = 10**6


class Step(NamedTuple):
    """`loss`, every parameter's gradient, and how many micro-batches it took."""

    loss: float
    gradients: dict[str, Tensor]
    micro_batches: int


def objectives(**options: Any) -> dict[str, Objective]:
    """Every preset with the same options on top."""
    from treewise.presets import PRESETS, resolve

    return {
        name: resolve(name, options | ({"max_completion_tokens": 7} if name == "dr_grpo" else {}))
        for name in PRESETS
    }


def credited(rows: Rows, objective: Objective) -> tuple[list[CreditedGroup], float]:
    """The groups as treewise sees them, and D."""
    groups = [credit_group(tiny.group(group, number), objective) for number, group in enumerate(rows)]
    total = denominator(
        [length for group in groups for length in group.lengths],
        aggregation=objective.aggregation,
        max_completion_tokens=objective.max_completion_tokens,
    )
    return groups, total


def micro_batch(rows: Rows, objective: Objective) -> MicroBatch:
    """All groups in a single micro-batch."""
    groups, total = credited(rows, objective)
    (batch,) = pack(groups, denominator=total, budget=UNLIMITED)
    return batch


def per_sampled_token(rows: Rows, batch: MicroBatch, field: str) -> Tensor | None:
    """`old` or `ref` of the batch's rows in trajectory space [A], or None where the rows have none."""
    chosen = [oracle.scored(rows[group])[member] for group, member in batch.origin]
    if any(getattr(row, field) is None for row in chosen):
        return None
    values = [getattr(row, field)[t] for row in chosen for t in oracle.sampled_positions(row)]
    return torch.tensor(values, dtype=torch.float64)


def by_treewise(policy: Policy, rows: Rows, objective: Objective, *, budget: int = UNLIMITED) -> Step:
    """Credit, pack, score and differentiate, micro-batch by micro-batch."""
    groups, total = credited(rows, objective)
    batches = pack(groups, denominator=total, budget=budget, flat=policy.path == "flat")
    value = 0.0
    for batch in batches:
        logprobs = policy.logprobs(batch)
        old = per_sampled_token(rows, batch, "old")
        terms = losses.token_terms(
            logprobs,
            advantages=torch.as_tensor(batch.advantages).to(logprobs),
            old_logprobs=logprobs.detach() if old is None else old.to(logprobs),
            ref_logprobs=per_sampled_token(rows, batch, "ref"),
            objective=objective,
        )
        loss = losses.loss(terms, torch.as_tensor(batch.coefficients).to(logprobs))
        loss.backward()
        value += loss.item()
    return Step(value, tiny.gradients(policy.model), len(batches))


def by_oracle(model: Any, rows: Rows, objective: Objective, *, temperature: float, vocab_size: int | None = None) -> Step:
    """The reference, with the options of `objective` as a plain dict."""
    loss = oracle.loss(model, rows, asdict(objective), temperature=temperature, vocab_size=vocab_size)
    loss.backward()
    return Step(loss.item(), tiny.gradients(model), 0)


def assert_close(found: Step, expected: Step, *, tolerance: float) -> None:
    """Loss and each parameter's gradient, relative (to the largest gradient for parameters that have ~none)."""
    assert abs(found.loss - expected.loss) <= tolerance * max(abs(expected.loss), 1e-3), (found.loss, expected.loss)
    assert found.gradients.keys() == expected.gradients.keys()
    largest = max(float(gradient.norm()) for gradient in expected.gradients.values())
    for name, gradient in expected.gradients.items():
        error = float((found.gradients[name] - gradient).norm())
        assert error <= tolerance * max(float(gradient.norm()), 1e-3 * largest, 1e-12), (name, error)
