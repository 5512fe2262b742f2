"""The reference: DESIGN §3 word by word, one trajectory and one token at a time, in float64.

Slow and literal on purpose. It shares no code with treewise: prefixes are compared by comparing lists, every
transcript goes through the model alone, and nothing is padded, packed, cached or vectorised.

    loss = −1/D · Σ_i Σ_t |λ(i,t)|^(−p) · [ min(ρ·a, clip(ρ, 1−ε_low, 1+ε_high)·a) − β·k3 ]
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

EPSILON = 1e-4
EQUAL = 1e-6


@dataclass(frozen=True, slots=True)
class Row:
    """One trajectory. `mask` is 1 where the model sampled the completion's token; `old` and `ref` have one
    number per completion token (those at mask 0 are never read). `old` None means: this very policy."""

    prompt: Sequence[int]
    completion: Sequence[int]
    mask: Sequence[int]
    reward: float | None
    old: Sequence[float] | None = None
    ref: Sequence[float] | None = None


def scored(group: Sequence[Row]) -> list[Row]:
    """The trajectories that count: those with a verdict."""
    return [row for row in group if row.reward is not None]


def sampled_positions(row: Row) -> list[int]:
    """Where in the completion the model wrote."""
    return [t for t in range(len(row.completion)) if row.mask[t]]


def advantages(rewards: Sequence[float], scale: str) -> list[float]:
    """(r − mean) / (std + 1e-4) with the sample standard deviation, or r − mean; 0 where all are equal."""
    if max(rewards) - min(rewards) <= EQUAL:
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    if scale == "none":
        return [r - mean for r in rewards]
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (std + EPSILON) for r in rewards]


def history(row: Row, t: int) -> list[tuple[int, int]]:
    """The transcript up to and including completion token t, as (token, sampled?) pairs."""
    prompt = [(token, 0) for token in row.prompt]
    return prompt + [(int(row.completion[s]), int(row.mask[s])) for s in range(t + 1)]


def process_set_size(group: Sequence[Row], row: Row, t: int) -> int:
    """|λ(i,t)|: how many trajectories agree with `row` at every position up to and including t."""
    wanted = history(row, t)
    count = 0
    for other in group:
        if t < len(other.completion) and history(other, t) == wanted:
            count += 1
        elif len(other.prompt) != len(row.prompt):
            raise AssertionError("the trajectories of a group share their prompt")
    return count


def logprobs(model: Any, row: Row, *, temperature: float = 1.0, vocab_size: int | None = None) -> list[Tensor]:
    """log π of every sampled token of one trajectory, each a scalar with graph."""
    ids = torch.tensor([[*row.prompt, *row.completion]])
    logits = model(input_ids=ids, use_cache=False).logits[0]
    values = []
    for t in sampled_positions(row):
        before = len(row.prompt) + t - 1
        allowed = logits[before, :vocab_size].double() / temperature
        values.append(torch.log_softmax(allowed, dim=-1)[row.completion[t]])
    return values


def divisor(groups: Sequence[Sequence[Row]], options: Mapping[str, Any]) -> float:
    """D, over all groups of the optimizer step."""
    rows = [row for group in groups for row in scored(group)]
    if options["aggregation"] == "token":
        return float(sum(len(sampled_positions(row)) for row in rows))
    if options["aggregation"] == "sequence":
        return float(len(rows))
    assert options["aggregation"] == "constant"
    return float(len(rows) * options["max_completion_tokens"])


def token_term(logp: Tensor, old: Tensor, ref: Tensor | None, advantage: float, options: Mapping[str, Any]) -> Tensor:
    """min(ρ·a, clip(ρ)·a) − β·k3 of one token."""
    ratio = torch.exp(logp - old)
    low, high = 1 - options["clip_low"], 1 + options["clip_high"]
    if ratio.item() < low:
        clipped = torch.tensor(low, dtype=torch.float64)
    elif ratio.item() > high:
        clipped = torch.tensor(high, dtype=torch.float64)
    else:
        clipped = ratio
    inside, outside = ratio * advantage, clipped * advantage
    term = inside if inside.item() <= outside.item() else outside
    if options["kl_coef"]:
        assert ref is not None
        term = term - options["kl_coef"] * (torch.exp(ref - logp) - (ref - logp) - 1)
    return term


def loss(
    model: Any,
    groups: Sequence[Sequence[Row]],
    options: Mapping[str, Any],
    *,
    temperature: float = 1.0,
    vocab_size: int | None = None,
) -> Tensor:
    """The loss of one optimizer step over all groups; call `.backward()` for every parameter's gradient.

    `options`: scale, aggregation, weight_exponent, clip_low, clip_high, kl_coef, max_completion_tokens.
    """
    total = sum((parameter.sum() * 0 for parameter in model.parameters()), torch.tensor(0.0, dtype=torch.float64))
    divide_by = divisor(groups, options)
    for group in groups:
        rows = scored(group)
        if not rows:
            continue
        for row, advantage in zip(rows, advantages([r.reward for r in rows], options["scale"]), strict=True):
            positions = sampled_positions(row)
            values = logprobs(model, row, temperature=temperature, vocab_size=vocab_size)
            for t, logp in zip(positions, values, strict=True):
                old = logp.detach() if row.old is None else torch.tensor(row.old[t], dtype=torch.float64)
                ref = None if row.ref is None else torch.tensor(row.ref[t], dtype=torch.float64)
                weight = process_set_size(rows, row, t) ** -float(options["weight_exponent"])
                if options["aggregation"] == "sequence":
                    weight /= len(positions)
                total = total - weight * token_term(logp, old, ref, advantage, options) / divide_by
    return total
