"""The simplest environment: one prompt, one reply; the run's reward functions judge the reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treewise.types import Message, Problem


class SingleTurn:
    """Asks `problem` once."""

    weights: Mapping[str, float] = {}
    judged = None

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._started = self._replied = False

    async def start(self) -> str | Sequence[Message]:
        assert not self._started, "an environment is used once: make a new SingleTurn for each episode"
        self._started = True
        return self._problem.prompt

    async def step(self, reply: str) -> Sequence[Message]:
        assert self._started, "start() comes before step()"
        assert not self._replied, "SingleTurn takes exactly one reply"
        self._replied = True
        return ()

    async def scores(self) -> Mapping[str, float | None]:
        assert self._replied, "the episode has no reply yet: call start() and step() first"
        return {}
