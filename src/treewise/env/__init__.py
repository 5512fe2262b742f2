"""Environments: one object is one episode, written in terms of messages; used once and never reset.

    start() ──▶ messages ──▶ model ──▶ step(reply) ──▶ messages ──▶ model ──▶ … step(reply) ──▶ []
                                                                     scores() ──▶ {"solved": 1.0}

The library keeps the token-exact transcript; an environment sees text only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from treewise.types import Message


class Environment(Protocol):
    """One episode."""

    async def start(self) -> str | Sequence[Message]:
        """The prompt: plain text, which the model continues as it stands, or chat messages."""
        ...

    async def step(self, reply: str) -> Sequence[Message]:
        """Answer the model's reply; an empty sequence ends the episode."""
        ...

    async def scores(self) -> Mapping[str, float | None]:
        """The named scores of the finished episode; `None` is a missing verdict."""
        ...
