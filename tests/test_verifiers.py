"""Tasksets of the real package `verifiers`: played by scripts, trained on, refused where they can't be played."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from folders import write_tiny_model
from treewise.data import load_problems
from treewise.env.load import load_environment
from treewise.env.verifiers import Verifiers
from treewise.loop import train
from treewise.recipe import make_recipe
from treewise.sources import Stream
from treewise.track import read_lines
from treewise.types import Problem

pytest.importorskip("verifiers.v1", reason="pip install 'treewise[verifiers]'")

HERE = Path(__file__).parent
NUMBERS = f"verifiers:{HERE / 'taskset_verifiers.py'}"
GAME = f"verifiers:{HERE / 'taskset_verifiers_game.py'}"


def problems(source: str, **options: Any) -> list[Problem]:
    return load_problems(source, options=options)[0]


async def play(problem: Problem, replies: Sequence[str]) -> tuple[list[list[dict[str, str]]], dict[str, Any]]:
    """What was said before each reply, and the scores."""
    Verifiers.check(problem)
    game = Verifiers(problem, runtime="subprocess")
    said = [list(await game.start())]
    for reply in replies:
        more = list(await game.step(reply))
        if not more:
            break
        said.append(more)
    return said, await game.scores()


def test_tasks_become_problems_with_their_prompts_and_answers() -> None:
    rows = problems(NUMBERS, count=3)
    assert [(row.id, row.answer) for row in rows] == [("0", "0"), ("1", "2"), ("2", "4")]
    assert rows[1].prompt == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1=?"})


@pytest.mark.parametrize(
    ("reply", "right", "short", "total"),
    [("4", 1.0, 1.0, 2.5), ("<think>2+2, so 5</think>\n4", 1.0, 1.0, 2.5), ("I think 4", 0.0, 0.0, 0.0)],
)
def test_a_reply_gets_the_rewards_of_its_task(reply: str, right: float, short: float, total: float) -> None:
    said, scores = asyncio.run(play(problems(NUMBERS)[2], [reply]))
    assert said == [list(problems(NUMBERS)[2].prompt)]
    assert scores == {"right": right, "short": short, "turns": 1.0, "reward": total}


def test_a_game_goes_on_as_its_environment_says() -> None:
    (_, _, _, three) = problems(GAME, size=4)
    said, scores = asyncio.run(play(three, ["2", "7", "4"]))
    assert [turn[-1]["content"] for turn in said] == ["guess my number, 1 to 9", "higher", "lower"]
    assert scores == {"found": 1.0, "left": 0.0, "reward": 1.0}


def test_a_stop_of_the_task_and_a_cut_reply_end_the_game_with_its_own_verdict() -> None:
    (problem,) = problems(GAME, size=1)
    said, scores = asyncio.run(play(problem, ["damn", "1"]))
    assert len(said) == 1
    assert scores["found"] == 0.0
    cut, scores = asyncio.run(play(problem, []))  # the loop asks for scores where the model's context is full
    assert len(cut) == 1
    assert scores == {"found": 0.0, "left": 3.0, "reward": 0.0}


def test_a_reward_that_raises_is_no_verdict() -> None:
    (problem,) = problems(NUMBERS, count=1, fault="raises")
    with pytest.raises(Exception, match="the grader is broken"):
        asyncio.run(play(problem, ["0"]))


def test_an_endless_taskset_needs_a_bound_or_is_a_stream() -> None:
    with pytest.raises(ValueError, match=r"has no last task: set options\.size, or read it with data\.stream"):
        problems(GAME)
    stream = Stream(GAME, 3)
    rows, following = stream.read(0)
    assert ([row["answer"] for _, row in rows], following) == (["1", "2", "3"], 3)
    assert [row["answer"] for _, row in stream.read(3)[0]] == ["4", "5", "6"]


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("verifiers:no_such_taskset", {}, "no_such_taskset fails to load"),
        (NUMBERS, {"colour": "red"}, "fails to load"),
    ],
)
def test_a_taskset_that_is_not_there_and_a_wrong_option_are_errors(
    source: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        problems(source, **options)


TOOLS = """
import verifiers.v1 as vf
__all__ = ["Needy"]

class NeedyTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    NEEDS_CONTAINER = {container}

    @vf.stop
    async def late(self, response: vf.types.Response) -> bool:
        return False

class Needy(vf.Taskset[NeedyTask, vf.TasksetConfig]):
    def load(self):
        yield NeedyTask(vf.TaskData(prompt={prompt!r}))
"""


@pytest.mark.parametrize(
    ("name", "container", "prompt", "words"),
    [
        ("boxed", True, "hello", "it needs a container"),
        ("gated", False, "hello", "it stops on requests or responses"),
        ("silent", False, None, "it has no prompt"),
    ],
)
def test_what_can_not_be_played_is_refused_before_the_run(
    tmp_path: Path, name: str, container: bool, prompt: str | None, words: str
) -> None:
    path = tmp_path / f"{name}_taskset.py"
    code = TOOLS.format(container=container, prompt=prompt)
    path.write_text(code if name == "gated" else code.replace("@vf.stop", ""))
    (problem,) = problems(f"verifiers:{path}")
    with pytest.raises(ValueError, match=words):
        load_environment("verifiers").check(problem)


def test_programs_run_only_where_that_is_asked_for() -> None:
    with pytest.raises(ValueError, match="setup of Number may run programs: env.options.runtime = 'subprocess'"):
        Verifiers(problems(NUMBERS)[0])
    Verifiers(problems(GAME, size=1)[0])
    with pytest.raises(ValueError, match="runtime is 'docker'"):
        Verifiers(problems(NUMBERS)[0], runtime="docker")  # type: ignore[arg-type]


@pytest.mark.parametrize(("source", "names"), [(NUMBERS, {"right", "short", "turns"}), (GAME, {"found", "left"})])
def test_a_model_trains_on_a_taskset(tmp_path: Path, source: str, names: set[str]) -> None:
    recipe = make_recipe(
        {
            "data": {"source": source, "options": {"size": 4}},
            "env": {"name": "verifiers", "options": {"runtime": "subprocess"}},
        },
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
    for row in rows:
        assert row["scores"].keys() == {"reward", *names}
        assert row["reward"] == row["scores"]["reward"]
        assert row["cause"] is None


def test_tasks_of_verifiers_without_their_environment_are_refused() -> None:
    with pytest.raises(ValueError, match=r'set env\.name = "verifiers"'):
        make_recipe({"data": {"source": NUMBERS}})
