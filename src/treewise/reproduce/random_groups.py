"""Random groups that are trees, and small transformers with random weights: what a theorem must hold on.

group   prompt + A B C      answers take over nothing, a part or all of an earlier one, and then stop or go on,
                 A B C      so that there are copies (rows 1 and 2), prefixes of others (row 3) and forks (row 4)
                 A B
                 A C C A    rewards are real numbers, and in the last group all equal
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch

from treewise.device import compute_device
from treewise.policy import Policy
from treewise.reproduce.gpt2 import SIZES, gpt2
from treewise.types import Group, Problem, Trajectory

GROUPS, ANSWERS, LONGEST, ALPHABET = 4, 8, 12, 3  # of one batch; LONGEST in tokens
VOCABULARY, PROMPT = 64, 4
DISTANCE = 0.1  # of π_old and π_ref from π, in standard deviations of the initial weights


def _answers(generator: np.random.Generator) -> list[list[int]]:
    """Answers that take over nothing, a part or all of an earlier one, and then stop or go on."""
    answers: list[list[int]] = []
    for _ in range(ANSWERS):
        earlier = answers[generator.integers(len(answers))] if answers else []
        kept = earlier[: (0, int(generator.integers(len(earlier) + 1)), len(earlier))[generator.integers(3)]]
        room = LONGEST - len(kept)
        stops = bool(kept) and (not room or generator.random() < 0.5)
        more = [] if stops else generator.integers(ALPHABET, size=generator.integers(1, room + 1)).tolist()
        answers.append([*kept, *more])
    return answers


def random_batch(seed: int, *, even: bool = False) -> list[Group]:
    """Ragged groups with copies and prefixes, and real-valued rewards, which are all equal in the last group.

    Args:
        even: fill all answers of a group up to `LONGEST` tokens, from the same ones, so that copies stay copies.
    """
    generator = np.random.default_rng(seed)
    groups = []
    for number in range(GROUPS):
        # The number in front keeps the groups' trees apart in the packed one.
        prompt = [number, *generator.integers(VOCABULARY, size=PROMPT - 1).tolist()]
        rewards = generator.random(ANSWERS) if number < GROUPS - 1 else np.full(ANSWERS, 0.5)
        answers, filler = _answers(generator), generator.integers(ALPHABET, size=LONGEST).tolist()
        rows = [np.array([*prompt, *answer, *(filler[len(answer) :] if even else [])]) for answer in answers]
        trajectories = (
            Trajectory(row, np.arange(len(row)) >= PROMPT, np.zeros(len(row)), "", float(reward), "eos")
            for row, reward in zip(rows, rewards, strict=True)
        )
        groups.append(Group(Problem(str(number), ""), tuple(trajectories)))
    return groups


def shape(groups: Sequence[Group]) -> dict[str, int]:
    """In how many groups there are equal answers, and one that another goes on from; and how long answers are."""
    texts = [[t.tokens[t.sampled].tolist() for t in group.trajectories] for group in groups]
    return {
        "groups": len(groups),
        "with_copies": sum(any(rows.count(row) > 1 for row in rows) for rows in texts),
        "with_prefixes": sum(any(a != b and a == b[: len(a)] for a in rows for b in rows) for rows in texts),
        "shortest": min(len(row) for rows in texts for row in rows),
        "longest": max(len(row) for rows in texts for row in rows),
    }


def _moved(model: Any) -> Any:
    """A copy with other weights nearby."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=DISTANCE * model.config.initializer_range)
    return other.requires_grad_(False)


def policies(seed: int, *, size: str, device: str) -> tuple[Policy, Policy]:
    """π with its reference, and π_old."""
    torch.manual_seed(seed)
    where = compute_device(device)
    spread = SIZES[size][1] ** -0.5  # logits of about unit size; with GPT-2's 0.02 the tiny one would be uniform
    model = gpt2(size, vocabulary=VOCABULARY, positions=PROMPT + LONGEST, initializer_range=spread)
    model = model.double().eval().to(where)
    reference, old = _moved(model), _moved(model)
    path: Literal["tree", "flat"] = "tree" if where == "cpu" else "flat"  # FlexAttention has no float64
    policy = Policy(model, temperature=1.0, vocab_size=VOCABULARY, path=path, reference=reference)
    return policy, Policy(old, temperature=1.0, vocab_size=VOCABULARY, path=path)
