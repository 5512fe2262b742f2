"""The reference of every preset, from the papers' formulas: one trajectory and one token at a time, in float64.

Slow and literal on purpose, and without a line of treewise: prefixes are compared by comparing lists, statistics
are recomputed for every token, and only what carries a gradient is a tensor.

    PRESETS[name](batch) → loss (a scalar; call .backward() for the gradient of every log-prob)

Where a paper writes a term per trajectory (GSPO, GMPO, RLOO, LUSPO), so does this file. `examples` makes batches
with every awkward shape.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

EPSILON = 1e-4
EQUAL = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One trajectory. `mask` is 1 where the model sampled the completion's token; every list after `reward` has one
    number per sampled token, in order. A step is (which sampled token is its last, its reward)."""

    prompt: list[int]
    completion: list[int]
    mask: list[int]
    reward: float | None
    logp: list[Tensor]
    old: list[float]
    sampler: list[float]
    ref: list[float]
    entropy: list[float]
    scores: dict[str, float | None] = field(default_factory=dict)
    steps: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """All groups of one optimizer step. `weights` are those of the reward functions; `preference` is the learnable
    scalar of the preset token_preference."""

    groups: list[list[Answer]]
    max_completion_tokens: int
    weights: dict[str, float] = field(default_factory=dict)
    preference: Tensor | None = None


# (the scored trajectories of a group, one of them, which of its sampled tokens) → advantage
Rule = Callable[[list[Answer], Answer, int], float]


def scored(group: Sequence[Answer]) -> list[Answer]:
    """The trajectories that count: those with a verdict."""
    return [row for row in group if row.reward is not None]


def everyone(batch: Batch) -> list[Answer]:
    """All scored trajectories of the optimizer step."""
    return [row for group in batch.groups for row in scored(group)]


def token_count(batch: Batch) -> int:
    """D of the aggregation `token`."""
    return sum(len(row.logp) for row in everyone(batch))


def sequence_count(batch: Batch) -> int:
    """D of the aggregations `sequence` and `sum`; an answer without tokens counts."""
    return len(everyone(batch))


def constant_count(batch: Batch) -> int:
    """D of the aggregation `constant`."""
    return len(everyone(batch)) * batch.max_completion_tokens


def nothing(batch: Batch) -> Tensor:
    """0, with a graph to every log-prob and to the preference."""
    zero = torch.zeros((), dtype=torch.float64)
    for group in batch.groups:
        for row in group:
            for logp in row.logp:
                zero = zero + 0 * logp
    return zero if batch.preference is None else zero + 0 * batch.preference


def tokens(batch: Batch, rule: Rule) -> Iterator[tuple[list[Answer], Answer, int, float]]:
    """(scored trajectories of the group, trajectory, sampled token, advantage) of all tokens that count."""
    for group in batch.groups:
        rows = scored(group)
        for row in rows:
            for n in range(len(row.logp)):
                yield rows, row, n, rule(rows, row, n)


def sequences(batch: Batch, rule: Rule) -> Iterator[tuple[Answer, float]]:
    """(trajectory, advantage) of all scored trajectories that have a sampled token, for advantages without t."""
    for group in batch.groups:
        rows = scored(group)
        for row in rows:
            if row.logp:
                yield row, rule(rows, row, 0)


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def std(values: Sequence[float]) -> float:
    """Sample standard deviation, two passes; 0 for a single number."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.sqrt(sum((value - middle) ** 2 for value in values) / (len(values) - 1))


def equal(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= EQUAL


def centred(values: Sequence[float]) -> list[float]:
    """r − mean r."""
    if equal(values):
        return [0.0] * len(values)
    return [value - mean(values) for value in values]


def standardised(values: Sequence[float]) -> list[float]:
    """(r − mean r) / (std r + 1e-4)."""
    return [value / (std(values) + EPSILON) for value in centred(values)]


def leave_one_out(values: Sequence[float]) -> list[float]:
    """r_i − mean of the others."""
    if equal(values):
        return [0.0] * len(values)
    return [values[i] - mean([*values[:i], *values[i + 1 :]]) for i in range(len(values))]


def outcome(row: Answer) -> float:
    assert row.reward is not None, "only scored trajectories have an outcome"
    return row.reward


def outcomes(rows: Sequence[Answer]) -> list[float]:
    return [outcome(row) for row in rows]


def position(row: Answer, n: int) -> int:
    """Where in the completion the n-th sampled token stands."""
    return [t for t in range(len(row.completion)) if row.mask[t]][n]


def transcript(row: Answer) -> list[tuple[int, int]]:
    """Prompt and completion as (token, sampled?) pairs."""
    return [(token, 0) for token in row.prompt] + list(zip(row.completion, row.mask, strict=True))


def sharing(rows: Sequence[Answer], row: Answer, t: int) -> list[Answer]:
    """Those who agree with `row` in the prompt and the first `t` completion tokens; they may end there."""
    wanted = transcript(row)[: len(row.prompt) + t]
    return [other for other in rows if transcript(other)[: len(wanted)] == wanted]


def process_set(rows: Sequence[Answer], row: Answer, n: int) -> list[Answer]:
    """λ(i,t): those who agree with `row` up to and including its n-th sampled token."""
    return sharing(rows, row, position(row, n) + 1)


def before(rows: Sequence[Answer], row: Answer, n: int) -> list[Answer]:
    """Those who share what `row` had before its n-th sampled token."""
    return sharing(rows, row, position(row, n))


def worth(rows: Sequence[Answer]) -> float:
    """V: the mean outcome of a set."""
    return mean(outcomes(rows))


def place(rows: Sequence[Answer], row: Answer) -> int:
    return [other is row for other in rows].index(True)


def group_score(rows: list[Answer], row: Answer, n: int) -> float:
    """GRPO: (r_i − mean r) / (std r + 1e-4)."""
    return standardised(outcomes(rows))[place(rows, row)]


def group_centred(rows: list[Answer], row: Answer, n: int) -> float:
    """Dr. GRPO: r_i − mean r."""
    return centred(outcomes(rows))[place(rows, row)]


def over_mean(rows: list[Answer], row: Answer, n: int) -> float:
    """MaxRL: (r_i − mean r) / mean r."""
    values = outcomes(rows)
    assert min(values) >= 0, "MaxRL needs rewards that are not negative"
    return 0.0 if equal(values) else (outcome(row) - mean(values)) / mean(values)


def steps_of(row: Answer) -> list[tuple[int, float]]:
    """The step rewards, or the outcome as one step that ends with the last sampled token."""
    return row.steps or [(len(row.logp) - 1, outcome(row))]


def later_steps(rows: list[Answer], row: Answer, n: int) -> float:
    """DeepSeekMath §4.1.3: Σ over the steps that end at or after t of (r_step − mean R) / (std R + 1e-4), R pooled."""
    pool = [reward for other in rows for _, reward in steps_of(other)]
    if equal(pool):
        return 0.0
    return sum((reward - mean(pool)) / (std(pool) + EPSILON) for end, reward in steps_of(row) if end >= n)


def process_score(rows: list[Answer], row: Answer, n: int) -> float:
    """(V(λ) − mean r) / (std r + 1e-4)."""
    values = outcomes(rows)
    if equal(values):
        return 0.0
    return (worth(process_set(rows, row, n)) - mean(values)) / (std(values) + EPSILON)


def tempo_score(rows: list[Answer], row: Answer, n: int) -> float:
    """((r_i − mean r) + V(s_{t+1}) − V(s_t)) / (std r + 1e-4)."""
    values = outcomes(rows)
    if equal(values):
        return 0.0
    difference = worth(process_set(rows, row, n)) - worth(before(rows, row, n))
    return (outcome(row) - mean(values) + difference) / (std(values) + EPSILON)


def tree_advantage(rows: list[Answer], row: Answer, n: int) -> float:
    """TreeRL: global V(n) − V(root) plus local V(n) − V(parent)."""
    if equal(outcomes(rows)):
        return 0.0
    here = worth(process_set(rows, row, n))
    return (here - worth(rows)) + (here - worth(before(rows, row, n)))


def segment_advantage(rows: list[Answer], row: Answer, n: int, segment_tokens: int = 32) -> float:
    """SPO: V(end of the run) − V(start of the run), runs of `segment_tokens` sampled tokens."""
    if equal(outcomes(rows)):
        return 0.0
    first = n - n % segment_tokens
    last = first + segment_tokens - 1
    start = worth(rows) if first == 0 else worth(process_set(rows, row, first - 1))
    end = outcome(row) if last >= len(row.logp) - 1 else worth(process_set(rows, row, last))
    return end - start


def tree_leave_one_out(rows: list[Answer], row: Answer, n: int, kappa: float = 1.0) -> float:
    """r_i − [n/(n+κ) · mean of the others on this branch + κ/(n+κ) · mean of all others]."""
    if equal(outcomes(rows)):
        return 0.0
    others = [other for other in rows if other is not row]
    here = [other for other in before(rows, row, n) if other is not row]
    if not here:
        return outcome(row) - worth(others)
    count = len(here)
    return outcome(row) - (count * worth(here) + kappa * worth(others)) / (count + kappa)


def decoupled(group: Sequence[Answer], row: Answer, weights: dict[str, float]) -> float:
    """GDPO: Σ_k weight_k · (s_ik − mean_k) / (std_k + 1e-4), over the reward functions that scored `row`."""
    total = 0.0
    for name, weight in weights.items():
        there = [other for other in group if other.scores.get(name) is not None]
        values = [score for other in there if (score := other.scores[name]) is not None]
        if any(other is row for other in there):
            total += weight * standardised(values)[place(there, row)]
    return total


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def clipped(value: Tensor, low: float, high: float) -> Tensor:
    """`value` inside the bounds, else the bound, which has no gradient."""
    if value.item() < low:
        return number(low)
    if value.item() > high:
        return number(high)
    return value


def ppo(ratio: Tensor, advantage: float, low: float = 0.2, high: float = 0.2, most: float = math.inf) -> Tensor:
    """min(min(ρ, most)·a, clip(ρ, 1−low, 1+high)·a)."""
    outside = clipped(ratio, 0.0, most) * advantage
    inside = clipped(ratio, 1 - low, 1 + high) * advantage
    return outside if outside.item() < inside.item() else inside


def k2(logp: Tensor, ref: float) -> Tensor:
    """½ (log π/π_ref)²."""
    return (logp - ref) ** 2 / 2


def k3(logp: Tensor, ref: float) -> Tensor:
    """π_ref/π − log(π_ref/π) − 1."""
    return torch.exp(ref - logp) - (ref - logp) - 1


def token_ratio(row: Answer, n: int) -> Tensor:
    """π/π_old of one token."""
    return torch.exp(row.logp[n] - row.old[n])


def log_ratio_sum(row: Answer) -> Tensor:
    """log of the product of all token ratios."""
    total = number(0.0)
    for logp, old in zip(row.logp, row.old, strict=True):
        total = total + (logp - old)
    return total


def sequence_ratio(row: Answer) -> Tensor:
    """GSPO: (Π_t π/π_old)^(1/len)."""
    return torch.exp(log_ratio_sum(row) / len(row.logp))


def behaviour(row: Answer, n: int) -> float:
    """log-prob under the policy that sampled; the old policy's where the sampler reported none."""
    return row.old[n] if math.isnan(row.sampler[n]) else row.sampler[n]


def correction(row: Answer, n: int) -> float:
    """π_old/π_sampler of one token; 1 where the sampler reported none."""
    return 1.0 if math.isnan(row.sampler[n]) else math.exp(row.old[n] - row.sampler[n])


def binary_divergence(log_p: float, log_q: float) -> float:
    """KL(q‖p) of "this token or another": q log(q/p) + (1−q) log((1−q)/(1−p))."""
    q, not_p, not_q = math.exp(log_q), -math.expm1(log_p), -math.expm1(log_q)
    divergence = q * (log_q - log_p)
    if not_q > 0:
        divergence += not_q * math.log(not_q / not_p) if not_p > 0 else math.inf
    return divergence


def grpo(batch: Batch) -> Tensor:
    """1/G Σ_i 1/len_i Σ_t min(ρ·a, clip(ρ)·a); 2402.03300 without its KL."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, group_score):
        loss = loss - ppo(token_ratio(row, n), a) / len(row.logp) / sequence_count(batch)
    return loss


def deepseek_math(batch: Batch) -> Tensor:
    """1/G Σ_i 1/len_i Σ_t [min(ρ·a, clip(ρ)·a) − 0.04·k3]; 2402.03300."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, group_score):
        term = ppo(token_ratio(row, n), a) - 0.04 * k3(row.logp[n], row.ref[n])
        loss = loss - term / len(row.logp) / sequence_count(batch)
    return loss


def grpo_process(batch: Batch) -> Tensor:
    """The same with process supervision; 2402.03300 §4.1.3."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, later_steps):
        term = ppo(token_ratio(row, n), a) - 0.04 * k3(row.logp[n], row.ref[n])
        loss = loss - term / len(row.logp) / sequence_count(batch)
    return loss


def dr_grpo(batch: Batch) -> Tensor:
    """1/G Σ_i 1/budget Σ_t min(ρ·a, clip(ρ)·a), a = r − mean r; 2503.20783."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, group_centred):
        loss = loss - ppo(token_ratio(row, n), a) / constant_count(batch)
    return loss


def dapo(batch: Batch) -> Tensor:
    """1/Σ len Σ_i Σ_t min(ρ·a, clip(ρ, 0.8, 1.28)·a); 2503.14476."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, group_score):
        loss = loss - ppo(token_ratio(row, n), a, 0.2, 0.28) / token_count(batch)
    return loss


def lambda_grpo(batch: Batch) -> Tensor:
    """1/Σ len Σ_i Σ_t min(ρ·a, clip(ρ)·a) / |λ(i,t)|; 2509.21154."""
    loss = nothing(batch)
    for rows, row, n, a in tokens(batch, group_score):
        loss = loss - ppo(token_ratio(row, n), a) / len(process_set(rows, row, n)) / token_count(batch)
    return loss


def process(batch: Batch) -> Tensor:
    """1/Σ len Σ_i Σ_t min(ρ·A, clip(ρ)·A) with the process advantage A_it; 2509.21154."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, process_score):
        loss = loss - ppo(token_ratio(row, n), a) / token_count(batch)
    return loss


def tempo(batch: Batch) -> Tensor:
    """Outcome plus temporal difference, clip 0.2/0.28; 2509.18314."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, tempo_score):
        loss = loss - ppo(token_ratio(row, n), a, 0.2, 0.28) / token_count(batch)
    return loss


def treerl(batch: Batch) -> Tensor:
    """(global + local) / √|λ|; 2506.11902."""
    loss = nothing(batch)
    for rows, row, n, a in tokens(batch, tree_advantage):
        leaves = len(process_set(rows, row, n))
        loss = loss - ppo(token_ratio(row, n), a) / math.sqrt(leaves) / token_count(batch)
    return loss


def spo(batch: Batch) -> Tensor:
    """Value differences of segments of 32 tokens; 2505.23564."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, segment_advantage):
        loss = loss - ppo(token_ratio(row, n), a) / token_count(batch)
    return loss


def tree_rloo(batch: Batch) -> Tensor:
    """Leave-one-out over those on the same branch, shrunk towards the group's."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, tree_leave_one_out):
        loss = loss - ppo(token_ratio(row, n), a) / constant_count(batch)
    return loss


def gspo(batch: Batch) -> Tensor:
    """1/G Σ_i min(s·a, clip(s, 1−3e-4, 1+4e-4)·a); 2507.18071."""
    loss = nothing(batch)
    for row, a in sequences(batch, group_score):
        loss = loss - ppo(sequence_ratio(row), a, 3e-4, 4e-4) / sequence_count(batch)
    return loss


def gspo_token(batch: Batch) -> Tensor:
    """1/G Σ_i 1/len_i Σ_t min(s_t·a, clip(s_t)·a), s_t = sg(s)·π/sg(π); 2507.18071."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, group_score):
        ratio = sequence_ratio(row).item() * torch.exp(row.logp[n] - row.logp[n].item())
        loss = loss - ppo(ratio, a, 3e-4, 4e-4) / len(row.logp) / sequence_count(batch)
    return loss


def cispo(batch: Batch) -> Tensor:
    """1/Σ len Σ_i Σ_t sg(min(ρ, 5))·a·log π; 2506.13585."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, group_score):
        loss = loss - min(token_ratio(row, n).item(), 5.0) * a * row.logp[n] / token_count(batch)
    return loss


def gmpo(batch: Batch) -> Tensor:
    """1/G Σ_i a·exp(mean of the log ratios, each clipped to ±0.4 on the side that a pushes to); 2507.20673."""
    loss = nothing(batch)
    for row, a in sequences(batch, group_score):
        total = number(0.0)
        for logp, old in zip(row.logp, row.old, strict=True):
            if a > 0:
                total = total + clipped(logp - old, -math.inf, 0.4)
            else:
                total = total + clipped(logp - old, -0.4, math.inf)
        loss = loss - a * torch.exp(total / len(row.logp)) / sequence_count(batch)
    return loss


def sapo(batch: Batch) -> Tensor:
    """1/G Σ_i 1/len_i Σ_t 4/τ·σ(τ(ρ−1))·a, τ = 1 for a > 0, else 1.05; 2511.20347."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, group_score):
        tau = 1.0 if a > 0 else 1.05
        gate = 4 / tau / (1 + torch.exp(-tau * (token_ratio(row, n) - 1)))
        loss = loss - gate * a / len(row.logp) / sequence_count(batch)
    return loss


def rloo(batch: Batch) -> Tensor:
    """1/G Σ_i ρ(y_i)·(R_i − mean of the others), R = r − 0.05·log π_old(y)/π_ref(y); 2402.14740."""
    loss = nothing(batch)
    for group in batch.groups:
        rows = scored(group)
        rewards = []
        for row in rows:
            kl = sum(old - ref for old, ref in zip(row.old, row.ref, strict=True))
            rewards.append(outcome(row) - 0.05 * kl)
        for i in range(len(rows)):
            if rows[i].logp:
                a = leave_one_out(rewards)[i]
                loss = loss - torch.exp(log_ratio_sum(rows[i])) * a / sequence_count(batch)
    return loss


def returns(row: Answer) -> list[float]:
    """REINFORCE++, eq. 4: at each token, what is still to come of the reward (at its steps, if it came in steps) and
    of −0.001·Σ log π_old/π_ref."""
    rewards = [-0.001 * (old - ref) for old, ref in zip(row.old, row.ref, strict=True)]
    if rewards:
        for n, reward in row.steps or [(len(rewards) - 1, outcome(row))]:
            rewards[n] += reward
    return [sum(rewards[n:]) for n in range(len(rewards))]


def reinforce_pp(batch: Batch) -> Tensor:
    """Returns, whitened over all tokens of the batch; 1/G Σ_i 1/len_i Σ_t min(ρ·A, clip(ρ)·A); 2501.03262."""
    loss = nothing(batch)
    pool = [value for row in everyone(batch) for value in returns(row)]
    for row in everyone(batch):
        for n, value in enumerate(returns(row)):
            a = (value - mean(pool)) / (std(pool) + EPSILON)
            loss = loss - ppo(token_ratio(row, n), a) / len(row.logp) / sequence_count(batch)
    return loss


def reinforce_pp_baseline(batch: Batch) -> Tensor:
    """r − group mean, whitened over the batch, with 0.001·k2 in the loss; 2501.03262."""
    loss = nothing(batch)
    pool = [value for group in batch.groups if scored(group) for value in centred(outcomes(scored(group)))]
    for rows, row, n, value in tokens(batch, group_centred):
        a = 0.0 if equal(outcomes(rows)) else (value - mean(pool)) / (std(pool) + EPSILON)
        term = ppo(token_ratio(row, n), a) - 0.001 * k2(row.logp[n], row.ref[n])
        loss = loss - term / len(row.logp) / sequence_count(batch)
    return loss


def maxrl(batch: Batch) -> Tensor:
    """a = (r − mean r)/mean r, 0 where the mean is 0; 2602.02710."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, over_mean):
        loss = loss - ppo(token_ratio(row, n), a) / token_count(batch)
    return loss


def gdpo(batch: Batch) -> Tensor:
    """Every reward function standardised in its group, summed with weights, whitened over the batch; 2601.05242."""
    loss = nothing(batch)
    rows, values = [], []
    for group in batch.groups:
        for row in group:
            if any(row.scores.get(name) is not None for name in batch.weights):
                rows.append(row)
                values.append(decoupled(group, row, batch.weights))
    for row, value in zip(rows, values, strict=True):
        a = (value - mean(values)) / (std(values) + EPSILON)
        for n in range(len(row.logp)):
            loss = loss - ppo(token_ratio(row, n), a) / len(row.logp) / len(rows)
    return loss


def luspo(batch: Batch) -> Tensor:
    """1/G Σ_i len_i·min(s·a, clip(s, 1−2e-3, 1+2.5e-3)·a); 2602.05261."""
    loss = nothing(batch)
    for row, a in sequences(batch, group_score):
        loss = loss - len(row.logp) * ppo(sequence_ratio(row), a, 2e-3, 2.5e-3) / sequence_count(batch)
    return loss


def intellect_2(batch: Batch) -> Tensor:
    """min(min(ρ, 4)·a, clip(ρ)·a) − 0.001·k3 over all tokens; 2505.07291."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, group_score):
        term = ppo(token_ratio(row, n), a, most=4.0) - 0.001 * k3(row.logp[n], row.ref[n])
        loss = loss - term / token_count(batch)
    return loss


def dppo(batch: Batch) -> Tensor:
    """M·sg(min(ρ, 20))·a·log π, ρ = p/q with q the sampler's; M = 0 where p left q by more than 0.15; 2602.04879."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, group_centred):
        log_p, log_q = row.logp[n].item(), behaviour(row, n)
        p, q = math.exp(log_p), math.exp(log_q)
        if (a > 0 and p - q > 0.15) or (a < 0 and q - p > 0.15):
            continue
        loss = loss - min(math.exp(log_p - log_q), 20.0) * a * row.logp[n] / constant_count(batch)
    return loss


def dppo_kl(batch: Batch) -> Tensor:
    """The same with M = 0 where p left q by a divergence of more than 0.05; 2602.04879."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, group_centred):
        log_p, log_q = row.logp[n].item(), behaviour(row, n)
        away = log_p > log_q if a > 0 else log_p < log_q
        if away and binary_divergence(log_p, log_q) > 0.05:
            continue
        loss = loss - min(math.exp(log_p - log_q), 20.0) * a * row.logp[n] / constant_count(batch)
    return loss


def vespo(batch: Batch) -> Tensor:
    """sg(φ(W))·a·log π, φ = W^c1·exp(c2·(1−W)), W the whole answer's ratio to the sampler; 2602.10693."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, group_centred):
        log_w = sum(row.logp[m].item() - behaviour(row, m) for m in range(len(row.logp)))
        log_w = min(max(log_w, math.log(1e-8)), 20.0)
        shape, rate = (2.0, 3.0) if a >= 0 else (3.0, 2.0)
        phi = math.exp(shape * log_w + rate * (1 - math.exp(log_w)))
        loss = loss - phi * a * row.logp[n] / token_count(batch)
    return loss


def top_entropy(batch: Batch) -> Tensor:
    """DAPO's term for the 20 % of all tokens with the highest entropy, divided by all tokens; 2506.01939."""
    loss = nothing(batch)
    entropies = [entropy for row in everyone(batch) for entropy in row.entropy]
    for _, row, n, a in tokens(batch, group_score):
        if sum(other > row.entropy[n] for other in entropies) < math.ceil(len(entropies) / 5):
            loss = loss - ppo(token_ratio(row, n), a, 0.2, 0.28) / token_count(batch)
    return loss


def preferences(lengths: Sequence[int], preference: Tensor) -> list[Tensor]:
    """G·softmax((1 + z/9)^preference), z the lengths standardised with the population's standard deviation."""
    if max(lengths) == min(lengths):
        return [number(1.0)] * len(lengths)
    spread = math.sqrt(sum((length - mean(lengths)) ** 2 for length in lengths) / len(lengths))
    powers = [torch.exp((1 + (length - mean(lengths)) / spread / 9) ** preference) for length in lengths]
    total = number(0.0)
    for power in powers:
        total = total + power
    return [len(lengths) * power / total for power in powers]


def token_preference(batch: Batch) -> Tensor:
    """1/Σ len Σ_i f_i Σ_t min(ρ·a, clip(ρ)·a), f from the answers' lengths; 2510.06870."""
    assert batch.preference is not None, "the batch has no preference"
    loss = nothing(batch)
    for rows, row, n, a in tokens(batch, group_score):
        weight = preferences([len(other.logp) for other in rows], batch.preference)[place(rows, row)]
        loss = loss - weight * ppo(token_ratio(row, n), a) / token_count(batch)
    return loss


def tis(batch: Batch) -> Tensor:
    """min(π_old/π_sampler, 2)·min(ρ·a, clip(ρ)·a) over all tokens; Yao et al. 2025."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, group_score):
        loss = loss - min(correction(row, n), 2.0) * ppo(token_ratio(row, n), a) / token_count(batch)
    return loss


def icepop(batch: Batch) -> Tensor:
    """k·min(ρ·a, clip(ρ)·a), k = π_old/π_sampler, or 0 outside of [0.5, 5]; 2510.18855."""
    loss = nothing(batch)
    for _, row, n, a in tokens(batch, group_score):
        k = correction(row, n)
        k = k if 0.5 <= k <= 5.0 else 0.0
        loss = loss - k * ppo(token_ratio(row, n), a) / len(row.logp) / sequence_count(batch)
    return loss


PRESETS: dict[str, Callable[[Batch], Tensor]] = {
    "grpo": grpo,
    "deepseek_math": deepseek_math,
    "grpo_process": grpo_process,
    "dr_grpo": dr_grpo,
    "dapo": dapo,
    "lambda_grpo": lambda_grpo,
    "process": process,
    "tempo": tempo,
    "treerl": treerl,
    "spo": spo,
    "tree_rloo": tree_rloo,
    "gspo": gspo,
    "gspo_token": gspo_token,
    "cispo": cispo,
    "gmpo": gmpo,
    "sapo": sapo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "maxrl": maxrl,
    "gdpo": gdpo,
    "luspo": luspo,
    "intellect_2": intellect_2,
    "dppo": dppo,
    "dppo_kl": dppo_kl,
    "vespo": vespo,
    "top_entropy": top_entropy,
    "token_preference": token_preference,
    "tis": tis,
    "icepop": icepop,
}


WEIGHTS = {"right": 1.0, "short": 0.5}
Scores = dict[str, float | None]


class Maker:
    """Draws the numbers of answers. `drift` is the mean of log π − log π_old, `wide` its spread."""

    def __init__(self, seed: int, *, copies: Literal["differ", "agree"], drift: float = 0.0, wide: float = 0.0) -> None:
        self.draw = random.Random(seed)
        self.drift = drift
        self.wide = wide
        self.seen: dict[tuple[int, ...], tuple[float, float, float, float]] | None = {} if copies == "agree" else None

    def token(self, ids: tuple[int, ...]) -> tuple[float, float, float, float]:
        """(log π, log π_old, log π_ref, entropy) of one token."""
        if self.seen is not None and ids in self.seen:
            return self.seen[ids]
        if self.draw.random() < 0.15:  # a token that every policy is nearly sure of
            old, new, ref = (-(10 ** self.draw.uniform(-9, -5)) for _ in range(3))
            numbers = new if self.wide else old, old, ref, self.draw.uniform(0.0, 0.01)
        else:
            old = -self.draw.uniform(0.3, 5.0)
            new = old + self.drift + self.draw.gauss(0.0, self.wide) if self.wide or self.drift else old
            # Reflected at probability 1; far from the bound the ratio stays what was drawn.
            numbers = -abs(new), old, -abs(old + self.draw.gauss(0.0, 0.5)), self.draw.uniform(0.0, 3.0)
        if self.seen is not None:
            self.seen[ids] = numbers
        return numbers

    def sampler(self, old: float) -> float:
        """The sampler's log-prob: near the trainer's, far from it or unknown."""
        if not self.wide:
            return old
        kind = self.draw.random()
        if kind < 0.15:
            return math.nan
        return -abs(old + self.draw.gauss(0.0, 0.1 if kind < 0.6 else 1.5))

    def answer(
        self,
        prompt: list[int],
        completion: list[int],
        reward: float | None,
        *,
        mask: list[int] | None = None,
        scores: Scores | None = None,
        steps: Sequence[tuple[int, float]] = (),
    ) -> Answer:
        """One answer. Without `scores` the first reward function gave the outcome, and the second a number."""
        mask = [1] * len(completion) if mask is None else mask
        if scores is None and reward is None:
            scores = {"right": None, "short": None}
        elif scores is None:
            scores = {"right": reward, "short": round(self.draw.random(), 2)}
        numbers = [self.token((*prompt, *completion[: t + 1])) for t in range(len(completion)) if mask[t]]
        return Answer(
            prompt=prompt,
            completion=completion,
            mask=mask,
            reward=reward,
            logp=[torch.tensor(new, dtype=torch.float64, requires_grad=True) for new, _, _, _ in numbers],
            old=[old for _, old, _, _ in numbers],
            sampler=[self.sampler(old) for _, old, _, _ in numbers],
            ref=[ref for _, _, ref, _ in numbers],
            entropy=[entropy for _, _, _, entropy in numbers],
            scores=scores,
            steps=list(steps),
        )

    def group(self, *, size: int, longest: int) -> list[Answer]:
        """A group over few token ids, so that prefixes are shared by chance; anything may be missing."""
        prompt = [self.draw.randrange(2, 20) for _ in range(self.draw.randrange(1, 4))]
        rows = []
        for _ in range(size):
            completion = [self.draw.randrange(2, 4) for _ in range(self.draw.randrange(longest + 1))]
            mask = [self.draw.choice([0, 1, 1, 1, 1]) for _ in completion]
            if completion and not any(mask):
                mask[0] = 1  # an answer without any sampled token is no answer
            reward = self.draw.choice([None, 0.0, 0.0, 1.0, 1.0, 0.37])
            scores = None
            if reward is not None and self.draw.random() < 0.3:
                scores = self.draw.choice([{"right": reward, "short": None}, {"right": None, "short": reward}])
            ends = [n for n in range(sum(mask)) if self.draw.random() < 0.4] if self.draw.random() < 0.6 else []
            steps = [(n, round(self.draw.random(), 2)) for n in ends]
            rows.append(self.answer(prompt, completion, reward, mask=mask, scores=scores, steps=steps))
        return rows


def _shapes(make: Maker) -> list[list[Answer]]:
    answer = make.answer
    ragged = [
        answer([5, 6, 7], [12, 13, 14], 0.0),
        answer([5, 6, 7], [12, 13, 15, 16], 1.0, steps=[(1, 0.5), (3, 1.0)]),
        answer([5, 6, 7], [20], 0.0, steps=[(0, 0.1)]),
        answer([5, 6, 7], [12, 17, 18, 19, 12], 0.3),
    ]
    duplicates = [
        answer([8, 9], [21, 22], 1.0),
        answer([8, 9], [21, 22], 1.0, scores={"right": 1.0, "short": None}),
        answer([8, 9], [21, 22], 0.0, steps=[(0, 0.2)]),
        answer([8, 9], [23, 21, 22], 0.5),
    ]
    prefixes = [
        answer([4], [24], 0.0),
        answer([4], [24, 25], 1.0),
        answer([4], [24, 25, 26], 0.0, steps=[(0, 0.7), (1, 0.0)]),  # its last token lies after the last step
        answer([4], [24, 25, 26, 24, 25, 26], 1.0),
    ]
    environment = [  # 0 and 1 share an observation, 2 sampled what 0 was given, 3 was given another, 4 ends with one
        answer([10, 11], [30, 31, 32, 33], 1.0, mask=[1, 0, 0, 1]),
        answer([10, 11], [30, 31, 32, 34, 35], 0.0, mask=[1, 0, 0, 1, 1], steps=[(0, 1.0), (2, 0.0)]),
        answer([10, 11], [30, 31, 32, 33], 0.0),
        answer([10, 11], [30, 36, 37, 33], 0.7, mask=[1, 0, 0, 1]),
        answer([10, 11], [30, 31, 32], 0.2, mask=[1, 0, 0]),
    ]
    unscored = [
        answer([5, 6], [27, 28], None),
        answer([5, 6], [27, 28, 29], 1.0),
        answer([5, 6], [27, 29], 0.0, scores={"right": None, "short": 0.25}),
        answer([5, 6], [27, 28], None, scores={"right": None, "short": 0.9}),  # one function failed: counts in gdpo
        answer([5, 6], [27, 28, 30], 0.4),
    ]
    alone = [answer([3, 7], [2, 9, 4], 1.0, steps=[(0, 0.3), (2, 0.9)]), answer([3, 7], [2, 9], None)]
    single = [answer([3, 9], [2, 9], 1.0), answer([3, 9], [2, 8], None)]
    unknown = [answer([3, 8], [2, 9], None), answer([3, 8], [2], None)]
    empty = [answer([6, 6], [], 0.0), answer([6, 6], [38, 39], 1.0), answer([6, 6], [], 1.0)]
    same = [answer([9, 4, 9], [14, 13, 12][:n], 0.95, scores={"right": 0.95, "short": 0.5}) for n in (2, 3, 1)]
    zero = [answer([9, 5], [14, 13], 0.0), answer([9, 5], [14, 12], 0.0)]
    return [ragged, duplicates, prefixes, environment, unscored, alone, single, unknown, empty, same, zero]


def _long(make: Maker) -> list[Answer]:
    """Answers of several segments of 32 tokens: one leaves inside the second, one ends with a full segment."""
    trunk = [2 + n % 7 for n in range(70)]
    seen = [1] * 20 + [0] * 3 + [1] * 47  # the environment wrote three tokens
    return [
        make.answer([4, 4], trunk, 1.0, mask=seen),
        make.answer([4, 4], [*trunk[:45], 9, *trunk[46:60]], 0.0, mask=seen[:60]),
        make.answer([4, 4], trunk[:67], 0.5, mask=seen[:67]),  # 64 sampled tokens
        make.answer([4, 4], [*trunk[:10], 9, *trunk[11:45]], 0.0),
        make.answer([4, 4], trunk[:35], 0.8, mask=seen[:35]),  # 32 sampled tokens: ends where others go on
    ]


def examples(seed: int = 0, *, copies: Literal["differ", "agree"] = "differ") -> list[Batch]:
    """Ragged batches, new at every call. Copies of a prefix have their own log-probs, or ("agree") the same ones
    except for the sampler's, as under one model."""

    def batch(groups: list[list[Answer]], most: int, preference: float) -> Batch:
        return Batch(groups, most, WEIGHTS, torch.tensor(preference, dtype=torch.float64, requires_grad=True))

    mild = Maker(seed, copies=copies, wide=0.15)
    wild = Maker(seed + 1, copies=copies, wide=1.5)
    exact = Maker(seed + 2, copies=copies)
    up, down = Maker(seed + 3, copies=copies, drift=0.8), Maker(seed + 4, copies=copies, drift=-0.8)
    drifted = [
        [  # products of ratios beyond both bounds of VESPO, either way with either sign of the advantage
            (up if n < 2 else down).answer([7, 7], [9 + n, *[4] * 49], float(n % 2)) for n in range(4)
        ]
    ]
    return [
        batch(_shapes(mild), 9, 0.5),
        batch(_shapes(wild), 8, -1.0),
        batch([_long(mild), *_shapes(wild)[:2]], 80, 2.0),
        batch(_shapes(exact), 7, 0.0),
        batch(drifted, 60, 1.0),
        batch([wild.group(size=8, longest=6) for _ in range(4)], 6, 1.0),
        batch([mild.group(size=6, longest=9) for _ in range(5)], 10, -0.3),
        batch([[wild.answer([3], [4, 5], 1.0)]], 4, 1.0),
        batch([[wild.answer([3], [], 1.0)], [wild.answer([3], [4], None)]], 4, 1.0),
        batch([[wild.answer([3], [4, 5], None)]], 4, 1.0),
    ]
