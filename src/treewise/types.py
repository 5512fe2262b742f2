"""The data that travels through the loop.

    Problem ──env, sampler──▶ Trajectory × G ──▶ Group ──▶ prefix tree, credit, loss

A trajectory is one episode exactly as the model saw it: `tokens` is the whole transcript (prompt,
sampled text, environment text), `sampled` marks what the model wrote. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, TypedDict

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.integer[Any]]
FloatArray = NDArray[np.floating[Any]]
BoolArray = NDArray[np.bool_]

PENALTY = "overlong_penalty"  # name of the loop's own penalty among the scores of an answer

StopReason = Literal["eos", "stop", "length", "environment"]


class Message(TypedDict):
    """One chat turn; `role` is `system`, `user`, `assistant` or `tool`."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Problem:
    """One row of data. `prompt` is plain text (continued as it stands) or chat messages."""

    id: str
    prompt: str | tuple[Message, ...]
    answer: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


def fresh(value: Any) -> Any:
    """A copy of lists, tuples and dictionaries, all the way down; anything else is the same object.

    For code of other people, which may change what it is given: a group's answers share their problem.
    """
    if type(value) is dict:
        return {name: fresh(entry) for name, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(fresh, value))
    return value


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn. `temperature` 0 is greedy decoding (evaluation only).

    The filters change the distribution that tokens come from, so a log-prob under the plain softmax
    would be wrong: training refuses them, evaluation may use them.
    """

    max_new_tokens: int
    temperature: float = 1.0
    stop: tuple[str, ...] = ()
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    @property
    def filtered(self) -> bool:
        """Whether tokens come from something else than the tempered softmax."""
        return (self.top_p, self.top_k, self.min_p, self.repetition_penalty) != (1.0, 0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Completion:
    """What a sampler returns for one prefix: `tokens[n]`, their log-probs `[n]` (natural log, under
    the sampling temperature) and why it stopped. An end-of-sequence token is part of `tokens`."""

    tokens: IntArray
    logprobs: FloatArray
    stop_reason: StopReason
    version: int


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished episode. `reward` is `None` when there is no verdict, and `cause` then says why.

    `tokens[L]`, `sampled[L]` and `logprobs[L]` cover the whole transcript; `logprobs` is 0 where the
    model did not sample, and nan where the sampler could not tell. `text` is what the model wrote, without
    special tokens. `steps` are (position of a step's last token, its reward) where rewards came step by step;
    `reward` is their sum.

    Where a chat template changed earlier turns the model was given a new transcript, which follows in the same arrays:
    `starts` are the positions of those behind the first.
    """

    tokens: IntArray
    sampled: BoolArray
    logprobs: FloatArray
    text: str
    reward: float | None
    stop_reason: StopReason
    scores: Mapping[str, float | None] = field(default_factory=dict)
    cause: str | None = None
    version: int = 0
    steps: tuple[tuple[int, float], ...] = ()
    starts: tuple[int, ...] = ()

    @property
    def transcripts(self) -> list[slice]:
        """Each transcript's part of the arrays."""
        bounds = (0, *self.starts, len(self.tokens))
        return [slice(begin, end) for begin, end in pairwise(bounds)]


@dataclass(frozen=True, slots=True)
class Group:
    """The G trajectories of one problem, sampled by one policy version.

    `branched` says that they were not drawn independently: some were continued from inside another one.
    """

    problem: Problem
    trajectories: tuple[Trajectory, ...]
    branched: bool = False
