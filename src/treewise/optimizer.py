"""AdamW on float32 master weights, with a schedule, clipping, and refusal of non-finite steps.

A model that computes in bf16 keeps a float32 copy of every weight here. Each micro-batch's bf16
gradient is added to the copy's float32 gradient as soon as it exists, so accumulation does not round.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from treewise.axes.length_weight import LearnedPreference

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate_factor(update: int, *, total: int, warmup: int, schedule: Schedule) -> float:
    """Share of the peak learning rate at optimizer step `update` (0, 1, …, total − 1)."""
    if update < warmup:
        return (update + 1) / (warmup + 1)
    progress = (update - warmup) / max(1, total - warmup)
    match schedule:
        case "constant":
            return 1.0
        case "linear":
            return 1.0 - progress
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))


class StepResult(NamedTuple):
    """`applied` is false when the gradient was not finite; weights and moments are then untouched."""

    applied: bool
    grad_norm: float
    learning_rate: float


class Optimizer:
    """Owns the master weights of a model's trainable parameters, and steps them.

    The model comes in float32 (or wider); its parameters leave in `compute_dtype`. Buffers keep their own.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        compute_dtype: torch.dtype,
        learning_rate: float,
        betas: tuple[float, float],
        weight_decay: float,
        max_grad_norm: float,
        schedule: Schedule,
        warmup: int,
        total: int,
        preference: LearnedPreference | None = None,
    ) -> None:
        self.peak, self.schedule, self.warmup, self.total = learning_rate, schedule, warmup, total
        self.max_grad_norm = max_grad_norm
        self.named = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.masters: dict[str, Tensor] = {}
        narrow = compute_dtype not in (torch.float32, torch.float64)
        for name, parameter in self.named.items():
            self.masters[name] = parameter.detach() if narrow else parameter
        if narrow:
            for parameter in model.parameters():
                parameter.data = parameter.data.to(compute_dtype)
            for name, parameter in self.named.items():
                parameter.register_post_accumulate_grad_hook(_move_gradient(self.masters[name]))
        self.adam = torch.optim.AdamW(
            self.masters.values(), lr=learning_rate, betas=betas, weight_decay=weight_decay, fused=True
        )
        # The scalar of a learned length weight has a rate of its own, no decay, and no part in the clipping.
        self.preference: Tensor | None = None
        if preference is not None:
            self.preference = torch.tensor(preference.preference_start, dtype=torch.float64, requires_grad=True)
            self.preference_adam = torch.optim.Adam([self.preference], lr=preference.preference_rate, betas=betas)

    def step(self, update: int) -> StepResult:
        """Clip, step and clear the gradients that backward passes have summed up."""
        rate = self.peak * learning_rate_factor(update, total=self.total, warmup=self.warmup, schedule=self.schedule)
        # A weight that no token of this step reached has gradient 0, which is not the same as being left out.
        for master in self.masters.values():
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        norm = float(nn.utils.clip_grad_norm_(self.masters.values(), self.max_grad_norm))
        applied = math.isfinite(norm) and self._preference_is_finite()
        if applied:
            for parameters in self.adam.param_groups:
                parameters["lr"] = rate
            self.adam.step()
            if self.preference is not None:
                self.preference_adam.step()
            self._check(rate)
            self._publish()
        self.clear()
        return StepResult(applied, norm, rate)

    def _preference_is_finite(self) -> bool:
        gradient = None if self.preference is None else self.preference.grad
        return gradient is None or bool(torch.isfinite(gradient))

    def clear(self) -> None:
        """Forget gradients."""
        self.adam.zero_grad(set_to_none=True)
        if self.preference is not None:
            self.preference.grad = None

    def _check(self, rate: float) -> None:
        """Stop before weights that are not finite can reach the sampler or a checkpoint."""
        if not math.isfinite(float(nn.utils.get_total_norm(self.masters.values()))):
            raise FloatingPointError(
                f"the weights are no longer finite after a step with learning rate {rate:g}; lower "
                "optimizer.learning_rate and start from the last checkpoint's model"
            )

    @torch.no_grad()
    def _publish(self) -> None:
        for name, parameter in self.named.items():
            if self.masters[name] is not parameter:
                parameter.copy_(self.masters[name])

    def state_dict(self) -> dict[str, Any]:
        """Moments and step counts, and a learned length weight; the weights are saved with the model."""
        if self.preference is None:
            return {"adam": self.adam.state_dict()}
        learned = {"value": self.preference.detach(), "adam": self.preference_adam.state_dict()}
        return {"adam": self.adam.state_dict(), "preference": learned}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        self.adam.load_state_dict(state["adam"])
        if self.preference is not None:
            with torch.no_grad():
                self.preference.copy_(state["preference"]["value"])
            self.preference_adam.load_state_dict(state["preference"]["adam"])


def _move_gradient(master: Tensor) -> Any:
    def move(parameter: Tensor) -> None:
        assert parameter.grad is not None
        if master.grad is None:
            master.grad = parameter.grad.float()
        else:
            master.grad.add_(parameter.grad)
        parameter.grad = None

    return move
