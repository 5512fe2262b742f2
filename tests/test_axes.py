"""Single values of the axes against numbers computed by hand, the reported failure cases among them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import tiny
from oracle import Row
from treewise.axes import Objective
from treewise.axes.correction import Level, Mask, NoCorrection, Truncate
from treewise.axes.length_weight import LearnedPreference
from treewise.axes.ratio import RATIOS
from treewise.axes.trust_region import Tokens
from treewise.credit import credit
from treewise.objective import token_terms
from treewise.presets import PRESETS, resolve
from treewise.types import Group, Problem, Trajectory


def float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def answers(rewards: list[float | None], scores: list[dict[str, float | None]] | None = None) -> Group:
    """One answer of one token each, all different."""
    group = tiny.group([Row([1], [2 + n], [1], r) for n, r in enumerate(rewards)], 0)
    if scores is None:
        return group
    scored = tuple(replace(t, scores=own) for t, own in zip(group.trajectories, scores, strict=True))
    return replace(group, trajectories=scored)


# Advantage and scale


@pytest.mark.parametrize(
    ("preset", "options", "advantages"),
    [
        ("dr_grpo", {}, [0.667, 0.667, -0.333, -0.333, -0.333]),
        ("tree_rloo", {"kappa": 0.0}, [1.0, 1.0, -0.5, -1.0, -0.5]),
        ("process", {"scale": "none"}, [0.167, 0.667, 0.167, -0.333, -0.333]),
        ("tempo", {"scale": "none"}, [0.833, 1.167, -0.167, -0.833, -0.667]),
    ],
)
def test_the_drawing_over_the_advantages_is_what_they_are(
    preset: str, options: dict[str, object], advantages: list[float]
) -> None:
    group = tiny.group([Row([9], [1, 2], [1, 1], 1.0), Row([9], [1, 3], [1, 1], 0.0), Row([9], [4], [1], 0.0)], 0)
    (found,) = credit([group], resolve(preset, options, max_new_tokens=3))
    assert found.advantages.tolist() == pytest.approx(advantages, abs=6e-4)


def test_a02_a_lone_failure_keeps_a_small_leave_one_out_advantage() -> None:
    group = answers([0.0] + [0.95] * 7)
    (found,) = credit([group], resolve("rloo", {"kl_coef": 0.0}))
    assert found.advantages[0] == pytest.approx(-0.95)
    (scaled,) = credit([group], resolve("rloo", {"kl_coef": 0.0, "scale": "std"}))
    assert scaled.advantages[0] == pytest.approx(-2.47414 * 8 / 7, abs=1e-5)


def test_a06_a_missing_score_is_left_out_of_its_own_normalisation_only() -> None:
    a, b = [1.0, 0.0, 1.0, 0.0], [None, 0.0, 1.0, 1.0]
    group = answers([None, 0.0, 2.0, 1.0], [{"a": x, "b": y} for x, y in zip(a, b, strict=True)])
    objective = resolve("gdpo", {"scale": "none"})
    (found,) = credit([group], objective, weights={"a": 1.0, "b": 1.0})
    expected = [0.86588, -0.86588 - 1.15450, 0.86588 + 0.57725, -0.86588 + 0.57725]
    assert found.advantages.tolist() == pytest.approx(expected, abs=1e-5)
    (only_b,) = credit([group], objective, weights={"a": 0.0, "b": 1.0})
    assert only_b.members == (1, 2, 3)


def test_a01_maxrl_of_a_group_without_success_or_without_failure_is_zero() -> None:
    for rewards in ([0.0] * 4, [1.0] * 4, [0.95] * 7):
        (found,) = credit([answers(list(rewards))], resolve("maxrl", {}))
        assert found.advantages.tolist() == [0.0] * len(rewards)
    (found,) = credit([answers([1.0, 0.0, 0.0, 0.0])], resolve("maxrl", {}))
    assert found.advantages.tolist() == pytest.approx([3.0, -1.0, -1.0, -1.0])


def test_maxrl_refuses_negative_rewards() -> None:
    with pytest.raises(ValueError, match="scale 'mean' needs rewards of at least 0, and there is one of -1"):
        credit([answers([1.0, -1.0])], resolve("maxrl", {}))


@pytest.mark.parametrize("preset", [name for name in PRESETS if name not in ("reinforce_pp", "rloo")])
def test_a01_equal_rewards_give_exactly_zero(preset: str) -> None:
    groups = [answers([0.95] * 7, [{"a": 0.95}] * 7), answers([0.35] * 7, [{"a": 0.35}] * 7)]
    for found in credit(groups, resolve(preset, {}, max_new_tokens=4)):
        assert found.advantages.tolist() == [0.0] * 7


def test_a07_a_batch_statistic_is_over_all_groups_and_a_group_statistic_over_one() -> None:
    groups = [answers([1.0, 0.0, 1.0]), answers([0.0, 1.0]), answers([5.0, 5.0, 5.0])]
    credited = credit(groups, resolve("dapo", {"scale": "batch_std"}))
    std = np.std([1, 0, 1, 0, 1, 5, 5, 5], ddof=1) + 1e-4
    expected = [1 / 3 / std, -2 / 3 / std, 1 / 3 / std, -0.5 / std, 0.5 / std, 0, 0, 0]
    assert np.concatenate([c.advantages for c in credited]).tolist() == pytest.approx(expected)


def test_an_answer_of_several_steps_is_credited_for_what_follows() -> None:
    tokens = np.array([1, 5, 6, 7, 8])
    made = Trajectory(tokens, tokens > 1, np.zeros(5), "", 1.0, "eos", steps=((2, 0.0), (4, 1.0)))
    group = Group(Problem("p", ""), (made,))
    (found,) = credit([group], resolve("grpo_process", {"scale": "none"}))
    assert found.advantages.tolist() == pytest.approx([0.0, 0.0, 0.5, 0.5])  # (0 − .5) + (1 − .5), then (1 − .5)


def test_a_branched_group_is_refused_by_the_rule_that_needs_independent_answers() -> None:
    group = replace(answers([1.0, 0.0]), branched=True)
    with pytest.raises(ValueError, match="needs answers that were drawn independently"):
        credit([group], resolve("tree_rloo", {}, max_new_tokens=4))
    credit([group], resolve("tempo", {}))


# Ratio


@pytest.mark.parametrize(("log_ratios", "ratio"), [([0.1, -0.3, 0.2], 1.0), ([0.1, -0.3, 0.5], 1.10517)])
def test_l11_a_sequences_ratio_is_the_mean_over_its_sampled_tokens(log_ratios: list[float], ratio: float) -> None:
    other = [5.0, -1.0]  # another answer of the same micro-batch
    found = RATIOS["sequence"](float64(*log_ratios, *other), torch.tensor([0, 0, 0, 1, 1]))
    assert found.exp().tolist() == pytest.approx([ratio] * 3 + [math.exp(2.0)] * 2, abs=1e-5)


# Length weight


@pytest.mark.parametrize(
    ("preference", "weights"),
    [
        (0.0, [1.0, 1.0, 1.0]),
        (1.0, [0.86741, 0.99386, 1.13874]),
        (-1.0, [1.14851, 0.98112, 0.87037]),
        (2.0, [0.74772, 0.96361, 1.28867]),
    ],
)
def test_g04_learned_length_weights(preference: float, weights: list[float]) -> None:
    found = LearnedPreference()(float64(2, 4, 6), float64(preference))
    assert found.tolist() == pytest.approx(weights, abs=1e-5)
    assert found.sum().item() == pytest.approx(3.0)


def test_g04_equal_lengths_weigh_alike_and_a_negative_base_is_refused() -> None:
    assert LearnedPreference()(float64(5, 5, 5), float64(1.0)).tolist() == [1.0, 1.0, 1.0]
    with pytest.raises(ValueError, match=r"must be below 1/√\(G − 1\) = 0.577"):
        LearnedPreference(preference_spread=1.0)(float64(1, 9, 9, 9), float64(0.5))


# Rollout correction


@pytest.mark.parametrize(
    ("level", "low", "high", "truncated", "masked"),
    [
        ("token", 0.0, 2.0, [1.0, 2.0, 1.0], [1.0, 0.0, 1.0]),
        ("sequence", 0.0, 30.0, [math.exp(3)] * 2 + [1.0], [math.exp(3)] * 2 + [1.0]),
        ("sequence", 0.0, 2.0, [2.0, 2.0, 1.0], [0.0, 0.0, 1.0]),
        ("geometric", 0.5, 5.0, [math.exp(1.5)] * 2 + [1.0], [math.exp(1.5)] * 2 + [1.0]),
    ],
)
def test_p04_weights_against_the_mismatch(
    level: Level, low: float, high: float, truncated: list[float], masked: list[float]
) -> None:
    difference, rows = float64(-1, -2, -1) - float64(-1, -5, -1), torch.tensor([0, 0, 1])
    assert Truncate(level, low, high)(difference, rows).tolist() == pytest.approx(truncated)
    assert Mask(level, low, high)(difference, rows).tolist() == pytest.approx(masked)
    assert NoCorrection()(difference, rows).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("preset", ["dapo", "tis", "icepop", "dppo", "vespo"])
def test_p05_an_unknown_log_prob_of_the_sampler_has_ratio_one(preset: str) -> None:
    now = float64(-0.2, -1.0, -0.1).requires_grad_()
    terms = token_terms(
        now,
        advantages=float64(1, 1, 1),
        old_logprobs=now.detach(),
        sampler_logprobs=float64(-0.2, math.nan, -0.1),
        ref_logprobs=None,
        trajectory=torch.tensor([0, 0, 0]),
        objective=resolve(preset, {}, max_new_tokens=4),
    )
    assert terms.corrections.tolist() == [1.0, 1.0, 1.0]
    assert terms.ratios.tolist() == [1.0, 1.0, 1.0]
    (gradient,) = torch.autograd.grad(terms.objective.sum(), now)
    assert gradient.tolist() == pytest.approx([1.0, 1.0, 1.0])


def test_a_weight_does_not_change_what_the_trust_region_does() -> None:
    """The clip of one token enters the geometric mean of all: its weight must come afterwards."""
    objective = replace(resolve("gmpo", {}), correction=Mask())  # which `resolve` refuses for another reason
    now, old = float64(-1, -1, -1).requires_grad_(), float64(-2, -1.1, -0.9)
    terms = token_terms(
        now,
        advantages=float64(1, 1, 1),
        old_logprobs=old,
        sampler_logprobs=old - float64(math.log(9), 0, 0),
        ref_logprobs=None,
        trajectory=torch.tensor([0, 0, 0]),
        objective=objective,
    )
    mean = math.exp((0.4 + 0.1 - 0.1) / 3)
    assert terms.objective.tolist() == pytest.approx([0.0, mean, mean])
    (gradient,) = torch.autograd.grad(terms.objective.sum(), now)
    assert gradient.tolist() == pytest.approx([0.0, 2 * mean / 3, 2 * mean / 3])


# Trust region


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", [100.0, 800.0, -100.0, -800.0])
def test_far_policies_give_finite_values_and_gradients(preset: str, dtype: torch.dtype, distance: float) -> None:
    objective = resolve(preset, {}, max_new_tokens=4)
    for advantage in (1.0, -1.0):
        now = torch.tensor([-1.0, -2.0], dtype=dtype, requires_grad=True)
        old = now.detach() - distance
        terms = token_terms(
            now,
            advantages=torch.tensor([advantage, advantage], dtype=dtype),
            old_logprobs=old,
            sampler_logprobs=old + 1,
            ref_logprobs=now.detach() + distance,
            trajectory=torch.tensor([0, 0]),
            objective=objective,
        )
        (gradient,) = torch.autograd.grad(terms.objective.sum(), now)
        assert torch.isfinite(terms.objective).all(), preset
        assert torch.isfinite(gradient).all(), preset


def test_clipped_tokens_are_marked() -> None:
    log_ratios = float64(1.5, 1.5, 0.5, 0.5, 1.0).log()
    advantages = float64(1, -1, 1, -1, 1)
    tokens = Tokens(log_ratios, float64(*[0.0] * 5), advantages, torch.arange(5), log_ratios)
    assert Objective().trust_region(tokens).clipped.tolist() == [True, False, False, True, False]
