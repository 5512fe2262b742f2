"""Environments: one object is one episode, written in terms of messages; used once and never reset.

    start() ──▶ messages ──▶ model ──▶ step(reply) ──▶ messages ──▶ model ──▶ … step(reply) ──▶ []
                                                                     scores() ──▶ {"solved": 1.0}

The library keeps the token-exact transcript; an environment sees text only. An environment is a class whose objects
are made of a problem, `Game(problem, **options)`, with `weights`, the share of each score in the reward, or a static
method of the options that returns it.

It may also have `check(problem)`, a static method that raises ValueError for a problem that can't be played; all
problems are asked before a run. Its objects may have `notes`, lines that the run shows at its start, `concurrency`,
how many of them should work at one time, and `judged`, what reward functions get of them as `environments`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from treewise.types import Message

Score = float | None | Sequence[float | None]


class Environment(Protocol):
    """One episode.

    Methods may also be plain functions; they then run in a thread, so that one that waits holds up nobody else. One
    that raises, or takes longer than its time, leaves the episode without a verdict.
    """

    async def start(self) -> str | Sequence[Message]:
        """The prompt: plain text, which the model continues as it stands, or chat messages."""
        ...

    async def step(self, reply: str) -> Sequence[Message]:
        """Answer the model's reply; an empty sequence ends the episode."""
        ...

    async def scores(self) -> Mapping[str, Score]:
        """The named scores of the episode: a number, or a list with one for every reply; `None` is a missing verdict.

        It is also asked for where the environment would have gone on: a reply was cut, or the model's context is full.
        """
        ...
