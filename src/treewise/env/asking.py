"""An episode whose own code asks for replies, as other libraries have it, for a loop that asks for messages.

play(ask):  reply = await ask(messages) ─▶ … ─▶ scores
loop:       start() ─▶ messages    step(reply) ─▶ messages    scores()
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

from treewise.types import Message

Ask = Callable[[list[Message]], Awaitable[str | None]]  # None: there is no reply any more
Play = Callable[[Ask], Coroutine[Any, Any, Mapping[str, float | None]]]


class Asking:
    """One episode. What `play` raises, the loop is told of at its next question."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self._asked: asyncio.Queue[list[Message]] = asyncio.Queue()
        self._told: asyncio.Queue[str | None] = asyncio.Queue()
        self._game: asyncio.Task[Mapping[str, float | None]] | None = None

    async def start(self) -> Sequence[Message]:
        self._game = asyncio.create_task(self._play(self._ask))
        asked = await self._next()
        if not asked:
            raise RuntimeError("the environment asked for no reply")
        return asked

    async def step(self, reply: str) -> Sequence[Message]:
        self._told.put_nowait(reply)
        return await self._next()

    async def scores(self) -> Mapping[str, float | None]:
        assert self._game is not None, "scores are asked for behind the start"
        if not self._game.done():
            self._told.put_nowait(None)
        return await self._game

    async def _ask(self, messages: list[Message]) -> str | None:
        self._asked.put_nowait(messages)
        return await self._told.get()

    async def _next(self) -> list[Message]:
        """What the model is asked next; nothing behind the end."""
        assert self._game is not None, "there is a game behind the start"
        asked = asyncio.ensure_future(self._asked.get())
        try:
            await asyncio.wait({asked, self._game}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:  # its time is over
            asked.cancel()
            self._game.cancel()
            raise
        if asked.done():
            return asked.result()
        asked.cancel()
        await self._game  # raises what it raised
        return []
