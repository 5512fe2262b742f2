"""Episodes whose own code asks for replies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest

from treewise.env.asking import Asking
from treewise.types import Message

Ask = Callable[[list[Message]], Awaitable[str | None]]


def user(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


async def echo(ask: Ask) -> Mapping[str, float | None]:
    """Asks what was replied, until the reply is empty or there is none."""
    said, count = "begin", 0
    while (reply := await ask(user(said))) not in ("", None):
        said, count = f"you said {reply}", count + 1
    return {"count": float(count), "cut": float(reply is None)}


def test_replies_reach_the_game_and_its_messages_the_loop() -> None:
    async def play() -> None:
        game = Asking(echo)
        assert await game.start() == user("begin")
        assert await game.step("a") == user("you said a")
        assert await game.step("") == []
        assert await game.scores() == {"count": 1.0, "cut": 0.0}

    asyncio.run(play())


def test_a_game_that_gets_no_reply_any_more_still_gives_its_scores() -> None:
    async def play() -> None:
        game = Asking(echo)
        await game.start()
        await game.step("a")
        assert await game.scores() == {"count": 1.0, "cut": 1.0}

    asyncio.run(play())


@pytest.mark.parametrize("turn", [0, 1])
def test_what_the_game_raises_comes_with_the_next_question(turn: int) -> None:
    async def broken(ask: Ask) -> Mapping[str, float | None]:
        for _ in range(turn):
            await ask(user("more"))
        raise OSError("no server")

    async def play() -> None:
        game = Asking(broken)
        await game.start()
        await game.step("a")

    with pytest.raises(OSError, match="no server"):
        asyncio.run(play())


def test_a_game_that_asks_nothing_is_an_error() -> None:
    async def silent(ask: Ask) -> Mapping[str, float | None]:
        return {"count": 0.0}

    with pytest.raises(RuntimeError, match="the environment asked for no reply"):
        asyncio.run(Asking(silent).start())


def test_a_game_whose_time_is_over_is_ended_and_cleans_up() -> None:
    cleaned = []

    async def slow(ask: Ask) -> Mapping[str, float | None]:
        try:
            await ask(user("go"))
            await asyncio.sleep(3600)
        finally:
            cleaned.append(True)
        return {}

    async def play() -> None:
        game = Asking(slow)
        await game.start()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(game.step("a"), 0.05)
        await asyncio.sleep(0)
        assert cleaned == [True]

    asyncio.run(play())
