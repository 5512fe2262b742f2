"""Tools: the model calls functions, is told what they return, and gives its answer.

    model: <tool_call>{"name": "calculator", "arguments": {"expression": "7*8"}}</tool_call>
    user:  <tool_response>⏎56⏎</tool_response>
    model: It is 56.                                  no call, so this is the reply that the reward functions judge

The form is that of Hermes and Qwen, whose templates write what a tool says in this way into the turn of a user.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from treewise import sandbox
from treewise.named import find
from treewise.sandbox import Limits, SandboxError
from treewise.text import cut, encodable, inert
from treewise.types import Message, Problem

CALLS = 4  # tool calls of one reply; more would take a reply's time limit, which is no verdict
BUILT_IN = {"calculator": "treewise.env.calculator:calculator", "python": "treewise.env.tools:python"}
_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.S)
_EXPLAINED = (
    "You can use tools. They are described in JSON between <tools> and </tools>:\n<tools>\n{tools}\n</tools>\n"
    "To use one, write its name and its arguments as JSON between <tool_call> and </tool_call>, and end your reply:\n"
    '<tool_call>\n{{"name": "the tool", "arguments": {{"an argument": "its value"}}}}\n</tool_call>\n'
    "You are then told what it returns, between <tool_response> and </tool_response>. A reply without a tool call is "
    "your final answer."
)


class Refused(Exception):
    """A tool call failed; the message is for the model."""


class Unavailable(Exception):
    """For a tool to raise whose own machinery fails: the episode then has no verdict."""


def python(code: str) -> str:
    """
    Run a Python program and return what it prints. Each program starts anew, and there is no network.

    Args:
        code: The whole program.
    """
    raise AssertionError("the environment runs it, within its limits")


class Tool(NamedTuple):
    """A function and its description as the model gets it."""

    function: Callable[..., Any]
    schema: Mapping[str, Any]


def load_tool(spec: str) -> Tool:
    """The tool that `spec` names: a built-in one, or `path/file.py:function`, whose file is run once.

    Raises ValueError for a function without types or description.
    """
    file = Path(spec.rpartition(":")[0])
    return _load(spec, file.stat().st_mtime_ns if file.suffix == ".py" and file.is_file() else None)


@cache
def _load(spec: str, changed: int | None) -> Tool:
    function = find(spec, BUILT_IN, "a tool")
    try:
        from transformers.utils import get_json_schema

        schema = get_json_schema(function)
    except ImportError as error:
        raise ValueError(f"the tool {spec} can't be described to the model: {error}") from error
    except Exception as error:  # transformers has an exception of its own for each fault
        raise ValueError(
            f"the tool {spec} can't be described to the model: {error}; it needs a type for each argument, and a "
            "docstring with a section Args: that has a line for each"
        ) from error
    return Tool(function, schema["function"])


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
        if type(turns) is not int or turns < 1:
            raise ValueError(f"turns is {turns!r}: the model needs at least one to call a tool")
        if type(result_chars) is not int or result_chars < 2:
            raise ValueError(f"result_chars is {result_chars!r}: it must be 2 or more")
        if isinstance(tools, str) or not tools:
            raise ValueError(f"tools is {tools!r}: it must be a list with a tool in it")
        found = [load_tool(spec) for spec in tools]
        self._tools = {str(tool.schema["name"]): tool for tool in found}
        if len(self._tools) < len(found):
            raise ValueError(f"two of the tools {', '.join(tools)} have the same name")
        self._problem, self._turns, self._chars = problem, turns, result_chars
        self._replies = self._calls = self._errors = 0
        self._runs_programs = "python" in tools
        own = {"seconds": seconds, "memory_mb": memory_mb, "packages": packages, "unprotected": unprotected}
        given = [name for name, value in own.items() if value is not None]
        if given and not self._runs_programs:
            raise ValueError(f"{given[0]} has no effect without the tool python")
        if self._runs_programs:
            limits = Limits(seconds=seconds or 5.0, wall_seconds=2 * (seconds or 5.0), memory_mb=memory_mb or 1024)
            how: dict[str, Any] = {"limits": limits, "packages": bool(packages), "unprotected": bool(unprotected)}
            sandbox.require(**how)
            self._tools["python"] = self._tools["python"]._replace(function=partial(_printed, how=how))

    @property
    def notes(self) -> list[str]:
        """What a run says about itself."""
        return [f"tools: {', '.join(self._tools)}", *([sandbox.describe()] if self._runs_programs else [])]

    @property
    def concurrency(self) -> int | None:
        """How many of these work at one time, where programs wait for a processor."""
        return sandbox.processors() if self._runs_programs else None

    def start(self) -> str | Sequence[Message]:
        schemas = "\n".join(json.dumps({"type": "function", "function": tool.schema}) for tool in self._tools.values())
        explained, prompt = _EXPLAINED.format(tools=schemas), self._problem.prompt
        if isinstance(prompt, str):
            return f"{explained}\n\n{prompt}"
        if prompt[0]["role"] != "system":
            return [{"role": "system", "content": explained}, *prompt]
        given = prompt[0]["content"]
        text = given.replace("{tools}", schemas) if "{tools}" in given else f"{given}\n\n{explained}"
        return [{"role": "system", "content": text}, *prompt[1:]]

    def step(self, reply: str) -> Sequence[Message]:
        self._replies += 1
        calls = _CALL.findall(reply.rpartition("</think>")[2])
        if not calls or self._replies > self._turns:
            return []
        responses = [self._respond(text) for text in calls[:CALLS]]
        if len(calls) > CALLS:
            responses.append(f"Error: only the first {CALLS} tool calls of a reply are made.")
        # Nothing around them: templates know a tool's response by its tags, and keep the thinking before it.
        told = "\n".join(f"<tool_response>\n{response}\n</tool_response>" for response in responses)
        return [{"role": "user", "content": told}]

    def scores(self) -> dict[str, float]:
        return {"calls": float(self._calls), "errors": float(self._errors)}

    def _respond(self, text: str) -> str:
        """What the model is told of one call."""
        self._calls += 1
        try:
            tool, arguments = self._read(text)
            result = self._use(tool, arguments)
        except Refused as error:
            self._errors += 1
            result = f"Error: {error}"
        return cut(encodable(result).strip(), self._chars)

    def _read(self, text: str) -> tuple[Tool, dict[str, Any]]:
        """Raises Refused."""
        try:
            call = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise Refused(f"the tool call is no JSON: {error}") from None
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise Refused('a tool call must be an object with "name" and "arguments"')
        if call["name"] not in self._tools:
            raise Refused(f"there is no tool {inert(call['name'], limit=40)}; there are {', '.join(self._tools)}")
        tool, arguments = self._tools[call["name"]], call.get("arguments", {})
        if not isinstance(arguments, dict):
            raise Refused('"arguments" must be an object')
        known, needed = tool.schema["parameters"]["properties"], tool.schema["parameters"].get("required", ())
        wrong = [name for name in arguments if name not in known] or [name for name in needed if name not in arguments]
        if wrong:
            raise Refused(f"the arguments of {call['name']} are {', '.join(known) or 'none'}: {inert(wrong[0])}?")
        return tool, arguments

    def _use(self, tool: Tool, arguments: Mapping[str, Any]) -> str:
        """Raises Refused for an error that the model may see; Unavailable and SandboxError go on."""
        try:
            result = tool.function(**arguments)
            if inspect.isawaitable(result):
                result = asyncio.run(_await(result))  # in this call's own thread
        except (Refused, Unavailable, SandboxError):
            raise
        except (Exception, SystemExit) as error:  # a tool may fail in any way, and the model gave the arguments
            raise Refused(f"{type(error).__name__}: {error}") from None
        if isinstance(result, str):
            return result
        try:
            return json.dumps(result, ensure_ascii=False)
        except (TypeError, ValueError):
            return str(result)


async def _await(result: Any) -> Any:
    return await result


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
