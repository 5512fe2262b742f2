"""The simplest environment: one prompt, one reply."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from treewise.types import Message, Problem

Score = Callable[[Problem, str], Awaitable[Mapping[str, float | None]]]


class SingleTurn:
    """Asks `problem` once. `score(problem, reply)` gives the scores; without it there are none, and the
    reward functions of the run judge the reply."""

    def __init__(self, problem: Problem, *, score: Score | None = None) -> None:
        self._problem = problem
        self._score = score
        self._started = False
        self._reply: str | None = None

    async def start(self) -> str | Sequence[Message]:
        assert not self._started, "an environment is used once: make a new SingleTurn for each episode"
        self._started = True
        return self._problem.prompt

    async def step(self, reply: str) -> Sequence[Message]:
        assert self._started, "call start() before step()"
        assert self._reply is None, "SingleTurn takes exactly one reply"
        self._reply = reply
        return ()

    async def scores(self) -> Mapping[str, float | None]:
        assert self._reply is not None, "the episode has no reply yet: call start() and step() first"
        return {} if self._score is None else await self._score(self._problem, self._reply)
