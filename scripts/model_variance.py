"""Variance of credit rules on a real model: `python scripts/model_variance.py` (minutes).

The quick start's model answers a few of its problems many times. The answers are dealt into groups of G, and every
rule's gradient estimate of a group,

    X = Σ_it advantage_it · ∇ log π(token_it),

is taken for the weight of the last norm (a vector of the model's width, whose per-token gradient needs no backward
pass). Rules that are unbiased have the same mean, so the variance over a problem's groups says which learns from less.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from treewise.credit import credit
from treewise.packing import MicroBatch, pack
from treewise.policy import Policy, causal_lm
from treewise.presets import resolve
from treewise.recipe import load_recipe
from treewise.rollout import collect
from treewise.session import open_session
from treewise.types import FloatArray, Group, Sampling

RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "RLOO": ("dr_grpo", {"advantage": "leave_one_out"}),
    **{f"tree_rloo, κ = {kappa:g}": ("tree_rloo", {"kappa": kappa}) for kappa in (0.0, 1.0, 3.0)},
}
ANY = resolve("grpo", {"advantage": "return_to_go", "scale": "none"})  # leaves no answer out


@torch.no_grad()
def token_gradients(policy: Policy, batch: MicroBatch) -> list[FloatArray]:
    """∂ log π(token) / ∂ (weight of the last norm) of every sampled token, one array [tokens, H] a trajectory.

    With the normalised state x̂ the logits are W (γ ⊙ x̂), so it is x̂ ⊙ (W_token − Σ_v p_v W_v).
    """
    lm = causal_lm(policy.model)
    weight, gamma = lm.get_output_embeddings().weight.float(), lm.base_model.norm.weight.float()
    seen: list[Tensor] = []
    handle = lm.base_model.register_forward_hook(lambda module, inputs, output: seen.append(output[0][0]))
    policy.logprobs(batch)
    handle.remove()
    (states,) = seen  # [T, H], every shared token once
    rows, row_of = np.unique(batch.parent[batch.index], return_inverse=True)
    before = states[torch.as_tensor(rows)].float()
    expected = torch.cat([(part @ weight.T / policy.temperature).softmax(-1) @ weight for part in before.split(256)])
    slopes = (before / gamma)[row_of] * (weight[torch.as_tensor(batch.tokens[batch.index])] - expected[row_of])
    return np.split((slopes / policy.temperature).double().numpy(), np.flatnonzero(np.diff(batch.trajectory)) + 1)


def variance(group: Group, slopes: list[FloatArray], rule: str, size: int) -> float:
    """Trace of the covariance of X over the groups of `size` that the answers of one problem make."""
    preset, options = RULES[rule]
    objective = resolve(preset, options, max_new_tokens=1)
    estimates = []
    for start in range(0, len(group.trajectories) - size + 1, size):
        own = slice(start, start + size)
        (credited,) = credit([replace(group, trajectories=group.trajectories[own])], objective)
        estimates.append(credited.advantages @ np.concatenate(slopes[own]))
    return float(np.var(np.stack(estimates), axis=0, ddof=1).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split(":")[0])
    parser.add_argument("--problems", type=int, default=16)
    parser.add_argument("--answers", type=int, default=128, help="per problem")
    parser.add_argument("--temperature", type=float, default=1.0)
    arguments = parser.parse_args()
    recipe = load_recipe("quickstart", {"model.dtype": "float32", "rollout.temperature": arguments.temperature})
    session = open_session(recipe)
    groups = collect(
        session.supply.problems[: arguments.problems],
        group_size=arguments.answers,
        sampler=session.sampler,
        sampling=Sampling(recipe.rollout.max_new_tokens, temperature=arguments.temperature, stop=recipe.rollout.stop),
        chat=session.chat,
        rewards=session.rewards,
        seed=(0,),
    )
    packed = [pack(credit([group], ANY), denominator=1.0, budget=10**9)[0] for group in groups]
    slopes = [token_gradients(session.policy, batch) for batch in packed]
    rewards = [np.mean([t.reward for t in group.trajectories]) for group in groups]
    print(f"{len(groups)} problems × {arguments.answers} answers, mean reward {np.mean(rewards):.3f}")
    print("| G | " + " | ".join(RULES) + " |\n|---|" + "---|" * len(RULES))
    for size in (4, 8, 16, 32):
        found = {
            rule: np.array([variance(g, s, rule, size) for g, s in zip(groups, slopes, strict=True)]) for rule in RULES
        }
        base = found["RLOO"]
        cells = []
        for rule in RULES:
            # The ratio of sums over problems; its standard error by leaving out one problem at a time.
            ratio = found[rule].sum() / base.sum()
            left = [(found[rule].sum() - a) / (base.sum() - b) for a, b in zip(found[rule], base, strict=True)]
            error = np.sqrt((len(left) - 1) * np.var(left))
            cells.append(f"{ratio:.3f} ± {error:.3f}")
        print(f"| {size} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
