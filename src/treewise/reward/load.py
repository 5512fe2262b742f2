"""Find a reward function by its name: a built-in one, or `path/file.py:function`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from treewise.named import find
from treewise.reward import Reward
from treewise.steps import SEPARATOR

# A class makes a reward with a state.
BUILT_IN = {
    "exact": "treewise.reward.numeric:exact",
    "numeric": "treewise.reward.numeric:numeric",
    "last_number": "treewise.reward.numeric:last_number",
    "math": "treewise.reward.math:MathVerifier",
    "reasoning_gym": "treewise.reward.gym:ReasoningGym",
    "think_format": "treewise.reward.format:think_format",
    "think_answer_format": "treewise.reward.format:think_answer_format",
}


def load_reward(spec: str | Callable[..., Any], *, weight: float = 1.0, name: str | None = None) -> Reward:
    """The reward that `spec` names: a built-in name, `path/file.py:function`, `package.module:function`, or a
    function itself. It is called `name`, or like the function.

    Raises ValueError for an unknown name, a file or function that isn't there, a file that fails to load.
    """
    if callable(spec):
        own_name = str(getattr(spec, "__name__", type(spec).__name__))
        return Reward(name or own_name, spec, weight)
    if not isinstance(spec, str):
        raise ValueError(
            f"a reward is one function, or the name of one, not {spec!r:.60}; several rewards stand in a recipe, "
            "one [[reward]] each"
        )
    found = find(spec, BUILT_IN, "a reward function")
    label = name or (spec.rpartition(":")[2])
    return Reward(label, found() if spec in BUILT_IN and isinstance(found, type) else found, weight)


def check_steps(rewards: Sequence[Reward], *, advantage: str, separator: str) -> None:
    """Refuse what has no effect where no function with a weight judges steps.

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
    if separator != SEPARATOR and not takes_steps:
        raise ValueError(
            f"rollout.step_separator = {separator!r} has no effect: no reward function judges steps ({names})"
        )
