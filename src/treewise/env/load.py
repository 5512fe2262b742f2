"""Find an environment by its name: a built-in one, or `path/file.py:Class`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from treewise.env import Environment
from treewise.env.single_turn import SingleTurn
from treewise.named import find
from treewise.types import Problem

BUILT_IN = {
    "code": "treewise.env.code:Code",
    "textarena": "treewise.env.textarena:TextArena",
    "tools": "treewise.env.tools:Tools",
    "trl": "treewise.env.trl:TRLEnvironment",
    "verifiers": "treewise.env.verifiers:Verifiers",
    "verifiers_v0": "treewise.env.verifiers_v0:VerifiersV0",
    "wordle": "treewise.env.wordle:Wordle",
}
METHODS = ("start", "step", "scores")


class Loaded(NamedTuple):
    """How an environment is made of a problem, and the weight of each of its scores in the reward.

    `check` raises ValueError for a problem that can't be played.
    """

    make: Callable[[Problem], Environment]
    weights: Mapping[str, float]
    check: Callable[[Problem], object]


def load_environment(
    name: str | Callable[..., Any] | None,
    *,
    options: Mapping[str, Any] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Loaded:
    """The environment that `name` names, or a class itself; `None` asks each problem once.

    Args:
        options: keyword arguments of the class, beside the problem.
        weights: in place of its own; a score without one is recorded only.

    Raises ValueError for an unknown name, a class without the three methods or without weights, an option that it
    doesn't take.
    """
    found: Any = SingleTurn if name is None else name
    if isinstance(name, str):
        found = find(name, BUILT_IN, "an environment")
    elif name is not None:
        name = getattr(name, "__name__", type(name).__name__)
    missing = [method for method in METHODS if not callable(getattr(found, method, None))]
    if missing:
        raise ValueError(f"the environment {name} has no {', no '.join(missing)}; it needs {', '.join(METHODS)}")
    given = dict(options or {})
    try:
        inspect.signature(found).bind(Problem("", ""), **given)
    except TypeError as error:
        known = list(inspect.signature(found).parameters)[1:]
        raise ValueError(
            f"env.options = {given} doesn't suit the environment {name}: {error}; its options are "
            f"{', '.join(known) or 'none'}"
        ) from None
    own = getattr(found, "weights", None)
    own = own(**given) if callable(own) else own
    if weights is None and not isinstance(own, Mapping):
        raise ValueError(
            f"the environment {name} doesn't say what its scores are worth: give the class weights = "
            '{"solved": 1.0}, or set env.weights'
        )
    own = dict(own or {})
    if weights is not None:
        if own and (unknown := sorted(weights.keys() - own)):
            raise ValueError(f"env.weights has {unknown[0]!r}, but the scores of {name} are {', '.join(own)}")
        own = {**dict.fromkeys(own, 0.0), **weights}
    return Loaded(partial(found, **given), own, getattr(found, "check", _any))


def _any(problem: Problem) -> None:
    """Any problem can be played."""
