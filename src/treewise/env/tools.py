"""Tools: the model calls functions, is told what they return, and gives its answer.

model: <tool_call>{"name": "calculator", "arguments": {"expression": "7*8"}}</tool_call>
user:  <tool_response>⏎56⏎</tool_response>
model: It is 56.                                  no call, so this is the reply that the reward functions judge
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from treewise import sandbox
from treewise.env.toolbox import Refused, Tool, Toolbox, Unavailable, describe
from treewise.named import find
from treewise.sandbox import Limits
from treewise.types import Message, Problem

__all__ = ["Tools", "Unavailable", "load_tool", "python"]

BUILT_IN = {"calculator": "treewise.env.calculator:calculator", "python": "treewise.env.tools:python"}


def python(code: str) -> str:
    """
    Run a Python program and return what it prints. Each program starts anew, and there is no network.

    Args:
        code: The whole program.
    """
    raise AssertionError("the environment runs it, within its limits")


def load_tool(spec: str) -> Tool:
    """The tool that `spec` names: a built-in one, or `path/file.py:function`, whose file is run once.

    Raises ValueError for a function without types or description.
    """
    file = Path(spec.rpartition(":")[0])
    return _load(spec, file.stat().st_mtime_ns if file.suffix == ".py" and file.is_file() else None)


@cache
def _load(spec: str, changed: int | None) -> Tool:
    function = find(spec, BUILT_IN, "a tool")
    return describe(function, spec)


class Tools:
    """One problem with tools. Scores, recorded only: `calls`, and `errors`, those of them that failed."""

    weights: Mapping[str, float] = {"calls": 0.0, "errors": 0.0}

    def __init__(
        self,
        problem: Problem,
        *,
        tools: Sequence[str] = ("calculator", "python"),
        turns: int = 5,
        result_chars: int = 2000,
        seconds: float | None = None,
        memory_mb: int | None = None,
        packages: bool | None = None,
        unprotected: bool | None = None,
    ) -> None:
        """
        Args:
            tools: built-in names, and `path/file.py:function`.
            turns: replies that may call tools; the one behind them is the last.
            result_chars: of what a tool returns the model gets so much, without the middle of what is longer.
            seconds: CPU time of the tool python, 5 by default; twice as long may it take by the clock.
            memory_mb: of the tool python, 1024 by default.
            packages: whether the tool python may import what is installed beside treewise; by default not.
            unprotected: whether the tool python runs where the sandbox can't protect everything; by default not.

        Raises ValueError for a tool that isn't there or has no description, and for an option without effect;
        SandboxError where no program can run.
        """
        if isinstance(tools, str) or not tools:
            raise ValueError(f"tools is {tools!r}: it must be a list with a tool in it")
        found = [load_tool(spec) for spec in tools]
        self._problem = problem
        self._runs_programs = "python" in tools
        own = {"seconds": seconds, "memory_mb": memory_mb, "packages": packages, "unprotected": unprotected}
        given = [name for name, value in own.items() if value is not None]
        if given and not self._runs_programs:
            raise ValueError(f"{given[0]} has no effect without the tool python")
        if self._runs_programs:
            limits = Limits(seconds=seconds or 5.0, wall_seconds=2 * (seconds or 5.0), memory_mb=memory_mb or 1024)
            how: dict[str, Any] = {"limits": limits, "packages": bool(packages), "unprotected": bool(unprotected)}
            sandbox.require(**how)
            found = [t._replace(function=partial(_printed, how=how)) if t.function is python else t for t in found]
        self._box = Toolbox(found, turns=turns, result_chars=result_chars)

    @property
    def notes(self) -> list[str]:
        """What a run says about itself."""
        return [f"tools: {', '.join(self._box.tools)}", *([sandbox.describe()] if self._runs_programs else [])]

    @property
    def concurrency(self) -> int | None:
        """How many of these work at one time, where programs wait for a processor."""
        return sandbox.processors() if self._runs_programs else None

    def start(self) -> str | Sequence[Message]:
        return self._box.explain(self._problem.prompt)

    def step(self, reply: str) -> Sequence[Message]:
        return self._box.answer(reply)

    def scores(self) -> dict[str, float]:
        return {"calls": float(self._box.calls), "errors": float(self._box.errors)}


def _printed(*, code: str, how: Mapping[str, Any]) -> str:
    """What a program prints, and how it failed. Raises Refused for what is no program."""
    if not isinstance(code, str):
        raise Refused("code must be text")
    result = sandbox.run(code, **how)
    told = result.stdout + result.stderr
    if result.outcome == "finished":
        return told or "(it printed nothing)"
    limits = how["limits"]
    stopped = {
        "failed": f"exit code {result.code}",
        "time": f"it took longer than {limits.seconds:g} s",
        "memory": f"it took more than {limits.memory_mb} MB of memory",
    }
    raise Refused(f"{stopped.get(result.outcome, f'it was stopped: too much {result.outcome}')}\n{told}")
