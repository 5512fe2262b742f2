"""Find a reward function by its name: a built-in one, or `path/file.py:function`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pydantic import ValidationError

from treewise.named import find
from treewise.recipe import explain_fault
from treewise.reward import Reward
from treewise.reward.isolated import Isolated
from treewise.sections import RewardItem
from treewise.steps import SEPARATOR
from treewise.types import Problem

# A class makes a reward with options or a state.
BUILT_IN = {
    "exact": "treewise.reward.numeric:exact",
    "numeric": "treewise.reward.numeric:numeric",
    "last_number": "treewise.reward.numeric:last_number",
    "choice": "treewise.reward.choice:choice",
    "math": "treewise.reward.math:MathVerifier",
    "reasoning_gym": "treewise.reward.gym:ReasoningGym",
    "json_schema": "treewise.reward.schema:JsonSchema",
    "judge": "treewise.reward.judge:Judge",
    "think_format": "treewise.reward.format:think_format",
    "think_answer_format": "treewise.reward.format:think_answer_format",
    "language": "treewise.reward.language:Language",
    "repetition": "treewise.reward.repetition:Repetition",
    "soft_overlong": "treewise.reward.length:SoftOverlong",
    "cosine_length": "treewise.reward.length:CosineLength",
}
# What the library passes to a function, so what no option can set.
PASSED = frozenset(
    {
        *("answer", "completion", "completion_ids", "completions", "environments", "prefill", "prompt", "prompts"),
        *("solution_str", "steps", "turns"),
    }
)


def load_rewards(items: Sequence[RewardItem]) -> tuple[Reward, ...]:
    """The rewards of a recipe."""
    return tuple(
        load_reward(
            item.function,
            weight=item.weight,
            name=item.label,
            options=item.options,
            gate=item.gate,
            seconds=item.seconds,
            when=item.when,
        )
        for item in items
    )


def load_reward(
    spec: str | Callable[..., Any],
    *,
    weight: float = 1.0,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    gate: float | None = None,
    seconds: float | None = None,
    when: Mapping[str, Any] | None = None,
) -> Reward:
    """The reward that `spec` names: a built-in name, `path/file.py:function`, `package.module:function`, or a
    function itself. It is called `name`, or like the function.

    Args:
        options: keyword arguments of the class that `spec` names, or of the function.
        gate: the score that an answer must reach to earn anything.
        seconds: judge each reply in a process that is killed after this time.
        when: columns and their values, of the problems that it is for.

    Raises ValueError for an unknown name, a file or function that isn't there, a file that fails to load, an option
    that it doesn't take, a time limit that it can't have.
    """
    if callable(spec):
        label = name or str(getattr(spec, "__name__", type(spec).__name__))
        found: Any = spec
    elif isinstance(spec, str):
        label = name or spec.rpartition(":")[2]
        found = find(spec, BUILT_IN, "a reward function")
    else:
        raise ValueError(
            f"a reward is one function, or the name of one, not {spec!r:.60}; several rewards stand in a recipe, "
            "one [[reward]] each"
        )
    given = dict(options or {})
    if isinstance(found, type):
        function, bound = _made(found, label, given), {}
    else:
        function, bound = found, _checked(found, label, given)
    if seconds is not None:
        made_with = given if isinstance(found, type) else None
        function = _isolated(spec, Reward(label, function), made_with=made_with, seconds=seconds)
    return Reward(label, partial(function, **bound) if bound else function, weight, gate, dict(when or {}))


def _made(found: type, label: str, options: dict[str, Any]) -> Callable[..., Any]:
    """An object of the class."""
    try:
        inspect.signature(found).bind(**options)
    except TypeError as error:
        known = ", ".join(inspect.signature(found).parameters)
        raise ValueError(
            f"options = {options} don't suit the reward {label}: {error}; its options are {known or 'none'}"
        ) from None
    try:
        return found(**options)  # type: ignore[no-any-return]
    except ValidationError as error:
        raise ValueError(f"options of the reward {label}: {explain_fault(error)}") from None


def _checked(found: Callable[..., Any], label: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options, if the function takes them."""
    parameters = inspect.signature(found).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    known = [name for name in known if name not in PASSED]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [name for name in options if name not in known and not (takes_all and name not in PASSED)]
    if unknown:
        raise ValueError(
            f"the reward {label} has no option {unknown[0]!r}; it has {', '.join(known) or 'none'}"
            + (", and any that is not passed by the library" if takes_all else "")
        )
    return options


def _isolated(spec: Any, reward: Reward, *, made_with: dict[str, Any] | None, seconds: float) -> Isolated:
    """The function in a process of its own. Raises ValueError where that has no effect or can't work."""
    if not isinstance(spec, str):
        raise ValueError(
            f"seconds = {seconds:g} needs a function that another process can find: give the reward {reward.name} as "
            "path/file.py:function in place of the function itself"
        )
    if spec in BUILT_IN:
        raise ValueError(
            f"seconds = {seconds:g} is for functions of your own: the built-in reward {spec} doesn't hang, or has an "
            "option `deadline`"
        )
    if reward.takes == "completions":
        raise ValueError(
            f"seconds = {seconds:g} can't work for the reward {reward.name}, which judges a whole batch: one reply "
            "that hangs would take the verdict from all; give it the parameter `completion` in place of `completions`"
        )
    assert reward.function is not None, "it was found"
    return Isolated(spec, inspect.signature(reward.function), made_with=made_with, seconds=seconds)


def check_steps(rewards: Sequence[Reward], *, advantage: str, separator: str, played: bool) -> None:
    """Refuse what has no effect where no function with a weight judges steps, or where the steps are the replies.

    Args:
        played: whether answers are episodes of an environment.

    Raises ValueError for the advantage rule `steps`, which would be that of whole answers, and for a separator.
    """
    takes_steps = [reward for reward in rewards if reward.takes == "steps"]
    names = ", ".join(reward.name for reward in rewards)
    # An environment may score every reply; whether it does is seen in the first episode.
    if advantage == "steps" and not any(r.weight for r in rewards if r.takes in ("steps", "nothing")):
        raise ValueError(
            f"objective.advantage = 'steps' has no effect: no reward function with a weight judges steps ({names}); "
            "give one with a parameter `steps`, def judge(steps, answer) -> list[float]"
        )
    if separator != SEPARATOR and played:
        raise ValueError(
            f"rollout.step_separator = {separator!r} has no effect in an environment, where every reply is a step"
        )
    if separator != SEPARATOR and not takes_steps:
        raise ValueError(
            f"rollout.step_separator = {separator!r} has no effect: no reward function judges steps ({names})"
        )


def check_conditions(rewards: Sequence[Reward], problems: Sequence[Problem], *, whole: bool) -> None:
    """Refuse conditions that no problem meets, and problems that no reward is for.

    Args:
        whole: whether these are all problems.

    Raises ValueError.
    """
    for reward in rewards:
        if reward.when and whole and not any(map(reward.concerns, problems)):
            name, value = next(iter(reward.when.items()))
            there = list(dict.fromkeys(str(problem.info.get(name)) for problem in problems))
            raise ValueError(
                f"the reward {reward.name} is for problems with {reward.when}, and there is none: {name} is "
                f"{', '.join(there[:5])}{', …' if len(there) > 5 else ''}, not {value!r}"
            )
    for problem in problems:
        if not any(reward.weight and reward.concerns(problem) for reward in rewards):
            raise ValueError(
                f"no reward with a weight is for problem {problem.id!r}, whose data_source is "
                f"{problem.info.get('data_source')!r}; add one, or change the `when` of the others"
            )
