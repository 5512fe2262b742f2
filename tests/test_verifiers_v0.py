"""Environments of the older API of `verifiers`, in the real package."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from folders import write_tiny_model
from treewise.data import load_problems
from treewise.env.verifiers_v0 import VerifiersV0
from treewise.loop import train
from treewise.recipe import make_recipe
from treewise.track import read_lines
from treewise.types import Problem

pytest.importorskip("verifiers", reason="pip install 'verifiers>=0.1.14,<0.3'")
if importlib.util.find_spec("verifiers.clients") is None:
    pytest.skip("this verifiers has no older API", allow_module_level=True)

SOURCE = "verifiers_v0:environment_verifiers_v0"


async def play(problem: Problem, replies: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    VerifiersV0.check(problem)
    game = VerifiersV0(problem)
    said = [(await game.start())[-1]["content"]]
    for reply in replies:
        more = await game.step(reply)
        if not more:
            break
        said += [message["content"] for message in more]
    return said, dict(await game.scores())


def test_a_game_goes_on_as_its_environment_says() -> None:
    problems, _ = load_problems(SOURCE)
    said, scores = asyncio.run(play(problems[3], ["2", "<think>less</think>7", "4"]))
    assert said == ["guess my number", "higher", "lower"]
    assert (scores["reward"], scores["found"], scores["short"], scores["num_turns"]) == (1.0, 1.0, 0.0, 3.0)
    said, scores = asyncio.run(play(problems[3], ["4", "5"]))
    assert said == ["guess my number"]
    assert scores["reward"] == 1.5


def test_a_cut_episode_is_scored_as_it_stands() -> None:
    problems, _ = load_problems(SOURCE)
    assert asyncio.run(play(problems[3], ["2"]))[1]["found"] == 0.0


def test_a_reward_function_that_raises_is_no_verdict_and_not_the_zero_that_verifiers_makes_of_it() -> None:
    problems, _ = load_problems(SOURCE)
    with pytest.raises(RuntimeError, match="found: RuntimeError: the grader is broken"):
        asyncio.run(play(problems[8], ["9"]))


def test_a_model_trains_on_an_environment(tmp_path: Path) -> None:
    recipe = make_recipe(
        {"data": {"source": SOURCE, "options": {"count": 4}}, "env": {"name": "verifiers_v0"}},
        {
            "model.path": str(write_tiny_model(tmp_path / "model")),
            "rollout.problems_per_step": 2,
            "rollout.group_size": 4,
            "rollout.max_new_tokens": 4,
            "train.steps": 2,
            "train.output": str(tmp_path),
            "train.name": "run",
        },
    )
    rows, _ = read_lines(train(recipe) / "rollouts.jsonl")
    assert len(rows) == 16
    assert {"reward", "found", "short"} < rows[0]["scores"].keys()
    assert all(row["cause"] is None for row in rows)
