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


@pytest.mark.parametrize("reply", ["2", ""])
def test_a_single_turn_asks_once_and_leaves_the_judgement_to_the_rewards(reply: str) -> None:
    assert asyncio.run(play(SingleTurn(PROBLEM), reply)) == {}


def test_an_environment_is_used_once() -> None:
    environment = SingleTurn(PROBLEM)
    with pytest.raises(AssertionError, match=r"start\(\) comes before"):
        asyncio.run(environment.step("2"))
    asyncio.run(play(environment, "2"))
    with pytest.raises(AssertionError, match="used once"):
        asyncio.run(environment.start())
    with pytest.raises(AssertionError, match="exactly one reply"):
        asyncio.run(environment.step("2"))
