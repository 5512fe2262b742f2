"""The per-token objective against values computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from treewise import objective as losses
from treewise.axes import Objective
from treewise.axes.kl import k3
from treewise.axes.ratio import bounded_exp
from treewise.axes.trust_region import Clip


def float64(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def value_and_gradient(
    logprobs: Tensor,
    *,
    advantages: Tensor,
    old: Tensor,
    ref: Tensor | None = None,
    coefficients: Tensor | None = None,
    objective: Objective | None = None,
) -> tuple[Tensor, Tensor]:
    logprobs = logprobs.clone().requires_grad_()
    terms = losses.token_terms(
        logprobs,
        advantages=advantages,
        old_logprobs=old,
        sampler_logprobs=old,
        ref_logprobs=ref,
        trajectory=torch.arange(len(logprobs)),
        objective=objective or Objective(),
    )
    loss = losses.loss(terms, torch.ones_like(logprobs) if coefficients is None else coefficients)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.detach(), gradient


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient"),
    [
        (1.0, 2.0, 2.0, 2.0),  # on policy: the gradient is ρ·a
        (1.1, 2.0, 2.2, 2.2),
        (1.5, 2.0, 2.4, 0.0),  # clipped at 1.2
        (0.5, 2.0, 1.0, 1.0),  # below the region with a > 0: still pulled up
        (0.9, -1.0, -0.9, -0.9),
        (0.5, -1.0, -0.8, 0.0),  # clipped at 0.8
        (1.5, -1.0, -1.5, -1.5),  # above the region with a < 0: still pushed down
        (1.5, 0.0, 0.0, 0.0),
    ],
)
def test_clipped_surrogate_has_the_value_and_gradient_computed_by_hand(
    ratio: float, advantage: float, value: float, gradient: float
) -> None:
    loss, slope = value_and_gradient(float64(math.log(ratio)), advantages=float64(advantage), old=float64(0.0))
    assert loss.item() == pytest.approx(-value, abs=1e-12)
    assert slope.item() == pytest.approx(-gradient, abs=1e-12)


def test_upper_and_lower_bound_are_independent() -> None:
    bounds = Objective(trust_region=Clip(clip_low=0.1, clip_high=0.28))
    loss, _ = value_and_gradient(
        float64(math.log(2), math.log(0.5)),
        advantages=float64(1.0, -1.0),
        old=float64(0, 0),
        objective=bounds,
    )
    assert loss.item() == pytest.approx(-(1.28 - 0.9))


def test_on_policy_the_ratio_is_one_and_its_gradient_is_not_zero() -> None:
    logprobs = float64(-1.0, -3.0)
    loss, gradient = value_and_gradient(logprobs, advantages=float64(0.5, -2.0), old=logprobs)
    assert loss.item() == pytest.approx(1.5)
    assert gradient.tolist() == [-0.5, 2.0]


def test_p13_second_update_is_clipped_against_the_sampling_policy() -> None:
    first = bounded_exp(float64(-1.0) - float64(-1.0))
    second = bounded_exp(float64(-0.5) - float64(-1.0))
    assert first.item() == 1.0
    assert second.item() == pytest.approx(1.64872, abs=1e-5)
    loss, gradient = value_and_gradient(float64(-0.5), advantages=float64(1.0), old=float64(-1.0))
    assert loss.item() == pytest.approx(-1.2)
    assert gradient.item() == 0.0


def test_p12_k3_has_the_values_computed_by_hand_and_is_zero_for_equal_logprobs() -> None:
    values = k3(float64(-1.0, -1.0, -1.0) - float64(-0.5, -1.5, -1.0), float64(0, 0, 0))
    assert values.tolist() == pytest.approx([0.14872, 0.10653, 0.0], abs=1e-5)
    assert values[2].item() == 0.0


def test_kl_is_subtracted_with_its_coefficient_and_pulls_to_the_reference() -> None:
    loss, gradient = value_and_gradient(
        float64(-1.0),
        advantages=float64(0.0),
        old=float64(-1.0),
        ref=float64(-0.5),
        objective=Objective(kl_coef=0.04),
    )
    assert loss.item() == pytest.approx(0.04 * (math.exp(0.5) - 0.5 - 1))
    assert gradient.item() == pytest.approx(0.04 * (1 - math.exp(0.5)))


def test_kl_is_reported_only_where_it_is_part_of_the_loss() -> None:
    old, ref = float64(-1.0), float64(-2.0)
    arguments = {"advantages": float64(1.0), "old_logprobs": old, "sampler_logprobs": old, "ref_logprobs": ref}
    arguments["trajectory"] = torch.tensor([0])
    assert losses.token_terms(float64(-1.0), objective=Objective(), **arguments).kl is None
    kl = losses.token_terms(float64(-1.0), objective=Objective(kl_coef=0.1), **arguments).kl
    assert kl is not None
    assert kl.item() == pytest.approx(math.exp(-1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", [100.0, 800.0, -100.0, -800.0])
def test_p12_far_policies_give_finite_values_and_gradients(dtype: torch.dtype, distance: float) -> None:
    logprobs = torch.tensor([-1.0], dtype=dtype)
    for advantage in (1.0, -1.0):
        loss, gradient = value_and_gradient(
            logprobs,
            advantages=torch.tensor([advantage], dtype=dtype),
            old=logprobs - distance,
            ref=logprobs + distance,
            objective=Objective(kl_coef=0.04),
        )
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()


def test_l10_p11_what_is_not_sampled_never_enters_the_objective() -> None:
    # Trajectory space has no entry for masked or padded positions: the gather leaves them behind.
    logprobs_of_all = torch.tensor([-1.0, 200.0, -math.inf, math.nan, -2.0], dtype=torch.float64)
    index = torch.tensor([0, 4])
    results = []
    for shift in (0.0, 3.0):
        moved = logprobs_of_all + torch.tensor([0.0, shift, shift, shift, 0.0])
        leaf = moved.requires_grad_()
        terms = losses.token_terms(
            leaf[index],
            advantages=float64(1.0, -1.0),
            old_logprobs=float64(-1.5, -2.0),
            sampler_logprobs=float64(-1.5, -2.0),
            ref_logprobs=float64(-1.0, -1.0),
            trajectory=torch.tensor([0, 1]),
            objective=Objective(kl_coef=0.04),
        )
        loss = losses.loss(terms, float64(0.5, 0.5))
        (gradient,) = torch.autograd.grad(loss, leaf)
        assert gradient[1:4].tolist() == [0.0, 0.0, 0.0]
        assert torch.isfinite(gradient).all()
        results.append((loss.item(), gradient[[0, 4]].tolist()))
    assert results[0] == results[1]


def test_p11_zero_log_ratio_beside_an_enormous_one_keeps_its_gradient() -> None:
    clean = value_and_gradient(float64(-1.0), advantages=float64(1.0), old=float64(-1.0))
    _, gradient = value_and_gradient(
        torch.tensor([-1.0, 199.0]), advantages=torch.tensor([1.0, 1.0]), old=torch.tensor([-1.0, -1.0])
    )
    assert gradient[0].item() == clean[1].item()
    assert torch.isfinite(gradient).all()


def test_no_tokens_give_loss_zero() -> None:
    loss, gradient = value_and_gradient(float64(), advantages=float64(), old=float64())
    assert loss.item() == 0.0
    assert gradient.shape == (0,)


def test_loss_is_the_weighted_sum_and_takes_no_mean() -> None:
    loss, gradient = value_and_gradient(
        float64(-1.0, -1.0, -1.0),
        advantages=float64(1.0, 1.0, -2.0),
        old=float64(-1.0, -1.0, -1.0),
        coefficients=float64(0.5, 0.25, 0.1),
    )
    assert loss.item() == pytest.approx(-(0.5 + 0.25 - 0.2))
    assert gradient.tolist() == pytest.approx([-0.5, -0.25, 0.2])


def test_shapes_other_than_flat_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="trajectory space is flat"):
        losses.token_terms(
            torch.zeros(2, 3),
            advantages=torch.zeros(2, 3),
            old_logprobs=torch.zeros(2, 3),
            sampler_logprobs=torch.zeros(2, 3),
            ref_logprobs=None,
            trajectory=torch.zeros(2, 3),
            objective=Objective(),
        )
