"""Environments that were written for TRL: a class whose public methods are the tools of an episode.

    reset(**columns) ─▶ text behind the prompt      methods ◀─ tool calls of the model
    get_reward(), and reward functions with `environments` ─▶ scores

As with `environment_factory` of TRL 1.16's `GRPOTrainer`, with two differences: an object is made for every episode and
never reset again, and a reward that is `None` is no verdict, where TRL leaves it out of the sum.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from treewise.env.toolbox import Toolbox, describe
from treewise.named import find
from treewise.types import Message, Problem


class TRLEnvironment:
    """One problem. The score `reward` is the weighted sum of its rewards, which are recorded under their names."""

    weights: Mapping[str, float] = {"reward": 1.0, "calls": 0.0, "errors": 0.0}

    def __init__(
        self,
        problem: Problem,
        *,
        factory: str,
        rewards: Mapping[str, float] | None = None,
        turns: int = 5,
        result_chars: int = 2000,
    ) -> None:
        """
        Args:
            factory: `path/file.py:Class`, or a function that makes the object.
            rewards: functions, `path/file.py:function`, with their weights. Beside TRL's arguments they get
                `environments`, a list that holds the object.
            turns: replies that may call tools (TRL's `max_tool_calling_iterations`).
            result_chars: of what a tool returns the model gets so much, without the middle of what is longer.

        Raises ValueError for a class without `reset`, one whose methods can't be described, and one without any reward.
        """
        self._environment = _found(factory, "an environment")()
        kind = type(self._environment)
        if not callable(getattr(self._environment, "reset", None)):
            raise ValueError(f"{factory} has no method reset")
        methods = [name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")]
        tools = [getattr(self._environment, name) for name in methods if name not in ("reset", "get_reward")]
        self._box = Toolbox(
            [describe(tool, f"{kind.__name__}.{tool.__name__}") for tool in tools],
            turns=turns,
            result_chars=result_chars,
        )
        self._rewards = {_found(name, "a reward function"): weight for name, weight in (rewards or {}).items()}
        if not self._rewards and "get_reward" not in methods:
            raise ValueError(f"{factory} has no method get_reward: give reward functions in env.options.rewards")
        self._problem = problem
        self._turns: list[Message] = []

    async def start(self) -> Sequence[Message]:
        prompt = self._problem.prompt
        if isinstance(prompt, str):
            raise ValueError("an environment of TRL needs chat messages, and the model has no chat template")
        *before, last = prompt
        said = await _result(self._environment.reset(**self._columns()))
        if said is not None and not isinstance(said, str):
            raise ValueError(f"reset() returned {said!r:.80}, which is neither text nor None")
        explained = self._box.explain([*before, {"role": last["role"], "content": last["content"] + (said or "")}])
        assert not isinstance(explained, str), "messages were given"
        return explained

    def step(self, reply: str) -> Sequence[Message]:
        told = self._box.answer(reply)
        self._turns += [{"role": "assistant", "content": reply}, *told]
        return told

    async def scores(self) -> dict[str, float | None]:
        found: dict[str, float | None] = {}
        total = 0.0
        if hasattr(self._environment, "get_reward"):
            found[type(self._environment).__name__] = await _result(self._environment.get_reward())
            total += found[type(self._environment).__name__] or 0.0
        for function, weight in self._rewards.items():
            (found[function.__name__],) = await _result(function(**self._arguments()))
            total += weight * (found[function.__name__] or 0.0)
        missing = [name for name, score in found.items() if score is None]
        if missing:
            raise RuntimeError(f"{missing[0]} gave no reward")
        return {**found, "calls": float(self._box.calls), "errors": float(self._box.errors), "reward": total}

    def _columns(self) -> dict[str, Any]:
        """The row of the data."""
        given = {"answer": self._problem.answer} if self._problem.answer is not None else {}
        return {**given, **self._problem.info, "prompt": list(self._problem.prompt)}

    def _arguments(self) -> dict[str, list[Any]]:
        """What TRL gives a reward function: a batch, here of one."""
        columns = {name: [value] for name, value in self._columns().items() if name != "prompt"}
        prompt = list(self._problem.prompt)
        return {**columns, "prompts": [prompt], "completions": [self._turns], "environments": [self._environment]}


def _found(spec: str, what: str) -> Callable[..., Any]:
    """What `spec` names; a file is run once, and again when it has changed."""
    file = Path(spec.rpartition(":")[0])
    return _load(spec, what, file.stat().st_mtime_ns if file.suffix == ".py" and file.is_file() else None)


@cache
def _load(spec: str, what: str, changed: int | None) -> Callable[..., Any]:
    if ":" not in spec:
        raise ValueError(f"{spec!r} must name {what} as path/file.py:name")
    return find(spec, {}, what)


async def _result(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
