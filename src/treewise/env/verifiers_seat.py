"""The seat of a verifiers agent, with the model that learns in it.

    interaction.turn(message) ─▶ ask(messages) ─▶ the loop samples ─▶ Segment(reply)

An agent of verifiers starts a program that calls a model over HTTP; here the question goes to whoever made the seat.
The trace has the messages, which is what rewards look at, and no tokens.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from treewise.env.asking import Ask
from treewise.types import Message


class Seat:
    """What an environment of verifiers finds in the place of its agent."""

    trainable = True

    def __init__(self, ask: Ask, traces: list[Any], *, programs: bool) -> None:
        """
        Args:
            programs: whether hooks of a task may run programs on this machine.
        """
        self._ask, self._traces, self._programs = ask, traces, programs

    async def run(self, task: Any) -> Any:
        """One reply."""
        async with self.interaction(task) as interaction:
            await interaction.turn()
        return interaction.trace

    @asynccontextmanager
    async def interaction(self, task: Any) -> AsyncIterator[Interaction]:
        """A conversation, and behind it the task's own verdict."""
        from verifiers.v1.configs.agent import AgentConfig
        from verifiers.v1.runtimes import SubprocessConfig, provision_runtime
        from verifiers.v1.state import state_cls
        from verifiers.v1.trace import AgentInfo, Trace
        from verifiers.v1.utils.decorators import invoke

        config = SubprocessConfig()
        trace = Trace(
            task=recorded(task),
            state=state_cls(type(task))(),
            agent=AgentInfo(config=AgentConfig(runtime=config)),
        )
        async with AsyncExitStack() as stack:
            runtime = None
            if self._programs:
                provided = provision_runtime(config, name=trace.id, env=dict(task.runtime_env()))
                runtime = await stack.enter_async_context(provided)
            available = {"trace": trace, "runtime": runtime}
            await invoke(task.setup, available)
            yield Interaction(task, trace, self._ask)
            trace.stop("user_closed")
            await invoke(task.finalize, available)
            await task.score(trace, runtime)
            trace.ok = True
            self._traces.append(trace)


class Interaction:
    """A conversation that a taskset holds with the model."""

    def __init__(self, task: Any, trace: Any, ask: Ask) -> None:
        self.trace = trace
        self._task, self._ask = task, ask
        self._said: list[Any] = []

    async def turn(self, message: str | Sequence[Any] | None = None) -> Any:
        """Say something, and return the reply; a `terminated` segment if there is none any more."""
        from verifiers.v1 import graph
        from verifiers.v1.agent import Segment
        from verifiers.v1.dialects.chat import parse_message
        from verifiers.v1.session import call_hook
        from verifiers.v1.trace import Trace
        from verifiers.v1.types import AssistantMessage, Response, UserMessage

        new = [] if self._said else opening(self.trace.task.data)
        if isinstance(message, str):
            new.append(UserMessage(content=message))
        elif message is not None:
            new += [parse_message(one) if isinstance(one, dict) else one for one in message]
        for hook in self._task.hooks("stop"):
            if await call_hook(hook, {Trace: self.trace}):
                self.trace.stop(hook.__name__)
        reply = None if self.trace.stop_condition is not None else await self._ask(plain(new))
        if reply is None:
            self.trace.stop("max_total_tokens")
            return Segment(messages=[], terminated=True)
        thought, closed, said = reply.rpartition("</think>")
        answer = AssistantMessage(content=said.strip(), reasoning_content=thought if closed else None)
        self._said += new
        response = Response(id="", created=int(time.time()), model="policy", message=answer, finish_reason="stop")
        graph.prepare_turn(self.trace, list(self._said)).commit(response)
        self._said.append(answer)
        return Segment(messages=[answer])


def recorded(task: Any) -> Any:
    from verifiers.v1.trace import TraceTask

    return TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)


def opening(data: Any) -> list[Any]:
    """The messages that a task begins with; at most a system message if its environment opens the conversation."""
    from verifiers.v1.types import SystemMessage, UserMessage

    system = [] if data.system_prompt is None else [SystemMessage(content=data.system_prompt)]
    prompt = [UserMessage(content=data.prompt)] if isinstance(data.prompt, str) else list(data.prompt or [])
    return [*system, *prompt]


def plain(messages: Sequence[Any]) -> list[Message]:
    """The messages as ours. Raises ValueError for what is no text."""
    result: list[Message] = []
    for message in messages:
        parts = message.content if isinstance(message.content, list) else []
        if any(part.type != "text" for part in parts):
            raise ValueError(f"a message of the role {message.role} holds more than text")
        text = "".join(part.text for part in parts) if parts else message.content or ""
        result.append({"role": message.role, "content": text})
    return result
