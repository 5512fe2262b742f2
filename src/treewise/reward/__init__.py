"""Rewards: plain functions that judge replies, and how several of them make one number.

    replies ──▶ function 1 ──▶ scores ─┐
            └─▶ function 2 ──▶ scores ─┴─ Σ weight × score ──▶ reward, or None with its cause

A function takes one reply, or a batch in the way of TRL; the names of its parameters decide which:

    def reward(completion, answer, **columns) -> float | None
    def reward(completions, prompts, answer, **columns) -> list[float | None]

`answer`, `prompt`, `prefill` and the columns of the data are passed by name, as far as the function takes
them; both kinds may be async. No verdict is `None`, never 0: a function returns `None` or raises, and then
the reply has no reward at all.
"""

from __future__ import annotations

import asyncio
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite  # by name, since the submodule `math` becomes an attribute of this package
from typing import Any

from treewise.text import inert
from treewise.types import Problem

LARGEST_REWARD = 1e100  # beyond it a group's variance overflows


class NoVerdict(Exception):
    """Raised by a reward function that can't judge a reply; the message is the cause."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A named reward function. Weight 0: its scores are recorded only."""

    name: str
    function: Callable[..., Any]
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not isfinite(self.weight):
            raise ValueError(f"the weight of the reward {self.name} is {self.weight}: it must be finite")
        parameters = {
            name: parameter
            for name, parameter in inspect.signature(self.function).parameters.items()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }
        if ("completion" in parameters) == ("completions" in parameters):
            raise ValueError(
                f"the reward function {self.name} must have a parameter `completion` (one reply) or"
                f" `completions` (a batch); it has {', '.join(parameters) or 'none'}"
            )

    @property
    def batched(self) -> bool:
        return "completions" in inspect.signature(self.function).parameters


@dataclass(frozen=True, slots=True)
class Reply:
    """What is judged: the model's text, the problem, and what the chat template had already written of the
    reply (`prefill`, such as "<think>\\n"); `completion_ids` are the tokens that the model sampled."""

    problem: Problem
    completion: str
    prefill: str = ""
    completion_ids: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reward (None with its cause where there is no verdict) and the score of each function by name."""

    reward: float | None
    scores: Mapping[str, float | None] = field(default_factory=dict)
    cause: str | None = None


async def score(rewards: Sequence[Reward], replies: Sequence[Reply]) -> list[Verdict]:
    """Judge `replies`, in their order.

    An exception, `None`, a value that is no finite number: the score is None, and so is the reward if the
    weight isn't 0. Raises ValueError for mistakes that concern every reply: a batch function that doesn't
    return one value per reply, a parameter that no column fills, names that repeat, no weight at all.
    """
    names = [reward.name for reward in rewards]
    if len(set(names)) < len(names):
        raise ValueError(f"several rewards have the same name: {', '.join(names)}")
    if not any(reward.weight for reward in rewards):
        raise ValueError(f"no reward has a weight, so there is nothing to learn: {', '.join(names) or 'none'}")
    if not replies:
        return []
    weights = {reward.name: reward.weight for reward in rewards}
    columns = [await _call(reward, replies) for reward in rewards]
    verdicts = []
    for judged in zip(*columns, strict=True):
        scores = {name: value for name, (value, _) in zip(names, judged, strict=True)}
        causes = {name: cause for name, (_, cause) in zip(names, judged, strict=True) if cause}
        verdicts.append(compose(scores, weights, causes))
    return verdicts


def compose(
    scores: Mapping[str, float | None], weights: Mapping[str, float], causes: Mapping[str, str] | None = None
) -> Verdict:
    """reward = Σ weight · score over the scores with a weight ≠ 0; None if one of them is None."""
    missing = [name for name, weight in weights.items() if weight and scores.get(name) is None]
    if missing:
        cause = "; ".join(f"{name}: {(causes or {}).get(name, 'no verdict')}" for name in missing)
        return Verdict(None, scores, cause)
    total = sum(weight * (scores[name] or 0.0) for name, weight in weights.items() if weight)
    if not abs(total) < LARGEST_REWARD:
        return Verdict(None, scores, f"the weighted sum is {total}")
    return Verdict(float(total), scores)


Judged = tuple[float | None, str | None]  # (score, cause if it is None)


async def _call(reward: Reward, replies: Sequence[Reply]) -> list[Judged]:
    if not reward.batched:
        arguments = [_accepted(reward, _arguments(reply)) for reply in replies]
        results = await asyncio.gather(*(_run(reward.function, accepted) for accepted in arguments))
        return [_number(value) if cause is None else (None, cause) for value, cause in results]
    values, cause = await _run(reward.function, _accepted(reward, _batch_arguments(replies)))
    if cause is not None:
        return [(None, cause)] * len(replies)
    values = values.tolist() if hasattr(values, "tolist") else values  # an array or a tensor
    if not isinstance(values, list | tuple) or len(values) != len(replies):
        got = len(values) if isinstance(values, list | tuple) else type(values).__name__
        raise ValueError(
            f"the reward function {reward.name} must return a list with one value per completion:"
            f" expected {len(replies)}, got {got}"
        )
    return [_number(value) for value in values]


async def _run(function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[Any, str | None]:
    """(result, None), or (None, what went wrong)."""
    try:
        result = function(**arguments)
        return (await result if inspect.isawaitable(result) else result), None
    except NoVerdict as error:
        return None, inert(str(error))
    except (Exception, SystemExit, asyncio.CancelledError) as error:  # a user's code may fail in any way
        return None, _describe(error)


def _describe(error: BaseException) -> str:
    try:
        return inert(f"{type(error).__name__}: {error}")
    except Exception:  # an exception that can't even be shown
        return type(error).__name__


def _arguments(reply: Reply) -> dict[str, Any]:
    problem = reply.problem
    own = {
        "completion": reply.completion,
        "completion_ids": list(reply.completion_ids),
        "prompt": problem.prompt,
        "prefill": reply.prefill,
    }
    return {**problem.info, **own, "answer": problem.answer}


def _batch_arguments(replies: Sequence[Reply]) -> dict[str, Any]:
    """Prompts and completions in the form that the data has, as with TRL: text, or lists of messages."""
    prompts = [reply.problem.info.get("prompt", reply.problem.prompt) for reply in replies]
    completions = [
        reply.completion if isinstance(prompt, str) else [{"role": "assistant", "content": reply.completion}]
        for reply, prompt in zip(replies, prompts, strict=True)
    ]
    names = dict.fromkeys(name for reply in replies for name in reply.problem.info if name != "prompt")
    columns = {name: [reply.problem.info.get(name) for reply in replies] for name in names}
    columns["answer"] = [reply.problem.answer for reply in replies]
    columns["prefill"] = [reply.prefill for reply in replies]
    columns["completion_ids"] = [list(reply.completion_ids) for reply in replies]
    return {
        **columns,
        "prompts": [prompt if isinstance(prompt, str) else list(prompt) for prompt in prompts],
        "completions": completions,
    }


def _accepted(reward: Reward, available: Mapping[str, Any]) -> dict[str, Any]:
    """What of `available` the function takes. Raises ValueError if it needs something else."""
    parameters = inspect.signature(reward.function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        accepted = dict(available)
    else:
        accepted = {p.name: available[p.name] for p in parameters if p.name in available}
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    missing = [p.name for p in named if p.default is p.empty and p.name not in accepted]
    if missing:
        raise ValueError(
            f"the reward function {reward.name} needs {', '.join(missing)}, which is neither a column of the"
            f" data nor passed by the library: there are {', '.join(sorted(available))}"
        )
    return accepted


def _number(value: Any) -> Judged:
    try:
        if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # of NumPy or torch
            value = value.item()
        if value is None:
            return None, "returned None"
        if not isinstance(value, numbers.Real):
            return None, inert(f"returned {value!r:.60}, which is a {type(value).__name__} and not a number")
        number = float(value)
    except Exception as error:  # a user's object may fail in any way, also when it is shown
        return None, f"returned a {type(value).__name__} that is no number: {type(error).__name__}"
    return (number, None) if isfinite(number) else (None, f"returned {number}")
