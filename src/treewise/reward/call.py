"""One reward function: what it is given by name, and what it says of each reply.

parameter      judges                      must return
completion     one reply                   a number, or None
steps          the steps of one reply      a list with one value per step, or None
completions    all replies (TRL's way)     a list with one value per reply
solution_str   one reply (verl's way)      a number, or a dict with a `score`
"""

from __future__ import annotations

import asyncio
import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import isfinite
from typing import Any, Literal, NamedTuple

from treewise.text import inert
from treewise.types import Message, Problem, fresh


class NoVerdict(Exception):
    """Raised by a reward function that can't judge a reply; the message is the cause."""


@dataclass(frozen=True, slots=True)
class Reward:
    """A named reward function; without one it is the environment's score of that name.

    Attributes:
        weight: its share in the reward; at 0 scores are recorded only.
        gate: the score that an answer must reach to earn anything, see `compose`.
        when: columns and their values: it judges such problems only, and others have no such score.
    """

    name: str
    function: Callable[..., Any] | None
    weight: float = 1.0
    gate: float | None = None
    when: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for what, value in (("weight", self.weight), ("gate", self.gate)):
            if value is not None and not isfinite(value):
                raise ValueError(f"the {what} of the reward {self.name} is {value}: it must be finite")
        if self.function is None:
            return
        parameters = {
            name: parameter
            for name, parameter in inspect.signature(self.function).parameters.items()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        }
        whole = {"completion", "completions", "solution_str"} & parameters.keys()
        if len(whole) > 1 or not (whole or "steps" in parameters):
            raise ValueError(
                f"the reward function {self.name} must have a parameter `completion` (one reply), `steps` (those of"
                " one reply), `completions` (a batch) or `solution_str` (one reply, as with verl); it has "
                f"{', '.join(parameters) or 'none'}"
            )

    def concerns(self, problem: Problem) -> bool:
        """Whether it judges replies to this problem."""
        return all(name in problem.info and problem.info[name] == value for name, value in self.when.items())

    @property
    def takes(self) -> Literal["completion", "steps", "completions", "solution_str", "nothing"]:
        """What it judges. Beside one of the others a parameter `steps` is a column of the data."""
        if self.function is None:
            return "nothing"
        parameters = inspect.signature(self.function).parameters
        for name in ("completions", "completion", "solution_str"):
            if name in parameters:
                return name
        return "steps"


@dataclass(frozen=True, slots=True)
class Reply:
    """What is judged, of an episode of several turns the last reply.

    Attributes:
        completion: the model's text.
        prefill: what the chat template had already written of the reply, such as "<think>\\n".
        completion_ids: the tokens that the model sampled.
        steps: the parts of its text; the replies, if there were several.
        turns: the messages behind the prompt, if there is more than this reply.
        scores: the environment's, by name; a list has one for every step.
        failure: why the episode came to no end; nobody is asked about it then.
        environment: what it was played in, if it was.
    """

    problem: Problem
    completion: str
    prefill: str = ""
    completion_ids: Sequence[int] = ()
    steps: Sequence[str] = ()
    turns: Sequence[Message] = ()
    scores: Mapping[str, Any] = field(default_factory=dict)
    failure: str | None = None
    environment: Any = None


class Judged(NamedTuple):
    """What one function says of one reply: a score, or None and why; and each step's, if it judged those."""

    score: float | None
    cause: str | None = None
    steps: tuple[float, ...] = ()


async def call(reward: Reward, replies: Sequence[Reply]) -> list[Judged]:
    """What the function says of every reply.

    Raises ValueError for a parameter that no column fills, and a list that has not one value per reply or per step.
    """
    if reward.function is None:
        return [given(reward.name, reply) for reply in replies]
    if reward.takes == "completions":
        values, cause = await _run(reward.function, _accepted(reward, _batch_arguments(replies)))
        if cause is not None:
            return [Judged(None, cause)] * len(replies)
        return [as_score(value) for value in _values(reward, values, len(replies), "completion")]
    arguments = [_accepted(reward, _arguments(reward, reply)) for reply in replies]
    return list(await asyncio.gather(*map(_judge, [reward] * len(replies), replies, arguments)))


async def _judge(reward: Reward, reply: Reply, arguments: Mapping[str, Any]) -> Judged:
    assert reward.function is not None, "the environment judges its own scores"
    if reward.takes == "steps" and not reply.steps:
        return Judged(0.0)
    value, cause = await _run(reward.function, arguments)
    if cause is not None:
        return Judged(None, cause)
    if reward.takes == "solution_str" and isinstance(value, Mapping):
        value = value.get("score")
    if reward.takes != "steps" or value is None:
        return as_score(value)
    return _sum(_values(reward, value, len(reply.steps), "step"))


def given(name: str, reply: Reply) -> Judged:
    """What the environment said under a name."""
    if name not in reply.scores:
        return Judged(None, f"the environment has no score {name}, only {', '.join(reply.scores) or 'none'}")
    value = reply.scores[name]
    if not isinstance(value, list | tuple):
        return as_score(value)
    if len(value) != len(reply.steps):
        return Judged(None, f"the environment gave {len(value)} scores for {len(reply.steps)} replies")
    return _sum(value)


def _sum(values: Sequence[Any]) -> Judged:
    """The verdict of one value per step."""
    count = len(values)
    judged = [as_score(one) for one in values]
    for number, one in enumerate(judged, start=1):
        if one.score is None:
            return Judged(None, f"step {number} of {count}: {one.cause}")
    steps = tuple(one.score or 0.0 for one in judged)
    return as_score(sum(steps))._replace(steps=steps)


def _values(reward: Reward, values: Any, count: int, what: str) -> Sequence[Any]:
    """The list that a function returned. Raises ValueError if it is not one of `count` values."""
    values = values.tolist() if hasattr(values, "tolist") else values  # an array or a tensor
    if not isinstance(values, list | tuple) or len(values) != count:
        got = len(values) if isinstance(values, list | tuple) else type(values).__name__
        raise ValueError(
            f"the reward function {reward.name} must return a list with one value per {what}:"
            f" expected {count}, got {got}"
        )
    return values


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


def _arguments(reward: Reward, reply: Reply) -> dict[str, Any]:
    problem = reply.problem
    own: dict[str, Any] = {
        "completion": reply.completion,
        "completion_ids": list(reply.completion_ids),
        "prompt": problem.prompt,
        "prefill": reply.prefill,
        "turns": _turns(reply),
    }
    if reward.takes == "steps":
        own["steps"] = list(reply.steps)
    if reward.takes == "solution_str":
        own |= {"solution_str": reply.completion, "ground_truth": _ground_truth(problem)}
        own |= {"extra_info": problem.info.get("extra_info", {})}
    return {**problem.info, **own, "answer": problem.answer}


def _ground_truth(problem: Problem) -> Any:
    """What a row of verl or SkyRL has as such, as it is there; else the answer."""
    for column in ("reward_model", "reward_spec"):
        value = problem.info.get(column)
        if isinstance(value, Mapping) and "ground_truth" in value:
            return value["ground_truth"]
    return problem.info.get("ground_truth", problem.answer)


def _turns(reply: Reply) -> list[dict[str, str]]:
    own = reply.turns or ({"role": "assistant", "content": reply.completion},)
    return [{"role": turn["role"], "content": turn["content"]} for turn in own]


def _batch_arguments(replies: Sequence[Reply]) -> dict[str, Any]:
    """Prompts and completions in the form that the data has, as with TRL: text, or lists of messages."""
    prompts = [reply.problem.info.get("prompt", reply.problem.prompt) for reply in replies]
    completions = [
        reply.completion if isinstance(prompt, str) and not reply.turns else _turns(reply)
        for reply, prompt in zip(replies, prompts, strict=True)
    ]
    names = dict.fromkeys(name for reply in replies for name in reply.problem.info if name != "prompt")
    columns = {name: [reply.problem.info.get(name) for reply in replies] for name in names}
    columns["answer"] = [reply.problem.answer for reply in replies]
    columns["prefill"] = [reply.prefill for reply in replies]
    columns["completion_ids"] = [list(reply.completion_ids) for reply in replies]
    if any(reply.environment is not None for reply in replies):
        columns["environments"] = [reply.environment for reply in replies]
    return {
        **columns,
        "prompts": [prompt if isinstance(prompt, str) else list(prompt) for prompt in prompts],
        "completions": completions,
    }


def _accepted(reward: Reward, available: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of what of `available` the function takes. Raises ValueError if it needs something else."""
    assert reward.function is not None, "an environment's score takes no arguments"
    parameters = inspect.signature(reward.function).parameters.values()
    options = getattr(reward.function, "keywords", {})  # of functools.partial: a column doesn't replace them
    available = {name: value for name, value in available.items() if name not in options}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        accepted = dict(available)
    else:
        accepted = {p.name: available[p.name] for p in parameters if p.name in available}
    named = [p for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    missing = [p.name for p in named if p.default is p.empty and p.name not in accepted]
    if missing:
        hint = "; only a function without `completion` and `completions` judges `steps`" if "steps" in missing else ""
        raise ValueError(
            f"the reward function {reward.name} needs {', '.join(missing)}, which is neither a column of the"
            f" data nor passed by the library: there are {', '.join(sorted(available))}{hint}"
        )
    return {name: fresh(value) for name, value in accepted.items()}


def as_score(value: Any) -> Judged:
    """What a function returned as a finite number, or None and why it is none."""
    try:
        if getattr(value, "ndim", None) == 0 and hasattr(value, "tolist"):  # of NumPy or torch
            value = value.tolist()  # not item(), which makes 0.0 of a masked value
        if value is None:
            return Judged(None, "returned None")
        if not isinstance(value, numbers.Real | Decimal):
            return Judged(None, inert(f"returned {value!r:.60}, which is a {type(value).__name__} and not a number"))
        number = float(value)
    except Exception as error:  # a user's object may fail in any way, also when it is shown
        return Judged(None, f"returned a {type(value).__name__} that is no number: {type(error).__name__}")
    return Judged(number) if isfinite(number) else Judged(None, f"returned {number}")
