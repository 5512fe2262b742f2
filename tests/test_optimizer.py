"""The optimizer: schedules, master weights, and steps that are refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from treewise.optimizer import Optimizer, learning_rate_factor


def optimizer(model: nn.Module, dtype: torch.dtype = torch.float32, **changes: object) -> Optimizer:
    options = {
        "learning_rate": 0.1, "betas": (0.9, 0.99), "weight_decay": 0.0, "max_grad_norm": 1.0,
        "schedule": "constant", "warmup": 0, "total": 10,
    }  # fmt: skip
    return Optimizer(model, compute_dtype=dtype, **{**options, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("schedule", "warmup", "expected"),
    [
        ("constant", 0, [1, 1, 1, 1]),
        ("constant", 2, [1 / 3, 2 / 3, 1, 1]),
        ("linear", 0, [1, 0.75, 0.5, 0.25]),
        ("cosine", 0, [1, 0.8535534, 0.5, 0.1464466]),
        ("linear", 2, [1 / 3, 2 / 3, 1, 0.5]),
    ],
)
def test_learning_rates(schedule: str, warmup: int, expected: list[float]) -> None:
    rates = [learning_rate_factor(n, total=4, warmup=warmup, schedule=schedule) for n in range(4)]  # type: ignore[arg-type]
    assert rates == pytest.approx(expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_x03_a_non_finite_gradient_leaves_weights_and_moments_untouched(bad: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    chosen = optimizer(model, dtype)
    model(torch.ones(1, 3, dtype=dtype)).sum().backward()
    assert chosen.step(0).applied
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(chosen.state_dict())
    (model(torch.ones(1, 3, dtype=dtype)).sum() * bad).backward()
    assert not chosen.step(1).applied
    assert all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    for number, moments in chosen.state_dict()["adam"]["state"].items():
        assert all(torch.equal(tensor, state["adam"]["state"][number][name]) for name, tensor in moments.items())
    model(torch.ones(1, 3, dtype=dtype)).sum().backward()
    assert chosen.step(2).applied


def test_bf16_gradients_are_summed_in_float32() -> None:
    """256 + 1 is 256 in bf16: a bf16 sum of the second gradient would be lost."""
    model = nn.Linear(1, 1, bias=False)
    chosen = optimizer(model, torch.bfloat16)
    for scale in (256.0, 1.0):
        model(torch.full((1, 1), scale, dtype=torch.bfloat16)).sum().backward()
    assert chosen.masters["weight"].grad is not None
    assert chosen.masters["weight"].grad.item() == 257.0
    assert model.weight.grad is None


def test_small_steps_reach_a_bf16_model_through_its_master() -> None:
    model = nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    chosen = optimizer(model, torch.bfloat16, learning_rate=1e-4, total=1000)
    for number in range(100):
        model(torch.ones(1, 1, dtype=torch.bfloat16)).sum().backward()
        chosen.step(number)
    assert chosen.masters["weight"].item() == pytest.approx(0.99, abs=1e-4)
    assert model.weight.item() == pytest.approx(0.99, abs=0.004)


def test_the_global_norm_is_clipped() -> None:
    model = nn.Linear(4, 1, bias=False)
    chosen = optimizer(model)
    model(torch.full((1, 4), 3.0)).sum().backward()
    result = chosen.step(0)
    assert result.grad_norm == pytest.approx(6.0)
