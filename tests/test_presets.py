"""Every preset against its reference, through the code that training runs: credit, packing, objective, backward pass.

The policy of these tests is a table: the log-prob of every sampled token is a number of its own. It is asked before it
"moves" (old), and after (now), as a model would be.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import oracle_presets
import tiny
from oracle_presets import Answer, Batch
from treewise.assess import assess
from treewise.axes.length_weight import LearnedPreference
from treewise.credit import denominator_of, has_signal
from treewise.packing import MicroBatch, pack
from treewise.policy import Policy
from treewise.presets import PRESETS, resolve
from treewise.types import Group, Problem, Trajectory
from treewise.update import MiniBatch, accumulate, prepare

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
        rows = [self.rows[id(t.base)] for t in batch.transcripts]  # a transcript is a slice of its trajectory's tokens
        return torch.stack([torch.as_tensor(v, dtype=torch.float64) for row in rows for v in values(row)])

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


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(sorted(PRESETS)),
    st.integers(0, BATCHES - 1),
    st.integers(1, 300),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_nothing_depends_on_order_micro_batches_or_ranks(
    name: str, number: int, budget: int, ranks: int, generator: random.Random
) -> None:
    """Ranks only sum, once credit and D are those of the whole step."""
    value, slopes = by_treewise(name, example(name, number), budget=10**6)
    batch = example(name, number)
    objective = resolve(name, {}, max_new_tokens=batch.max_completion_tokens)
    policy: Any = Table(batch)
    groups = [replace(g, trajectories=tuple(shuffled(g.trajectories, generator))) for g in policy.groups]
    credited, _ = assess(shuffled(groups, generator), policy, objective, weights=batch.weights, budget=budget)
    total = denominator_of(credited, objective)
    parts = [[g for g in credited[rank::ranks] if has_signal(g) or objective.kl_coef] for rank in range(ranks)]
    loss = 0.0
    for part in parts:
        policy.moved = False
        packed = pack(part, denominator=total, budget=budget, flat=True)
        old, ref = [policy.logprobs(b) for b in packed], [policy.reference_logprobs(b) for b in packed]
        policy.moved = True
        preference = batch.preference if isinstance(objective.length_weight, LearnedPreference) else None
        loss += accumulate(MiniBatch(packed, old, ref, part), policy, objective, preference).loss
    scale = max(float(np.abs(slopes).max(initial=0.0)), abs(value), 1e-300)
    assert loss == pytest.approx(value, rel=1e-9, abs=1e-9 * scale)
    np.testing.assert_allclose(gradients(batch), slopes, rtol=1e-9, atol=1e-12 * scale)


def shuffled(things: Sequence[Any], generator: random.Random) -> list[Any]:
    return generator.sample(list(things), len(things))


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
    for path, budget in (("tree", 10**6), ("tree", 40), ("flat", 40)):  # other neighbours are other padding
        found, own, slope_here = model_step(name, path, budget=budget)
        assert found == pytest.approx(loss, rel=1e-6, abs=1e-9)
        largest = max(float(gradient.norm()) for gradient in gradients.values())
        for parameter, gradient in gradients.items():
            assert float((own[parameter] - gradient).norm()) <= 1e-6 * largest, parameter
        if slope is not None:
            assert float(slope_here) == pytest.approx(float(slope), rel=1e-6)
