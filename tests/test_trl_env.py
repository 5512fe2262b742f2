"""Environments written for TRL's `environment_factory`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from folders import write_tiny_model
from treewise.env.load import load_environment
from treewise.env.trl import TRLEnvironment
from treewise.loop import train
from treewise.recipe import make_recipe
from treewise.track import read_lines
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


class Needy:
    def reset(self, depth):
        pass


class Still:
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


def play(replies: Sequence[str], **options: Any) -> tuple[list[Any], list[str], TRLEnvironment]:
    """The prompt, what was said to each reply, and the environment."""
    game = TRLEnvironment(PROBLEM, **options)
    prompt, told = list(game.start()), []
    for reply in replies:
        more = game.step(reply)
        told += [message["content"] for message in more]
        if not more:
            break
    return prompt, told, game


def test_methods_are_tools_and_reset_speaks_behind_the_prompt(own: str) -> None:
    prompt, told, game = play([call("increment", '{"step": 3}'), "It is 5."], factory=f"{own}:Counter")
    assert prompt[-1] == {"role": "user", "content": "Count to 5. It stands at 2."}
    assert '"increment"' in prompt[0]["content"]
    assert '"reset"' not in prompt[0]["content"]
    assert '"get_reward"' not in prompt[0]["content"]
    assert told == ["<tool_response>\n5\n</tool_response>"]
    assert game.scores() == {"Counter": 1.0, "calls": 1.0, "errors": 0.0}


def test_a_tool_that_raises_tells_the_model_and_async_ones_are_awaited(own: str) -> None:
    _, told, game = play([call("spin", "{}"), "done"], factory=f"{own}:Counter")
    assert told == ["<tool_response>\nError: RuntimeError: stuck\n</tool_response>"]
    assert game.scores() == {"Counter": 0.0, "calls": 1.0, "errors": 1.0}


def test_tools_are_not_called_behind_the_last_turn(own: str) -> None:
    assert play([call("increment", '{"step": 3}')] * 2, factory=f"{own}:Counter", turns=1)[2].scores()["calls"] == 1.0


def test_the_class_s_own_reward_counts_with_weight_one(own: str) -> None:
    loaded = load_environment("trl", options={"factory": f"{own}:Counter"})
    assert loaded.weights == {"Counter": 1.0, "calls": 0.0, "errors": 0.0}
    bare = load_environment("trl", options={"factory": f"{own}:Bare"})
    assert bare.weights == {"calls": 0.0, "errors": 0.0}
    halved = load_environment("trl", options={"factory": f"{own}:Counter"}, weights={"Counter": 0.5})
    assert halved.weights["Counter"] == 0.5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"factory": "{own}:Needy"}, "missing a required argument: 'depth'; the data has start"),
        ({"factory": "{own}:Still"}, "has no method reset"),
        ({"factory": "Counter"}, "it is the name of one class, path/file.py:Class"),
    ],
)
def test_what_can_not_be_used_is_refused(own: str, options: dict[str, str], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        TRLEnvironment(PROBLEM, factory=options["factory"].format(own=own))


def test_its_options_are_checked() -> None:
    with pytest.raises(ValueError, match="its options are factory, turns, result_chars"):
        load_environment("trl", options={"factories": "x"})


def trained(own: str, folder: Path, **values: Any) -> list[dict[str, Any]]:
    recipe = make_recipe(
        values,
        {
            "model.path": str(write_tiny_model(folder / "model", max_position_embeddings=4096)),
            "rollout.problems_per_step": 2,
            "rollout.group_size": 2,
            "rollout.max_new_tokens": 4,
            "train.steps": 1,
            "train.output": str(folder),
            "train.name": "run",
        },
    )
    prompt = [{"role": "user", "content": "Count to 5."}]
    table = [{"prompt": prompt, "answer": str(n), "start": n} for n in range(2)]
    rows, _ = read_lines(train(recipe, problems=table) / "rollouts.jsonl")
    return rows


def test_reward_functions_get_the_object_of_the_episode(own: str, tmp_path: Path) -> None:
    rows = trained(
        own,
        tmp_path,
        env={"name": "trl", "options": {"factory": f"{own}:Counter"}},
        reward=[{"function": f"{own}:reached", "weight": 2.0}, {"function": f"{own}:talk", "weight": 0.1}],
    )
    for row in rows:
        assert row["scores"] == {"reached": 1.0, "talk": 1.0, "Counter": 0.0, "calls": 0.0, "errors": 0.0}
        assert row["reward"] == pytest.approx(2.1)


def test_a_reward_of_none_is_no_verdict(own: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Silent: returned None. There is nothing to learn from"):
        trained(own, tmp_path, env={"name": "trl", "options": {"factory": f"{own}:Silent"}})


def test_environments_without_one_are_said_to_be_missing(own: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="reached needs environments, which is neither a column"):
        trained(own, tmp_path, reward=[{"function": f"{own}:reached"}])
