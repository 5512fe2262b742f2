"""Find a reward function by its name: a built-in one, or `path/file.py:function`."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from treewise.reward import Reward
from treewise.steps import SEPARATOR

# Imported on use, because some need more than the core packages. A class makes a reward with a state.
BUILT_IN = {
    "exact": "treewise.reward.numeric:exact",
    "numeric": "treewise.reward.numeric:numeric",
    "last_number": "treewise.reward.numeric:last_number",
    "math": "treewise.reward.math:MathVerifier",
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
    where, colon, attribute = spec.rpartition(":")
    if not colon:
        if spec not in BUILT_IN:
            near = difflib.get_close_matches(spec, BUILT_IN, n=1, cutoff=0.0)[0]
            raise ValueError(
                f"there is no reward {spec!r}; the nearest built-in one is {near!r}, and your own is given as"
                " path/file.py:function"
            )
        home, _, attribute = BUILT_IN[spec].partition(":")
        built_in = getattr(importlib.import_module(home), attribute)
        return Reward(name or spec, built_in() if isinstance(built_in, type) else built_in, weight)
    module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    function = getattr(module, attribute, None)
    if not callable(function):
        there = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise ValueError(f"{where} has no function {attribute!r}; it has {', '.join(there) or 'none'}")
    return Reward(name or attribute, function, weight)


def check_steps(rewards: Sequence[Reward], *, advantage: str, separator: str) -> None:
    """Refuse what has no effect where no function with a weight judges steps.

    Raises ValueError for the advantage rule `steps`, which would be that of whole answers, and for a separator.
    """
    takes_steps = [reward for reward in rewards if reward.takes == "steps"]
    names = ", ".join(reward.name for reward in rewards)
    if advantage == "steps" and not any(reward.weight for reward in takes_steps):
        raise ValueError(
            f"objective.advantage = 'steps' has no effect: no reward function with a weight judges steps ({names}); "
            "give one with a parameter `steps`, def judge(steps, answer) -> list[float]"
        )
    if separator != SEPARATOR and not takes_steps:
        raise ValueError(
            f"rollout.step_separator = {separator!r} has no effect: no reward function judges steps ({names})"
        )


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ValueError(f"there is no file {path} to take a reward function from")
    found = importlib.util.spec_from_file_location(f"treewise_user_{path.stem}", path)
    assert found is not None, f"{path} ends in .py"
    assert found.loader is not None, f"{path} is a file"
    module = importlib.util.module_from_spec(found)
    try:
        found.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's file does at import
        raise ValueError(f"{path} fails to load: {type(error).__name__}: {error}") from error
    return module


def _load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # whatever the user's module does at import
        raise ValueError(f"can't import {name!r} to take a reward function from: {error}") from error
