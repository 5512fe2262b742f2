"""docs/data.md: its recipes train, its output and its rows are what the code gives."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from folders import write_tiny_model
from treewise.data import ANSWER_COLUMNS, PROMPT_COLUMNS, TRUTH_COLUMNS, load_problems
from treewise.loop import train
from treewise.recipe import make_recipe
from treewise.session import open_session
from treewise.track import read_lines

PAGE = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def write(name: str, questions: list[str]) -> None:
    rows = [{"question": text, "answer": str(n), "level": n} for n, text in enumerate(questions)]
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What makes a recipe of the page small, in a folder with its files."""
    monkeypatch.chdir(tmp_path)
    write("train.jsonl", ["a", "b", "a ", "c", "t"])
    write("test.jsonl", ["t"])
    model = write_tiny_model(tmp_path / "model", max_position_embeddings=512)
    return {
        "model.path": str(model),
        "rollout.problems_per_step": 2,
        "rollout.group_size": 2,
        "rollout.max_new_tokens": 4,
        "train.steps": 2,
    }


def test_the_line_about_the_data_is_what_a_run_says(small: dict[str, Any]) -> None:
    (said,) = blocks("text")
    assert " ".join(said.split()) in open_session(make_recipe(tomllib.loads(blocks("toml")[0]), small)).notes


def test_the_mix_of_the_page_trains_and_each_reward_judges_its_own(small: dict[str, Any]) -> None:
    pytest.importorskip("reasoning_gym")
    recipe = make_recipe(tomllib.loads(blocks("toml")[1]), small)
    rows, _ = read_lines(train(recipe) / "rollouts.jsonl")
    names = {row["problem"].partition("/")[0]: tuple(row["scores"]) for row in rows}
    assert names == {"school": ("numeric",), "reasoning-gym:chain_sum": ("reasoning_gym",)}


def test_the_curriculum_of_the_page_runs_and_writes_what_the_page_shows(small: dict[str, Any]) -> None:
    both = tomllib.loads(blocks("toml")[0]) | tomllib.loads(blocks("toml")[2])
    run = train(make_recipe(both, small))
    shown = [json.loads(text) for text in blocks("json")]
    (row, *_), _ = read_lines(run / "problems.jsonl")
    assert list(row) == list(shown[1])
    assert "problems/resting" in read_lines(run / "metrics.jsonl")[0][0]


def test_the_row_of_verl_is_read(tmp_path: Path) -> None:
    (tmp_path / "row.jsonl").write_text(blocks("json")[0])
    assert load_problems(str(tmp_path / "row.jsonl"))[0][0].answer == "4"


def test_the_columns_of_the_page_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| the (prompt|gold answer) \| (.*) \|$", PAGE, flags=re.MULTILINE))
    assert tuple(re.findall(r"`(\w+)`", rows["prompt"])) == PROMPT_COLUMNS
    names = re.findall(r"`(\w+)`", rows["gold answer"].replace("; or `ground_truth` inside of", ""))
    assert tuple(names) == (*ANSWER_COLUMNS, *TRUTH_COLUMNS)
