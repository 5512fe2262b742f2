"""Scores on held-out problems: one answer each, with the training run's template, stop rules and rewards."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from treewise.config import Recipe
from treewise.types import Group, Sampling


class Interval(NamedTuple):
    """A mean with its 95 % interval, over `n` problems that have a verdict."""

    mean: float
    low: float
    high: float
    n: int


def mean_interval(values: Sequence[float]) -> Interval:
    """Mean ± 1.96 standard errors (normal approximation, ddof 1)."""
    array = np.asarray(values, dtype=np.float64)
    if not len(array):
        return Interval(math.nan, math.nan, math.nan, 0)
    error = 1.96 * array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else math.nan
    return Interval(float(array.mean()), float(array.mean() - error), float(array.mean() + error), len(array))


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One pass over the held-out problems.

    Attributes:
        problems: their ids.
        scores: per score name, one value per problem in their order; `None` without a verdict. `reward`
            is the weighted sum that training uses.
        truncated: share of answers that hit the length limit.
        mean_length: mean sampled tokens of an answer.
    """

    problems: tuple[str, ...]
    scores: Mapping[str, tuple[float | None, ...]]
    truncated: float
    mean_length: float

    def interval(self, name: str) -> Interval:
        """Mean and interval of a score over the problems with a verdict."""
        return mean_interval([value for value in self.scores[name] if value is not None])

    def gain(self, name: str, before: Evaluation) -> Interval:
        """Paired difference to an earlier evaluation of the same problems."""
        pairs = zip(self.scores[name], before.scores[name], strict=True)
        return mean_interval([b - a for b, a in pairs if a is not None and b is not None])

    def row(self, step: int) -> dict[str, Any]:
        """What `eval.jsonl` keeps of it."""
        return {
            "step": step,
            "accuracy": {name: self.interval(name)._asdict() for name in self.scores},
            "truncated": self.truncated,
            "mean_length": self.mean_length,
            "problems": list(self.problems),
            "scores": {name: list(values) for name, values in self.scores.items()},
        }


def sampling_of(recipe: Recipe, max_new_tokens: int) -> Sampling:
    """How held-out problems are answered: with the stop strings of training, and the eval section's own filters."""
    section = recipe.eval
    return Sampling(
        max_new_tokens,
        temperature=section.temperature,
        stop=recipe.rollout.stop,
        top_p=section.top_p,
        top_k=section.top_k,
        min_p=section.min_p,
        repetition_penalty=section.repetition_penalty,
    )


def summarise(groups: Sequence[Group]) -> Evaluation:
    """The evaluation that groups of one answer each make."""
    answers = [group.trajectories[0] for group in groups]
    names = dict.fromkeys(name for answer in answers for name in answer.scores)
    scores = {"reward": tuple(answer.reward for answer in answers)}
    scores |= {name: tuple(answer.scores.get(name) for answer in answers) for name in names}
    return Evaluation(
        problems=tuple(group.problem.id for group in groups),
        scores=scores,
        truncated=float(np.mean([answer.stop_reason == "length" for answer in answers])),
        mean_length=float(np.mean([answer.sampled.sum() for answer in answers])),
    )


def restore(row: Mapping[str, Any]) -> Evaluation:
    """The evaluation that `row()` was made of."""
    return Evaluation(
        problems=tuple(row["problems"]),
        scores={name: tuple(values) for name, values in row["scores"].items()},
        truncated=row["truncated"],
        mean_length=row["mean_length"],
    )
