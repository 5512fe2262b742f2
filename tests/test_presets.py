"""Every preset against its reference, through the code that training runs: credit, packing, objective, backward pass.

The policy of these tests is a table: the log-prob of every sampled token is a number of its own. It is asked before it
"moves" (old), and after (now), as a model would be.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import oracle_presets
import tiny
from oracle_presets import Answer, Batch
from treewise.assess import assess
from treewise.axes.length_weight import LearnedPreference
from treewise.credit import denominator_of
from treewise.packing import MicroBatch
from treewise.policy import Policy
from treewise.presets import PRESETS, resolve
from treewise.types import Group, Problem, Trajectory
from treewise.update import accumulate, prepare

BATCHES = 10


def trajectory(row: Answer) -> Trajectory:
    sampled = np.array([0] * len(row.prompt) + row.mask, dtype=bool)
    logprobs = np.zeros(len(sampled))
    logprobs[sampled] = row.sampler
    places = np.flatnonzero(sampled)
    return Trajectory(
        tokens=np.array([*row.prompt, *row.completion], dtype=np.int64),
        sampled=sampled,
        logprobs=logprobs,
        text="",
        reward=row.reward,
        stop_reason="eos",
        scores=row.scores,
        steps=tuple((int(places[n]), reward) for n, reward in row.steps),
    )


class Table:
    """A policy with a free log-prob for every sampled token of a batch."""

    path = "flat"

    def __init__(self, batch: Batch) -> None:
        self.groups = [
            Group(Problem(str(number), ""), tuple(trajectory(row) for row in rows))
            for number, rows in enumerate(batch.groups)
        ]
        pairs = [
            (row, t)
            for rows, group in zip(batch.groups, self.groups, strict=True)
            for row, t in zip(rows, group.trajectories, strict=True)
        ]
        self.rows = {id(t.tokens): row for row, t in pairs}
        self.moved = False

    def _gather(self, batch: MicroBatch, values: Any) -> Tensor:
        return torch.stack(
            [torch.as_tensor(v, dtype=torch.float64) for t in batch.transcripts for v in values(self.rows[id(t)])]
        )

    def logprobs(self, batch: MicroBatch) -> Tensor:
        return self._gather(batch, (lambda row: row.logp) if self.moved else (lambda row: row.old))

    def reference_logprobs(self, batch: MicroBatch) -> Tensor:
        return self._gather(batch, lambda row: row.ref)

    def entropies(self, batch: MicroBatch) -> Tensor:
        return self._gather(batch, lambda row: row.entropy)


def leaves(batch: Batch) -> list[Tensor]:
    found = [logp for rows in batch.groups for row in rows for logp in row.logp]
    return found if batch.preference is None else [*found, batch.preference]


def gradients(batch: Batch) -> np.ndarray:
    return np.array([0.0 if leaf.grad is None else leaf.grad.item() for leaf in leaves(batch)])


def by_treewise(name: str, batch: Batch, *, budget: int, order: int = 1) -> tuple[float, np.ndarray]:
    objective = resolve(name, {}, max_new_tokens=batch.max_completion_tokens)
    policy: Any = Table(batch)
    groups = [replace(group, trajectories=group.trajectories[::order]) for group in policy.groups[::order]]
    credited, _ = assess(groups, policy, objective, weights=batch.weights, budget=budget)
    minibatch = prepare(credited, policy, objective, budget=budget, keep_old=True)
    policy.moved = True
    learned = isinstance(objective.length_weight, LearnedPreference)
    tally = accumulate(minibatch, policy, objective, batch.preference if learned else None)
    return tally.loss, gradients(batch)


def by_oracle(name: str, batch: Batch) -> tuple[float, np.ndarray]:
    loss = oracle_presets.PRESETS[name](batch)
    loss.backward()
    return loss.item(), gradients(batch)


def example(name: str, number: int) -> Batch:
    batch = oracle_presets.examples()[number]
    if name == "token_preference":
        return replace(batch, preference=torch.tensor(0.7, dtype=torch.float64, requires_grad=True))
    return replace(batch, preference=None)


def test_every_preset_has_a_reference_and_every_reference_a_preset() -> None:
    assert set(PRESETS) == set(oracle_presets.PRESETS)


@pytest.mark.parametrize("number", range(BATCHES))
@pytest.mark.parametrize("name", PRESETS)
def test_loss_and_gradient_are_those_of_the_papers_formula(name: str, number: int) -> None:
    value, slopes = by_oracle(name, example(name, number))
    for budget, order in ((10**6, 1), (12, 1), (10**6, -1)):  # in one piece, in many, in another order
        loss, found = by_treewise(name, example(name, number), budget=budget, order=order)
        scale = max(float(np.abs(slopes).max()), abs(value), 1e-300)
        assert loss == pytest.approx(value, rel=1e-9, abs=1e-9 * scale)
        np.testing.assert_allclose(found, slopes, rtol=1e-9, atol=1e-12 * scale)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("name", PRESETS)
def test_ranks_only_sum_once_credit_and_d_are_those_of_the_whole_step(name: str, ranks: int) -> None:
    value, slopes = by_treewise(name, example(name, 0), budget=10**6)
    batch = example(name, 0)
    objective = resolve(name, {}, max_new_tokens=batch.max_completion_tokens)
    policy: Any = Table(batch)
    credited, _ = assess(policy.groups, policy, objective, weights=batch.weights, budget=10**6)
    total = denominator_of(credited, objective)
    parts = [credited[rank::ranks] for rank in range(ranks)]
    minibatches = [prepare(part, policy, objective, budget=10**6, keep_old=True, total=total) for part in parts]
    policy.moved = True
    preference = batch.preference if isinstance(objective.length_weight, LearnedPreference) else None
    losses = [accumulate(minibatch, policy, objective, preference).loss for minibatch in minibatches]
    assert sum(losses) == pytest.approx(value, rel=1e-9, abs=1e-12)
    np.testing.assert_allclose(gradients(batch), slopes, rtol=1e-9, atol=1e-12)


def model_step(name: str, path: str, *, budget: int) -> Any:
    """One optimizer step's loss and gradients on a tiny model that has moved since it sampled."""
    objective = resolve(name, {}, max_new_tokens=8)
    model, reference = tiny.model("llama"), tiny.model("llama", seed=1)
    policy = Policy(model, 1.0, tiny.VOCABULARY, path=path, reference=reference)  # type: ignore[arg-type]
    groups = [tiny.group(rows, number) for number, rows in enumerate(tiny.SHAPES.values())]
    groups = [scores_of(group) for group in groups]
    credited, _ = assess(groups, policy, objective, budget=budget)
    minibatch = prepare(credited, policy, objective, budget=budget, keep_old=True)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype), alpha=0.02)
    preference = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    learned = isinstance(objective.length_weight, LearnedPreference)
    tally = accumulate(minibatch, policy, objective, preference if learned else None)
    return tally.loss, tiny.gradients(model), preference.grad


def scores_of(group: Group) -> Group:
    """The group with scores, a sampler that is a little off, and every other answer's reward in two steps."""
    changed = []
    for number, t in enumerate(group.trajectories):
        places = np.flatnonzero(t.sampled)
        halves = ((int(places[0]), 0.25), (int(places[-1]), 0.5)) if number % 2 and len(places) else ()
        scores = {"right": t.reward, "short": None if number == 1 else 1.0 / (1 + len(places))}
        changed.append(replace(t, scores=scores, steps=halves, logprobs=np.where(t.sampled, -2.0 - 0.3 * number, 0.0)))
    return replace(group, trajectories=tuple(changed))


@pytest.mark.parametrize("name", PRESETS)
def test_tree_path_equals_flat_path_for_every_parameter(name: str) -> None:
    loss, gradients, slope = model_step(name, "flat", budget=10**6)
    assert any(gradient.abs().max() > 0 for gradient in gradients.values())
    for budget in (10**6, 40):
        found, own, slope_here = model_step(name, "tree", budget=budget)
        assert found == pytest.approx(loss, rel=1e-6, abs=1e-9)
        largest = max(float(gradient.norm()) for gradient in gradients.values())
        for parameter, gradient in gradients.items():
            assert float((own[parameter] - gradient).norm()) <= 1e-6 * largest, parameter
        if slope is not None:
            assert float(slope_here) == pytest.approx(float(slope), rel=1e-6)
