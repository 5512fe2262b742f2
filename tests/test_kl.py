"""What the gradient of each KL estimate really is, on a distribution over six tokens where expectations are sums."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from treewise.axes.kl import ESTIMATORS
from treewise.presets import resolve


def table(seed: int) -> Tensor:
    return torch.randn(6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LOGITS, REFERENCE, OLD = table(0), table(1).log_softmax(-1), table(2).log_softmax(-1)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_p12_far_policies_give_finite_values_and_gradients(name: str, dtype: torch.dtype) -> None:
    for distance in (100.0, -100.0, 1e4, -1e4):
        for sign in (1, -1):
            moved = torch.tensor([distance], dtype=dtype, requires_grad=True)
            value = ESTIMATORS[name](moved, sign * moved)
            value.sum().backward()
            assert torch.isfinite(value).all()
            assert moved.grad is not None
            assert torch.isfinite(moved.grad).all()


def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
    """∇ of a function of log π, with respect to the logits."""
    logits = LOGITS.clone().requires_grad_()
    (found,) = torch.autograd.grad(function(logits.log_softmax(-1)), logits)
    return found


def reverse(logprobs: Tensor) -> Tensor:
    """KL(π ‖ π_ref)."""
    return (logprobs.exp() * (logprobs - REFERENCE)).sum()


def forward(logprobs: Tensor) -> Tensor:
    """KL(π_ref ‖ π)."""
    return (REFERENCE.exp() * (REFERENCE - logprobs)).sum()


def in_loss(name: str, sampled_from: Tensor | None = None) -> Tensor:
    """Expected gradient of the estimate as a loss, tokens being drawn from π itself or from another policy."""

    def expectation(logprobs: Tensor) -> Tensor:
        old = logprobs.detach() if sampled_from is None else sampled_from
        return (old.exp() * ESTIMATORS[name](logprobs - REFERENCE, logprobs - old)).sum()

    return gradient(expectation)


def in_reward(name: str) -> Tensor:
    """Expected gradient of the estimate as a (detached) penalty of REINFORCE."""

    def expectation(logprobs: Tensor) -> Tensor:
        now = logprobs.detach()
        return (now.exp() * ESTIMATORS[name](now - REFERENCE, now - now) * logprobs).sum()

    return gradient(expectation)


def same(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_value_is_that_of_the_kl_on_average(name: str) -> None:
    now = LOGITS.log_softmax(-1)
    assert (now.exp() * ESTIMATORS[name](now - REFERENCE, now - now)).sum().item() == pytest.approx(reverse(now).item())


def test_k1_in_the_loss_has_no_gradient_and_is_refused() -> None:
    assert same(in_loss("k1"), torch.zeros(6, dtype=torch.float64))
    with pytest.raises(ValueError, match="expected gradient of 0"):
        resolve("grpo", {"kl_coef": 0.1, "kl_estimator": "k1"})


def test_k2_and_unbiased_k3_in_the_loss_pull_along_the_reverse_kl() -> None:
    assert same(in_loss("k2"), gradient(reverse))
    assert same(in_loss("k3_unbiased"), gradient(reverse))


def test_k3_in_the_loss_pulls_along_the_forward_kl() -> None:
    assert same(in_loss("k3"), gradient(forward))
    assert not same(in_loss("k3"), gradient(reverse))


def test_off_policy_only_the_unbiased_k3_is_right() -> None:
    assert same(in_loss("k3_unbiased", OLD), gradient(reverse))
    for name in ("k2", "k3"):
        assert not same(in_loss(name, OLD), gradient(reverse))


def test_over_two_tokens_a_loss_holds_the_prefix_fixed_and_the_reward_does_not() -> None:
    logits = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    reference = torch.randn(2, 3, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64).log_softmax(-1)
    logits.requires_grad_()
    policy = logits.log_softmax(-1)
    first, second = policy[0, 0], policy[1]  # the second token's distribution depends on the first token
    ratios = [first - reference[0, 0], second - reference[1]]
    whole = (first.exp() * ratios[0]).sum() + (first.exp()[:, None] * second.exp() * ratios[1]).sum()
    fixed = (first.exp() * ratios[0]).sum() + (first.exp().detach()[:, None] * second.exp() * ratios[1]).sum()
    joint = (first[:, None] + second).exp().detach()
    k2 = [ESTIMATORS["k2"](ratio, ratio * 0) for ratio in ratios]
    in_loss = (joint * (k2[0][:, None] + k2[1])).sum()
    to_go = ratios[1].detach()
    in_reward = (joint * ((ratios[0].detach()[:, None] + to_go) * first[:, None] + to_go * second)).sum()

    def slope(value: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(value, logits, retain_graph=True)
        return found

    assert same(slope(in_loss), slope(fixed))
    assert same(slope(in_reward), slope(whole))
    assert not torch.allclose(slope(fixed), slope(whole), rtol=1e-3)


def test_in_the_reward_k1_is_right_and_the_others_are_not() -> None:
    assert same(in_reward("k1"), gradient(reverse))
    for name in ("k2", "k3"):
        assert not same(in_reward(name), gradient(reverse))
    with pytest.raises(ValueError, match="in the reward k1 is the unbiased one"):
        resolve("rloo", {"kl_estimator": "k3_unbiased"})
    assert resolve("dr_grpo", {"kl_coef": 0.1, "kl_in": "reward"}, max_new_tokens=9).kl_estimator == "k1"
    moved = resolve("reinforce_pp_baseline", {"kl_in": "reward"})
    assert moved.kl_estimator == "k1"  # the preset's k2 is for the loss
    assert resolve("grpo", {"kl_coef": 0.1}).kl_estimator == "k3"
