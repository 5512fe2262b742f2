"""docs/rewards.md: its functions run, its recipes train, its tables are what the code says."""

from __future__ import annotations

import asyncio
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from folders import write_tiny_model
from treewise.loop import train
from treewise.named import find
from treewise.recipe import make_recipe
from treewise.reward import Reply, Verdict, score
from treewise.reward.load import BUILT_IN, load_reward, load_rewards
from treewise.track import read_lines
from treewise.types import Problem

PAGE = (Path(__file__).parents[1] / "docs" / "rewards.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's file in the current folder."""
    (code,) = [block for block in blocks("python") if block.startswith("# rewards.py")]
    (tmp_path / "rewards.py").write_text(code)
    monkeypatch.chdir(tmp_path)


def judge(spec: str, completion: str, answer: str = "7", **columns: Any) -> Verdict:
    reply = Reply(Problem("0", "p", answer, columns), completion, steps=completion.split(". "))
    (verdict,) = asyncio.run(score([load_reward(spec)], [reply]))
    return verdict


def test_the_functions_of_the_page_work(own: None) -> None:
    assert [judge("rewards.py:brevity", "x" * n).reward for n in (0, 20, 40)] == [1.0, 1.0, 0.5]
    assert [judge("rewards.py:close", text, tolerance="2").reward for text in ("9", "10", "x")] == [1.0, 0.0, 0.0]
    assert judge("rewards.py:close", "9", answer="x", tolerance=2).cause == "close: the answer 'x' is no number"
    with pytest.raises(ValueError, match="close needs tolerance, which is neither a column"):
        judge("rewards.py:close", "9")
    assert judge("rewards.py:careful", "so it is. or is it?. yes").steps == (1.0, 0.0, 1.0)


def test_the_recipe_of_the_page_trains(own: None, tmp_path: Path) -> None:
    problems = [{"problem": f"{n}+1=?", "answer": str(n + 1), "level": "hard" if n % 2 else "easy"} for n in range(8)]
    recipe = make_recipe(
        {
            **tomllib.loads(blocks("toml")[0].replace("seconds = 5", "seconds = 60")),
            "model": {"path": str(write_tiny_model(tmp_path / "model"))},
            "rollout": {"problems_per_step": 8, "group_size": 4, "max_new_tokens": 24},
            "train": {"steps": 1, "output": str(tmp_path), "name": "run"},
        }
    )
    (rows, _) = read_lines(train(recipe, problems=problems) / "rollouts.jsonl")
    for row in rows:
        scores = row["scores"]
        hard = int(row["problem"]) % 2
        assert list(scores) == ["numeric", "think_format", "brief", *(["repetition"] if hard else [])]
        assert scores["brief"] == pytest.approx(min(1.0, 12 / max(1, len(row["text"]))))
        total = scores["numeric"] + 0.2 * scores["think_format"] + scores["brief"]
        assert row["reward"] == pytest.approx(total if scores.get("repetition", 0.0) >= -0.9 else min(0.0, total))


def options_of(name: str) -> dict[str, inspect.Parameter]:
    made = find(name, BUILT_IN, "a reward function")
    return dict(inspect.signature(made).parameters) if isinstance(made, type) else {}


def test_the_table_has_every_built_in_reward_with_its_options() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| (.*?)\s?\|$", PAGE, flags=re.MULTILINE)
    rows = [row for row in rows if row[0] in BUILT_IN]
    assert sorted(name for name, _, _ in rows) == sorted(BUILT_IN)
    for name, _, shown in rows:
        if name != "judge":  # it has a table of its own
            assert re.findall(r"`(\w+)`", shown) == list(options_of(name)), name
        for option, default in re.findall(r"`(\w+)` ([\w.−]+)", shown):
            assert str(options_of(name)[option].default).removesuffix(".0") == default.replace("−", "-"), option


def test_the_table_of_the_judge_has_its_options_with_their_defaults() -> None:
    (section,) = re.findall(r"\| option \| default \| \|\n(.*?)\n\n", PAGE, flags=re.DOTALL)
    shown = {}
    for names, default in re.findall(r"^\| (.+?) \|(.*?)\|", section, flags=re.MULTILINE):
        shown |= dict.fromkeys(re.findall(r"`(\w+)`", names), default.strip())
    known = options_of("judge")
    assert shown.keys() == known.keys()
    for name, default in shown.items():
        if default == "none":
            assert known[name].default is None
        elif default.isdecimal():
            assert known[name].default == int(default)


def test_the_judges_recipe_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    monkeypatch.chdir(tmp_path)
    (text,) = [block for block in blocks("toml") if 'function = "judge"' in block]
    (reward,) = load_rewards(make_recipe(tomllib.loads(text)).reward)
    assert (reward.name, reward.takes) == ("judge", "completion")


def test_the_verdicts_of_the_page_are_what_the_verifier_says() -> None:
    pytest.importorskip("math_verify")
    (code,) = [block for block in blocks("python") if "MathVerifier" in block]
    space: dict[str, Any] = {}
    setup, *cases = code.strip().split("\nverifier.")
    exec(setup, space)
    space["verifier"].deadline = 60.0
    assert len(cases) == 3
    for case in cases:
        call, expected = case.split("  # ")
        assert eval(f"verifier.{call}", space) == eval(expected)
    space["verifier"].close()
