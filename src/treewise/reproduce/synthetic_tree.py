"""The synthetic tree: a popular prefix that mostly leads into a trap (arXiv 2509.21154).

    <bos> ─┬─ first n tokens of the target ─┬─ the rest of the target   +1
           │                                └─ anything else            r_neg < 0   the trap
           └─ anything else                                             +0.7        safe

A path is four tokens, L or R; one of the sixteen is the target. It lies where the others are bad: GRPO punishes the
first n tokens with the trap's rewards, once per sample that passes through them, before the rest of the target has
been learned. λ-GRPO takes that popularity out. The model is a GPT-2 with fresh weights; sampler, prefix tree, credit,
loss and the order of a step are the library's.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import nn

from treewise.assess import assess
from treewise.axes import Objective
from treewise.credit import credit
from treewise.device import compute_device
from treewise.packing import pack
from treewise.policy import Policy
from treewise.presets import resolve
from treewise.reproduce.gpt2 import gpt2
from treewise.reproduce.options import SyntheticTree
from treewise.reproduce.pool import Cell
from treewise.reproduce.synthetic_report import LAST, blocks, report
from treewise.sampler import Request
from treewise.sampler.hf import HFSampler
from treewise.types import Completion, Group, Problem, Sampling, Trajectory
from treewise.update import accumulate, prepare

__all__ = ["cells", "measure", "report"]

DEPTH = 4
BOS = 2  # L is 0 and R is 1: ids from 2 on are never drawn, and outside of the softmax
SAFE = 0.7


@cache
def objectives() -> Mapping[str, Objective]:
    """The methods by name, with one scale and one normaliser, so that a learning rate means the same for all.

    Every answer has four tokens, so D = 4 G for all aggregations alike.
    """
    same = {"scale": "std", "aggregation": "token"}
    return MappingProxyType(
        {
            "grpo": resolve("grpo", same),
            "half": resolve("lambda_grpo", same | {"weight_exponent": 0.5}),
            "lambda_grpo": resolve("lambda_grpo", same),
            "parent": resolve("spo", same | {"segment_tokens": 1}),
            "treerl": resolve("treerl", same),
            "tempo": resolve("tempo", same),
            "tree_rloo": resolve("tree_rloo", same),
        }
    )


def target_of(seed: int) -> tuple[int, ...]:
    """The target path, the same for every method, tree and rate."""
    return tuple(np.random.default_rng(seed).integers(2, size=DEPTH).tolist())


def reward_of(path: Sequence[int], target: Sequence[int], *, shared: int, trap: float) -> float:
    """+1 for the target, `trap` for the other paths with its first `shared` tokens, +0.7 for the rest."""
    if tuple(path) == tuple(target):
        return 1.0
    return trap if tuple(path[:shared]) == tuple(target[:shared]) else SAFE


def cells(options: SyntheticTree) -> list[dict[str, Any]]:
    """One training each: seed × rate × tree × method."""
    for method in options.methods:
        if method not in objectives():
            raise ValueError(f"methods: there is no {method!r}; there are {', '.join(objectives())}")
    rates = [make_optimizer(rate, [nn.Parameter(torch.zeros(1))]) for rate in options.rates]
    if len({(type(rate), rate.param_groups[0]["lr"]) for rate in rates}) < len(rates):
        raise ValueError(f"rates: {', '.join(options.rates)} holds one of them twice")
    for trap in options.traps:
        if not trap < 0:
            raise ValueError(f"traps: {trap:g} is no trap; it must be below 0")
    for shared in options.shared:
        if not 1 <= shared < DEPTH:
            raise ValueError(f"shared: {shared} leaves no trap in a tree of depth {DEPTH}; choose 1 to {DEPTH - 1}")
    axes = {
        "seed": range(options.seeds),
        "rate": options.rates,
        "shared": options.shared,
        "trap": options.traps,
        "method": options.methods,
    }
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


def make_optimizer(rate: str, parameters: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """Plain SGD or AdamW without weight decay, from `sgd:0.1` or `adamw:0.001`.

    Raises:
        ValueError: for another optimizer, or a rate that is not a positive number.
    """
    name, _, number = rate.partition(":")
    try:
        value = float(number)
    except ValueError:
        value = 0.0
    if name not in ("sgd", "adamw") or not 0 < value < float("inf"):
        raise ValueError(f"rates: {rate!r} must be sgd or adamw and a learning rate above 0, such as adamw:0.001")
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=value)
    return torch.optim.AdamW(parameters, lr=value, betas=(0.9, 0.999), weight_decay=0.0)


def make_policy(size: str, seed: int, device: str = "cpu") -> Policy:
    """GPT-2 with fresh weights in float32, over three ids and 32 positions.

    The other 50,254 embeddings and 992 positions of GPT-2 would never be used, so never move.
    """
    torch.manual_seed(seed)
    model = gpt2(size, vocabulary=BOS + 1, positions=32)
    # On a GPU the tree would be compiled anew for every shape, to save 50 of 80 tokens.
    return Policy(model.to(device), 1.0, BOS, path="tree" if device == "cpu" else "flat")


def trajectory_of(completion: Completion, reward: float | None) -> Trajectory:
    """A path behind its <bos>."""
    return Trajectory(
        tokens=np.append(BOS, completion.tokens),
        sampled=np.arange(DEPTH + 1) > 0,
        logprobs=np.append(0.0, completion.logprobs),
        text="".join("LR"[token] for token in completion.tokens),
        reward=reward,
        stop_reason=completion.stop_reason,
        version=completion.version,
    )


def learn(group: Group, policy: Policy, optimizer: torch.optim.Optimizer, objective: Objective) -> None:
    """One optimizer step on one group; none if all its rewards are equal, for moments must not move the weights."""
    budget = len(group.trajectories) * (DEPTH + 1)
    credited, _ = assess([group], policy, objective, budget=budget)
    batch = prepare(credited, policy, objective, budget=budget, keep_old=False)
    if batch.batches:
        accumulate(batch, policy, objective)
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def probability(path: Sequence[int], policy: Policy) -> float:
    """π(path | <bos>), exactly."""
    whole = trajectory_of(Completion(np.array(path), np.zeros(DEPTH), "length", 0), 0.0)
    alone = credit([Group(Problem("path", ""), (whole,))], Objective())
    (batch,) = pack(alone, denominator=1.0, budget=DEPTH + 1, flat=policy.path == "flat")
    return float(policy.logprobs(batch).double().sum().exp())


def measure(options: SyntheticTree, cell: Cell, folder: Path) -> list[dict[str, Any]]:
    """Train one model, and count where its samples went."""
    torch.set_num_threads(1)
    seed, objective, target = cell["seed"], objectives()[cell["method"]], target_of(cell["seed"])
    policy = make_policy(options.size, seed, compute_device(options.device))
    optimizer = make_optimizer(cell["rate"], list(policy.model.parameters()))
    sampler = HFSampler(policy.model, end_ids=frozenset(), vocab_size=BOS, decode=str, max_rows=options.group_size)
    rewards = np.empty((options.steps, options.group_size))
    for step in range(options.steps):
        requests = [Request(np.array([BOS]), (seed, step, index)) for index in range(options.group_size)]
        paths = sampler.sample(requests, Sampling(DEPTH))
        rewards[step] = [reward_of(p.tokens.tolist(), target, shared=cell["shared"], trap=cell["trap"]) for p in paths]
        answers = tuple(trajectory_of(p, float(r)) for p, r in zip(paths, rewards[step], strict=True))
        learn(Group(Problem("tree", "<bos>"), answers), policy, optimizer, objective)
        sampler.sync(policy.model, step + 1)
    found = rewards == 1.0
    curve = {name: float(found[first - 1 : last].mean()) for name, (first, last) in blocks(options.steps).items()}
    return [
        {
            **cell,
            "target": "".join("LR"[token] for token in target),
            "share": float(found[-LAST:].mean()),
            "safe": float((rewards[-LAST:] == SAFE).mean()),
            "reward": float(rewards[-LAST:].mean()),
            "probability": probability(target, policy),
            **curve,
        }
    ]
