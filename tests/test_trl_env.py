"""Environments written for TRL's `environment_factory`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from folders import write_tiny_model
from treewise.env.load import load_environment
from treewise.env.trl import TRLEnvironment
from treewise.loop import train
from treewise.recipe import make_recipe
from treewise.types import Problem

# As TRL's documentation has them.
OWN = '''
class Counter:
    def __init__(self):
        self.value = None

    def reset(self, start, **columns) -> str | None:
        self.value = int(start)
        return f" It stands at {start}."

    def increment(self, step: int) -> int:
        """
        Increment the counter.

        Args:
            step: How much to add.

        Returns:
            The new value.
        """
        self.value += step
        return self.value

    async def spin(self) -> str:
        """
        Do nothing for a while.
        """
        raise RuntimeError("stuck")

    def get_reward(self) -> float:
        return float(self.value == 5)


class Silent(Counter):
    def get_reward(self):
        return None


class Bare:
    def reset(self, **columns):
        pass


def reached(completions, environments, answer, **columns):
    return [float(str(env.value) == gold) for env, gold in zip(environments, answer)]


async def talk(prompts, completions, environments, **columns):
    return [float(len(messages)) for messages in completions]
'''

PROBLEM = Problem("0", ({"role": "user", "content": "Count to 5."},), "5", {"start": 2})


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return str(path)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


async def play(replies: Sequence[str], **options: Any) -> tuple[list[Any], list[str], dict[str, Any]]:
    """The prompt, what was said to each reply, and the scores."""
    game = TRLEnvironment(PROBLEM, **options)
    prompt, told = list(await game.start()), []
    for reply in replies:
        more = await asyncio.to_thread(game.step, reply)
        told += [message["content"] for message in more]
        if not more:
            break
    return prompt, told, await game.scores()


def test_methods_are_tools_and_reset_speaks_behind_the_prompt(own: str) -> None:
    replies = [call("increment", '{"step": 3}'), "It is 5."]
    prompt, told, scores = asyncio.run(play(replies, factory=f"{own}:Counter"))
    assert prompt[-1] == {"role": "user", "content": "Count to 5. It stands at 2."}
    assert '"increment"' in prompt[0]["content"]
    assert '"reset"' not in prompt[0]["content"]
    assert '"get_reward"' not in prompt[0]["content"]
    assert told == ["<tool_response>\n5\n</tool_response>"]
    assert scores == {"Counter": 1.0, "calls": 1.0, "errors": 0.0, "reward": 1.0}


def test_reward_functions_see_the_environment(own: str) -> None:
    replies = [call("increment", '{"step": 1}'), call("spin", "{}"), "done"]
    rewards = {f"{own}:reached": 2.0, f"{own}:talk": 0.1}
    _, told, scores = asyncio.run(play(replies, factory=f"{own}:Counter", rewards=rewards))
    assert told[1] == "<tool_response>\nError: RuntimeError: stuck\n</tool_response>"
    assert scores["reward"] == pytest.approx(0.5)
    assert (scores["Counter"], scores["reached"], scores["talk"], scores["errors"]) == (0.0, 0.0, 5.0, 1.0)


def test_tools_are_not_called_behind_the_last_turn(own: str) -> None:
    replies = [call("increment", '{"step": 3}')] * 2
    assert asyncio.run(play(replies, factory=f"{own}:Counter", turns=1))[2]["calls"] == 1.0


def test_a_reward_of_none_is_no_verdict(own: str) -> None:
    with pytest.raises(RuntimeError, match="Silent gave no reward"):
        asyncio.run(play(["5"], factory=f"{own}:Silent"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"factory": "{own}:Bare"}, "has no method get_reward: give reward functions"),
        ({"factory": "{own}:reached"}, "reached"),
        ({"factory": "Counter"}, "must name an environment as path/file.py:name"),
    ],
)
def test_what_can_not_be_used_is_refused(own: str, options: dict[str, str], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        TRLEnvironment(PROBLEM, factory=options["factory"].format(own=own))


def test_its_options_are_checked() -> None:
    with pytest.raises(ValueError, match="its options are factory, rewards, turns, result_chars"):
        load_environment("trl", options={"factories": "x"})


def test_a_model_trains_in_it(own: str, tmp_path: Path) -> None:
    recipe = make_recipe(
        {"env": {"name": "trl", "options": {"factory": f"{own}:Counter", "rewards": {f"{own}:talk": 1.0}}}},
        {
            "model.path": str(write_tiny_model(tmp_path / "model", max_position_embeddings=4096)),
            "rollout.problems_per_step": 2,
            "rollout.group_size": 2,
            "rollout.max_new_tokens": 4,
            "train.steps": 1,
            "train.output": str(tmp_path),
            "train.name": "run",
        },
    )
    table = [{"prompt": "Count to 5.", "answer": "5", "start": n} for n in range(2)]
    run = train(recipe, problems=table)
    text = (run / "rollouts.jsonl").read_text()
    assert text.count('"talk": 1.0') == 4
    assert '"cause": null' in text
