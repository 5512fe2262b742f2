"""The documentation tells the truth: its code runs, its tables are what the code says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from folders import write_tiny_model
from treewise.cli import main
from treewise.presets import PRESETS
from treewise.recipe import load_recipe, make_recipe, options, parse_overrides
from treewise.sources import read_rows

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_the_page_of_options_is_up_to_date() -> None:
    from options import render  # scripts/options.py

    assert (ROOT / "docs" / "options.md").read_text(encoding="utf-8") == render()


def test_the_page_of_objectives_is_up_to_date() -> None:
    from objectives import PAGE, TABLES, render  # scripts/objectives.py

    page = PAGE.read_text(encoding="utf-8")
    assert page == render(page)
    for name, kinds in {**TABLES, "presets": PRESETS}.items():
        assert f"<!-- {name} -->" in page
        assert all(f"| `{value}` |" in page for value in kinds)


def test_every_value_of_an_axis_has_a_formula_and_a_source() -> None:
    from objectives import TABLES

    for name, kinds in TABLES.items():
        for value, kind in kinds.items():
            assert (kind.__doc__ or "").startswith("`"), (name, value)
            assert "Source: " in (kind.__doc__ or "") or value in ("none", "k1", "k2"), (name, value)


def test_the_recipe_in_the_readme_is_valid() -> None:
    (text,) = blocks("toml")
    recipe = make_recipe(tomllib.loads(text))
    assert [item.function for item in recipe.reward] == ["math", "rewards.py:brevity"]


def test_the_python_in_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = blocks("python")
    monkeypatch.chdir(tmp_path)
    model = write_tiny_model(tmp_path / "model", max_position_embeddings=512)
    (tmp_path / "rewards.py").write_text("def brevity(completion): return -len(completion)\n")
    (tmp_path / "my.toml").write_text(blocks("toml")[0])
    small = f'{{"train.steps": 1, "rollout.max_new_tokens": 4, "model.path": "{model}"}}'
    text = text.replace('{"train.steps": 10}', small)
    assert small in text
    exec(compile(text, "README.md", "exec"), {})
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "model" / "model.safetensors").is_file()


def test_the_commands_in_the_readme_parse(capsys: pytest.CaptureFixture[str]) -> None:
    commands = [line.partition("#")[0].split() for text in blocks("bash") for line in text.splitlines()]
    elsewhere = {"my.toml", "--resume"}
    train = [words[1:] for words in commands if words[1:2] == ["train"] and not elsewhere & set(words)]
    assert train
    for words in train:
        if words != ["train"]:
            assert main([*words, "--dry-run"]) == 0
    capsys.readouterr()


def test_every_option_that_the_documents_name_exists() -> None:
    known = {name for name, _, _ in options()}
    sections = {name.partition(".")[0] for name in known}
    table = (ROOT / "docs" / "coming-from-trl.md").read_text(encoding="utf-8")
    ours = "\n".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))
    objectives = (ROOT / "docs" / "objectives.md").read_text(encoding="utf-8")
    for name in re.findall(r"(?:--|`)([a-z]+\.[a-z_]+)\b(?!\()", README + ours + objectives):
        if name.partition(".")[0] in sections and not name.endswith((".toml", ".jsonl", ".py", ".md")):
            assert name in known


def test_the_commands_in_the_bundled_recipes_load_their_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.jsonl", "test.jsonl"):
        Path(name).write_text('{"question": "1+1?", "answer": "so #### 2"}\n', encoding="utf-8")
    seen = 0
    for path in (ROOT / "src" / "treewise" / "recipes").glob("*.toml"):
        for line in re.findall(r"^#\s+treewise train(.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE):
            words = re.split(r"\s{3,}", line)[0].split()
            named = words[:1] if words and not words[0].startswith("--") else []
            recipe = load_recipe(*(named or ["quickstart"]), parse_overrides(words[len(named) :]))
            assert named in ([], [path.stem])
            for source, subset in ((recipe.data.source, recipe.data.subset), (recipe.eval.source, None)):
                if source and source.endswith(".jsonl"):
                    assert read_rows(source, split=recipe.data.split, subset=subset, options={})
                    seen += 1
    assert seen == 2


def test_the_commands_on_the_page_of_objectives_resolve(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "objectives.md").read_text(encoding="utf-8")
    commands = re.findall(r"^treewise train my\.toml (--objective.*?)(?:\s+#.*)?$", page, flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        words = [word for word in command.split() if word != "--dry-run"]
        assert main(["train", *words, "--train.updates_per_batch", "2", "--dry-run"]) == 0
    capsys.readouterr()
