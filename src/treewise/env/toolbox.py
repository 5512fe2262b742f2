"""Functions that a model may call: how it is told of them, how its calls are read, and what it is told they return.

    <tool_call>{"name": "calculator", "arguments": {"expression": "7*8"}}</tool_call>
    <tool_response>⏎56⏎</tool_response>

The form is that of Hermes and Qwen, whose templates write what a tool says in this way into the turn of a user.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from treewise.sandbox import SandboxError
from treewise.text import cut, encodable, inert
from treewise.types import Message

CALLS = 4  # tool calls of one reply; more would take a reply's time limit, which is no verdict
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


class Tool(NamedTuple):
    """A function and its description as the model gets it."""

    function: Callable[..., Any]
    schema: Mapping[str, Any]


def describe(function: Callable[..., Any], name: str) -> Tool:
    """The function as a tool. Raises ValueError for one without types or description."""
    try:
        from transformers.utils import get_json_schema

        schema = get_json_schema(function)
    except ImportError as error:
        raise ValueError(f"the tool {name} can't be described to the model: {error}") from error
    except Exception as error:  # transformers has an exception of its own for each fault
        raise ValueError(
            f"the tool {name} can't be described to the model: {error}; it needs a type for each argument, and a "
            "docstring with a section Args: that has a line for each"
        ) from error
    return Tool(function, schema["function"])


class Toolbox:
    """The tools of one episode.

    Attributes:
        calls, errors: made so far, and those of them that failed.
    """

    def __init__(self, tools: Sequence[Tool], *, turns: int, result_chars: int) -> None:
        """
        Args:
            turns: replies that may call tools; the one behind them is the last.
            result_chars: of what a tool returns the model gets so much, without the middle of what is longer.

        Raises ValueError for two tools of one name, and limits that make no sense.
        """
        if type(turns) is not int or turns < 1:
            raise ValueError(f"turns is {turns!r}: the model needs at least one to call a tool")
        if type(result_chars) is not int or result_chars < 2:
            raise ValueError(f"result_chars is {result_chars!r}: it must be 2 or more")
        self.tools = {str(tool.schema["name"]): tool for tool in tools}
        if len(self.tools) < len(tools):
            raise ValueError(
                f"two of the tools {', '.join(str(tool.schema['name']) for tool in tools)} have the same name"
            )
        self._left, self._chars = turns, result_chars
        self.calls = self.errors = 0

    def explain(self, prompt: str | Sequence[Message]) -> str | Sequence[Message]:
        """The prompt with a description of the tools in its system message."""
        schemas = "\n".join(json.dumps({"type": "function", "function": tool.schema}) for tool in self.tools.values())
        explained = _EXPLAINED.format(tools=schemas)
        if isinstance(prompt, str):
            return f"{explained}\n\n{prompt}"
        if prompt[0]["role"] != "system":
            return [{"role": "system", "content": explained}, *prompt]
        given = prompt[0]["content"]
        text = given.replace("{tools}", schemas) if "{tools}" in given else f"{given}\n\n{explained}"
        return [{"role": "system", "content": text}, *prompt[1:]]

    def answer(self, reply: str) -> list[Message]:
        """What the model is told of the calls in a reply; nothing if there is none, or its turns are used up."""
        calls = _CALL.findall(reply.rpartition("</think>")[2])
        self._left -= 1
        if not calls or self._left < 0:
            return []
        responses = [self._respond(text) for text in calls[:CALLS]]
        if len(calls) > CALLS:
            responses.append(f"Error: only the first {CALLS} tool calls of a reply are made.")
        # Nothing around them: templates know a tool's response by its tags, and keep the thinking before it.
        told = "\n".join(f"<tool_response>\n{response}\n</tool_response>" for response in responses)
        return [{"role": "user", "content": told}]

    def _respond(self, text: str) -> str:
        """What the model is told of one call."""
        self.calls += 1
        try:
            tool, arguments = self._read(text)
            result = self._use(tool, arguments)
        except Refused as error:
            self.errors += 1
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
        if call["name"] not in self.tools:
            raise Refused(f"there is no tool {inert(call['name'], limit=40)}; there are {', '.join(self.tools)}")
        tool, arguments = self.tools[call["name"]], call.get("arguments", {})
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
