"""`textarena:NAME`: TextArena's games for one player, against the installed package."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from folders import write_tiny_model
from treewise.data import load_problems
from treewise.env.load import load_environment
from treewise.loop import train
from treewise.recipe import make_recipe
from treewise.track import read_lines
from treewise.types import Problem

textarena = pytest.importorskip("textarena")
NUMBER = "textarena:GuessTheNumber-v0"


def made(name: str, number: int = 0, **options: Any) -> Any:
    problems, _ = load_problems(name, options={"size": number + 1, **options}, chat=True)
    return load_environment("textarena").make(problems[number])


def texts(messages: Any) -> str:
    return "\n".join(message["content"] for message in messages)


def test_a_game_is_played_to_its_end() -> None:
    game = made(NUMBER)
    assert "guess the number between 1 and 20" in texts(game.start())
    first = texts(game.step("I say [1]"))
    assert "higher" in first
    assert "Guess The Number" not in first, "only what is new is said"
    assert "I say" not in first
    low, high = 2, 20
    while said := game.step(f"[{(low + high) // 2}]"):
        middle = (low + high) // 2
        low, high = (middle + 1, high) if "higher" in texts(said) else (low, middle - 1)
        assert low <= high
    assert game.scores() == {"reward": 1.0, "invalid": 0.0}


def test_a_game_that_is_cut_has_no_reward_and_one_that_ends_by_a_wrong_move_says_so() -> None:
    cut, wrong = made(NUMBER), made(NUMBER)
    cut.step("[1]")
    assert cut.scores() == {"reward": 0.0, "invalid": 0.0}
    assert wrong.step("no idea")
    assert not wrong.step("no idea")
    assert wrong.scores()["invalid"] == 1.0


@pytest.mark.parametrize("name", ["textarena:2048-v0", "textarena:Sokoban-v0", "textarena:Bandit-v0"])
def test_a_seed_decides_a_game_whatever_is_drawn_beside_it(name: str) -> None:
    one, same, other = made(name), made(name), made(name, number=1)
    told = []
    for move in ("[up]", "[left]", "[red]", "[down]"):
        said = one.step(move)
        random.random()
        other.step(move)
        assert said == same.step(move)
        told.append(said)
    assert any(told)
    assert texts(made(name).start()) == texts(made(name, seed=0).start())


def test_a_game_leaves_the_global_generators_alone() -> None:
    random.seed(5)
    np.random.seed(5)
    expected = random.Random(5).random(), np.random.RandomState(5).random()
    game = made("textarena:Sokoban-v0")
    game.step("[up]")
    assert (random.random(), np.random.random()) == expected


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("textarena:Nothing-v0", {}, "can't be played: ValueError: Environment Nothing-v0 not found"),
        ("textarena:Nim-v0", {}, "can't be played: AssertionError: The number of players has to be 2"),
        (NUMBER, {"size": 0}, "seed is 0 and size 0"),
        (NUMBER, {"sides": 6}, "can't be played: TypeError.*sides"),
    ],
)
def test_a_game_that_can_not_be_played_is_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_problems(name, options={"size": 2, **options}, chat=True)


def test_lacking_data_of_nltk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(name: str) -> None:
        raise LookupError("Resource words not found.")

    monkeypatch.setattr(textarena, "make", lacks)
    with pytest.raises(ValueError, match=r"Wordle-v0 lacks data of NLTK.*python -m nltk.downloader words"):
        load_problems("textarena:Wordle-v0", options={"size": 2}, chat=True)


def test_problems_must_come_from_the_game() -> None:
    with pytest.raises(ValueError, match="problem 'x' is no game of TextArena: set data.source"):
        load_environment("textarena").check(Problem("x", "1+1?"))


def test_a_model_trains_on_a_game(tmp_path: Path) -> None:
    recipe = make_recipe(
        {"data": {"source": NUMBER, "stream": 4}, "env": {"name": "textarena"}},
        {
            "model.path": str(write_tiny_model(tmp_path / "model", max_position_embeddings=2048)),
            "rollout.problems_per_step": 2,
            "rollout.group_size": 2,
            "rollout.max_new_tokens": 4,
            "train.steps": 2,
            "train.output": str(tmp_path),
            "train.name": "run",
        },
    )
    rows, _ = read_lines(train(recipe) / "rollouts.jsonl")
    assert len(rows) == 8
    assert {*rows[0]["scores"]} == {"reward", "invalid"}
    assert all(row["reward"] == row["scores"]["reward"] for row in rows)
