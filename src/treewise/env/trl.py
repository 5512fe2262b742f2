"""Classes for TRL's `environment_factory`: `reset`, public methods that are tools, perhaps `get_reward`.

    class Counter:
        def reset(self, start, **columns): self.n = start; return f"The number is {start}."   # joins the last message
        def add(self, amount: int) -> int: ...            # a tool, with types and a docstring
        def get_reward(self): return float(self.n == 7)   # the score `Counter`, of weight 1

As with TRL 1.16, but for these: every episode has an object of its own, which is reset once; the tools stand in the
system message in the form of Hermes and Qwen, and results that are no text are told as JSON, as with `tools`. TRL
itself isn't needed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from treewise.env.toolbox import Toolbox, describe
from treewise.named import find
from treewise.types import Message, Problem

OWN = ("reset", "get_reward")  # methods that are no tools


class TRLEnvironment:
    """One problem. Scores: what `get_reward` returns, called like the class, if there is one; recorded only: `calls`,
    and `errors`, those of them that failed. Reward functions get the object in `environments`."""

    def __init__(self, problem: Problem, *, factory: str, turns: int = 5, result_chars: int = 2000) -> None:
        """
        Args:
            factory: `path/file.py:Class`, or a function without parameters that makes one.
            turns: replies that may call tools, TRL's max_tool_calling_iterations; the one behind them is the last.
            result_chars: of what a tool returns the model gets so much, without the middle of what is longer.

        Raises ValueError for a class without `reset`, or one that needs a column which the data doesn't have, a tool
        without types or description, a number that is too small.
        """
        self.judged = _make(factory)
        names = [name for name in _methods(self.judged) if name not in OWN and not name.startswith("_")]
        tools = [describe(getattr(self.judged, name), f"{factory}.{name}") for name in names]
        self._box = Toolbox(tools, turns=turns, result_chars=result_chars)
        self._problem, self._columns = problem, _accepted(self.judged, problem, factory)

    @staticmethod
    def weights(*, factory: str, turns: Any = None, result_chars: Any = None) -> dict[str, float]:
        """The reward of the class itself counts, if it has one."""
        made = _make(factory)
        own = {type(made).__name__: 1.0} if "get_reward" in _methods(made) else {}
        return {**own, "calls": 0.0, "errors": 0.0}

    @property
    def notes(self) -> list[str]:
        """What a run says about itself."""
        return [f"tools of {type(self.judged).__name__}: {', '.join(self._box.tools) or 'none'}"]

    def start(self) -> str | Sequence[Message]:
        told = self.judged.reset(**self._columns)
        prompt: str | tuple[Message, ...] = self._problem.prompt
        if told is not None and not isinstance(told, str):
            raise ValueError(f"reset() returned a {type(told).__name__}: it can return a text or None")
        if isinstance(prompt, str):
            prompt += told or ""
        elif told:
            last = prompt[-1]
            prompt = (*prompt[:-1], Message(role=last["role"], content=last["content"] + told))
        return self._box.explain(prompt) if self._box.tools else prompt

    def step(self, reply: str) -> Sequence[Message]:
        return self._box.answer(reply)

    def scores(self) -> dict[str, Any]:
        found: dict[str, Any] = {"calls": float(self._box.calls), "errors": float(self._box.errors)}
        if "get_reward" in _methods(self.judged):
            reward = self.judged.get_reward()
            found[type(self.judged).__name__] = asyncio.run(_await(reward)) if inspect.isawaitable(reward) else reward
        return found


def _methods(made: object) -> list[str]:
    """Names of the methods; asked of the class, since properties of the object would be evaluated."""
    return [name for name, _ in inspect.getmembers(type(made), predicate=inspect.isfunction)]


def _make(factory: str) -> Any:
    """A new object. Raises ValueError if it has no `reset`."""
    if not isinstance(factory, str) or ":" not in factory:
        raise ValueError(f"factory is {factory!r}: it is the name of one class, path/file.py:Class")
    file = Path(factory.rpartition(":")[0])
    made = _find(factory, file.stat().st_mtime_ns if file.suffix == ".py" and file.is_file() else None)()
    if "reset" not in _methods(made):
        raise ValueError(f"{factory} makes a {type(made).__name__}, which has no method reset(**columns)")
    return made


@cache
def _find(factory: str, changed: int | None) -> Callable[[], Any]:
    return find(factory, {}, "an environment of TRL")


def _accepted(made: Any, problem: Problem, factory: str) -> Mapping[str, Any]:
    """The columns that `reset` takes. Raises ValueError if it needs others."""
    columns = {"prompt": problem.prompt if isinstance(problem.prompt, str) else [*problem.prompt], **problem.info}
    if problem.answer is not None:
        columns["answer"] = problem.answer
    parameters = inspect.signature(made.reset).parameters
    if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        columns = {name: value for name, value in columns.items() if name in parameters}
    try:
        inspect.signature(made.reset).bind(**columns)
    except TypeError as error:
        raise ValueError(f"reset of {factory}: {error}; the data has {', '.join(problem.info) or 'nothing'}") from None
    return columns


async def _await(result: Any) -> Any:
    return await result
