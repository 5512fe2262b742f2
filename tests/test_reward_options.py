"""What a [[reward]] can say besides function and weight: name, options, gate; deadlines stand with the faults."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from folders import write_problems, write_tiny_model
from treewise.loop import train
from treewise.recipe import load_recipe, make_recipe
from treewise.records import read_groups, reward_weights, run_recipe
from treewise.reward import Reply, Reward, Verdict, compose, score
from treewise.reward.load import load_reward, load_rewards
from treewise.track import read_lines
from treewise.types import Problem


def judge(rewards: Sequence[Reward], completion: str = "a\nb", **columns: Any) -> Verdict:
    reply = Reply(Problem("0", "p", "7", columns), completion, steps=completion.splitlines())
    (verdict,) = asyncio.run(score(rewards, [reply]))
    return verdict


def says(value: Any, name: str, **options: Any) -> Reward:
    return load_reward(lambda completion: value, name=name, **options)


# Options


def graded(completion: str, *, level: int = 1, factor: float = 1.0) -> float:
    return level * factor


def whatever(completion: str, **columns: Any) -> float:
    assert "completion" not in columns
    return float(columns["level"])


class Counting:
    """A reward with a state."""

    def __init__(self, start: int, step: int = 1) -> None:
        self.value, self.step = start, step

    def __call__(self, completion: str) -> float:
        self.value += self.step
        return float(self.value)


@pytest.mark.parametrize("function", [graded, whatever])
def test_an_option_is_an_argument_and_comes_before_a_column_of_that_name(function: Callable[..., Any]) -> None:
    assert judge([load_reward(function, options={"level": 3})], level=9).reward == 3.0
    assert judge([load_reward(function)], level=9).reward == 9.0


def test_options_of_a_class_make_its_object() -> None:
    reward = load_reward(Counting, options={"start": 4}, name="n")
    assert [judge([reward]).reward for _ in range(3)] == [5.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        (graded, {"levle": 3}, "the reward graded has no option 'levle'; it has level, factor"),
        (graded, {"completion": "x"}, "the reward graded has no option 'completion'; it has level, factor"),
        (whatever, {"answer": "x"}, "no option 'answer'; it has none, and any that is not passed by the library"),
        (Counting, {"start": 1, "stop": 2}, "unexpected keyword argument 'stop'; its options are start, step"),
        (Counting, {}, "missing a required argument: 'start'; its options are start, step"),
        ("numeric", {"digits": 3}, "the reward numeric has no option 'digits'; it has none"),
        ("repetition", {"n": 3}, "its options are size, penalty, unit"),
        ("repetition", {"size": 0}, "size = 0: Input should be greater than or equal to 1"),
        ("repetition", {"unit": "lines"}, "unit = 'lines'"),
        ("language", {"script": "latim"}, "script = 'latim' must be of arabic, .*latin"),
        ("soft_overlong", {"max_tokens": 3, "buffer": 4}, "buffer = 4 is more than max_tokens = 3"),
        ("cosine_length", {"function": "numerc", "max_tokens": 9}, "the nearest built-in one is 'numeric'"),
    ],
)
def test_an_option_that_is_not_there_or_can_not_be_is_an_error_that_names_those(
    spec: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_reward(spec, options=options)


# Gates


@pytest.mark.parametrize(
    ("given", "reward"),
    [
        ({"format": 1.0, "right": 1.0, "long": -0.5}, 0.5),
        ({"format": 0.9, "right": 1.0, "long": -0.5}, 0.0),  # nothing is earned
        ({"format": 0.9, "right": 0.0, "long": -0.5}, -0.5),  # and nothing escaped
        ({"format": 2.0, "right": 0.0, "long": -0.5}, -0.5),
        ({"format": None, "right": 1.0, "long": 0.0}, None),
    ],
)
def test_an_answer_below_a_gate_keeps_its_penalties_only(given: Mapping[str, Any], reward: float | None) -> None:
    weights = {"format": 0.0, "right": 1.0, "long": 1.0}
    assert compose(given, weights, gates={"format": 1.0}).reward == reward
    rewards = [says(value, name, weight=weights[name], gate={"format": 1.0}.get(name)) for name, value in given.items()]
    verdict = judge(rewards)
    assert (verdict.reward, verdict.scores) == (reward, given)
    assert verdict.cause == (None if reward is not None else "format: returned None")


def test_a_gate_may_have_a_weight_and_there_may_be_several() -> None:
    for first, second, expected in ((1.0, 1.0, 3.0), (1.0, 0.0, 0.0), (0.0, 1.0, 0.0)):
        rewards = [says(first, "a", gate=0.5), says(second, "b", weight=2.0, gate=0.5)]
        assert judge(rewards).reward == expected


def test_rewards_of_steps_are_gated_step_by_step_and_still_add_up() -> None:
    steps = load_reward(lambda steps: [2.0, -1.0], name="steps")
    opened = judge([steps, says(0.0, "outcome"), says(1.0, "format", weight=0.0, gate=1.0)])
    assert (opened.reward, opened.steps) == (1.0, (2.0, -1.0))
    closed = judge([steps, says(0.5, "outcome"), says(0.0, "format", weight=0.0, gate=1.0)])
    assert (closed.reward, closed.steps) == (-0.5, (0.0, -0.5))


def test_the_score_of_a_gate_on_steps_is_their_sum() -> None:
    reward = load_reward(lambda steps: [0.25, 0.5], name="steps", gate=0.75)
    assert judge([reward]).reward == 0.75


# In a recipe


def made(*items: dict[str, Any], **options: Any) -> Any:
    return make_recipe({"reward": list(items)}, options)


def test_one_function_can_be_there_twice_under_two_names() -> None:
    first, second = load_rewards(
        made({"function": "repetition", "name": "of tokens", "options": {"unit": "tokens"}},
             {"function": "repetition", "weight": 0.5}).reward
    )  # fmt: skip
    assert (first.name, second.name, second.weight) == ("of tokens", "repetition", 0.5)
    with pytest.raises(ValueError, match="several rewards are called exact; give all but one of them another `name`"):
        made({"function": "exact"}, {"function": "treewise.reward.numeric:exact"})


def test_a_gate_that_would_have_no_effect_is_refused() -> None:
    with pytest.raises(ValueError, match="the gate of numeric has no effect"):
        made({"function": "numeric", "gate": 1.0}, **{"objective.preset": "gdpo"})
    with pytest.raises(ValueError, match=r"reward\.0\.seconds = 0: Input should be greater than 0"):
        made({"function": "numeric", "seconds": 0})


def test_a_run_records_every_part_and_explains_itself_with_their_weights(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def short(completion, limit):\n    return float(len(completion) < limit)\n")
    recipe = make_recipe(
        {
            "model": {"path": str(write_tiny_model(tmp_path / "model"))},
            "data": {"source": str(write_problems(tmp_path / "sums.jsonl", 8))},
            "reward": [
                {"function": f"{tmp_path}/mine.py:short", "name": "brief", "options": {"limit": 9}, "weight": 2.0},
                {
                    "function": f"{tmp_path}/mine.py:short",
                    "name": "very",
                    "options": {"limit": 8},
                    "weight": 0,
                    "gate": 1,
                },
            ],
            "rollout": {"problems_per_step": 2, "group_size": 4, "max_new_tokens": 8},
            "train": {"steps": 1, "output": str(tmp_path), "name": "run"},
        }
    )
    run = train(recipe)
    assert load_recipe(run / "config.json") == recipe
    (rows, _) = read_lines(run / "rollouts.jsonl")
    assert [row["scores"] for row in rows] == [
        {"brief": float(len(row["text"]) < 9), "very": float(len(row["text"]) < 8)} for row in rows
    ]
    assert any(row["scores"]["very"] == 0.0 for row in rows)
    assert [row["reward"] for row in rows] == [2.0 * row["scores"]["very"] for row in rows]
    (metrics,) = read_lines(run / "metrics.jsonl")[0]
    assert {"rewards/brief/mean", "rewards/very/mean"} <= metrics.keys()
    weights = reward_weights(run_recipe(run / "rollouts.jsonl"), read_groups(run / "rollouts.jsonl"))
    assert weights == {"brief": 2.0, "very": 0.0}
