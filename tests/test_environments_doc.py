"""docs/environments.md and coming-from-trl.md: what they show of other libraries trains as it stands there."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from folders import write_tiny_model
from treewise.loop import train
from treewise.recipe import make_recipe
from treewise.track import read_lines

DOCS = Path(__file__).parents[1] / "docs"
SECTION = (DOCS / "environments.md").read_text(encoding="utf-8").partition("## Written for other libraries")[2]


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def rows_of(recipe: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of one step."""
    small = {
        "model.path": str(write_tiny_model(folder / "model", max_position_embeddings=4096)),
        "rollout.problems_per_step": 2,
        "rollout.group_size": 2,
        "rollout.max_new_tokens": 4,
        "train.steps": 1,
    }
    rows, _ = read_lines(train(make_recipe(tomllib.loads(recipe), small)) / "rollouts.jsonl")
    return rows


def run(name: str, folder: Path) -> list[dict[str, Any]]:
    """The rows of a step with the page's file and recipe under a heading."""
    section = SECTION.partition(f"### {name}\n")[2].partition("\n### ")[0].partition("\n## ")[0]
    (code,), (recipe,) = blocks("python", section), blocks("toml", section)
    (folder / code.splitlines()[0].removeprefix("# ")).write_text(code)
    return rows_of(recipe, folder)


def test_the_taskset_of_verifiers_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("verifiers.v1", reason="pip install 'treewise[verifiers]'")
    monkeypatch.chdir(tmp_path)
    rows = run("verifiers", tmp_path)
    assert [sorted(row["scores"]) for row in rows] == [["reward", "right"]] * 4
    assert all(row["cause"] is None for row in rows)


def test_the_environment_of_trl_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = [{"prompt": f"Count to {n}.", "start": 2, "answer": str(n)} for n in (2, 5)]
    (tmp_path / "counts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table))
    rows = run("TRL", tmp_path)
    rewards = {row["answer"]: row["reward"] for row in rows}
    assert rewards == {"2": 1.0, "5": 0.0}


def test_a_reward_function_that_comes_with_trl_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("trl", reason="pip install 'treewise[trl]'")
    monkeypatch.chdir(tmp_path)
    page = (DOCS / "coming-from-trl.md").read_text(encoding="utf-8")
    (recipe,) = blocks("toml", page)
    (shown,) = re.findall(r'source = "chat.jsonl" +# (.*)', recipe)
    (tmp_path / "chat.jsonl").write_text("".join(f"{shown}\n" for _ in range(2)))
    for row in rows_of(recipe, tmp_path):
        assert row["scores"] == {"think_format_reward": 0.0}
        assert row["cause"] is None
