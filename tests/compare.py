"""One optimizer step's loss and gradients, by the oracle and by treewise, from the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

import oracle
import tiny
from oracle import Row
from treewise.axes import Objective
from treewise.axes.aggregation import denominator
from treewise.axes.trust_region import Clip
from treewise.credit import CreditedGroup, credit
from treewise.packing import MicroBatch, pack
from treewise.policy import Policy
from treewise.presets import resolve
from treewise.update import accumulate, prepare

Rows = Sequence[Sequence[Row]]
UNLIMITED = 10**6


class Step(NamedTuple):
    """`loss`, every parameter's gradient, and how many micro-batches it took."""

    loss: float
    gradients: dict[str, Tensor]
    micro_batches: int


# What `tests/oracle.py` knows; every preset has its own reference in `tests/oracle_presets.py`.
KNOWN = ("grpo", "dr_grpo", "dapo", "lambda_grpo")


def objectives(**options: Any) -> dict[str, Objective]:
    """The presets that the oracle knows, with the same options on top."""
    return {name: resolve(name, options, max_new_tokens=7) for name in KNOWN}


def _plain(objective: Objective) -> dict[str, Any]:
    names = ("scale", "aggregation", "weight_exponent", "kl_coef", "max_completion_tokens")
    assert isinstance(objective.trust_region, Clip)
    return {name: getattr(objective, name) for name in names} | asdict(objective.trust_region)


def credited(rows: Rows, objective: Objective) -> tuple[list[CreditedGroup], float]:
    """The groups as treewise sees them, and D."""
    groups = credit([tiny.group(group, number) for number, group in enumerate(rows)], objective)
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


def by_treewise(policy: Policy, rows: Rows, objective: Objective, *, budget: int = UNLIMITED) -> Step:
    """The trainer's own path from groups to gradients, with the rows' old log-probs where they have any."""
    groups, _ = credited(rows, objective)
    minibatch = prepare(groups, policy, objective, budget=budget, keep_old=False)
    if any(row.old is not None for group in rows for row in group):
        old = [torch.as_tensor(batch.sampler_logprobs) for batch in minibatch.batches]
        minibatch = replace(minibatch, old_logprobs=old)
    tally = accumulate(minibatch, policy, objective)
    return Step(tally.loss, tiny.gradients(policy.model), len(minibatch.batches))


def by_oracle(
    model: Any, rows: Rows, objective: Objective, *, temperature: float, vocab_size: int | None = None
) -> Step:
    """The reference, with the options of `objective` as a plain dict."""
    loss = oracle.loss(model, rows, _plain(objective), temperature=temperature, vocab_size=vocab_size)
    loss.backward()
    return Step(loss.item(), tiny.gradients(model), 0)


def assert_close(found: Step, expected: Step, *, tolerance: float) -> None:
    """Loss and each parameter's gradient, relative; sizes below 1e-3 of the largest gradient count as that."""
    assert abs(found.loss - expected.loss) <= tolerance * max(abs(expected.loss), 1e-3), (
        found.loss,
        expected.loss,
    )
    assert found.gradients.keys() == expected.gradients.keys()
    largest = max(float(gradient.norm()) for gradient in expected.gradients.values())
    for name, gradient in expected.gradients.items():
        error = float((found.gradients[name] - gradient).norm())
        assert error <= tolerance * max(float(gradient.norm()), 1e-3 * largest, 1e-12), (name, error)
