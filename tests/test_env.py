"""The single-turn environment."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from treewise.env import Environment
from treewise.env.single_turn import SingleTurn
from treewise.types import Problem

PROBLEM = Problem("0", ({"role": "user", "content": "1+1?"},), "2")


async def play(environment: Environment, reply: str) -> Mapping[str, float | None]:
    assert list(await environment.start()) == list(PROBLEM.prompt)
    assert list(await environment.step(reply)) == []
    return await environment.scores()


def test_a_single_turn_asks_once_and_scores_the_reply() -> None:
    async def score(problem: Problem, reply: str) -> dict[str, float | None]:
        return {"right": float(problem.answer == reply), "length": None}

    assert asyncio.run(play(SingleTurn(PROBLEM, score=score), "2")) == {"right": 1.0, "length": None}
    assert asyncio.run(play(SingleTurn(PROBLEM), "2")) == {}


def test_m05_an_empty_reply_is_scored_as_text() -> None:
    async def score(problem: Problem, reply: str) -> dict[str, float | None]:
        assert reply == ""
        return {"right": 0.0}

    assert asyncio.run(play(SingleTurn(PROBLEM, score=score), "")) == {"right": 0.0}


def test_an_environment_is_used_once() -> None:
    environment = SingleTurn(PROBLEM)
    with pytest.raises(AssertionError, match=r"call start\(\)"):
        asyncio.run(environment.step("2"))
    asyncio.run(play(environment, "2"))
    with pytest.raises(AssertionError, match="used once"):
        asyncio.run(environment.start())
    with pytest.raises(AssertionError, match="exactly one reply"):
        asyncio.run(environment.step("2"))
