"""The architecture: imports point down, and the package is light to import."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import treewise

ROOT = Path(treewise.__file__).parent

LAYERS = [
    {
        "types",
        "text",
        "steps",
        "named",
        "signals",
        "jail",
        "sandbox",
        "config",
        "sections",
        "recipe",
        "axes",
        "presets",
        "tree",
        "credit",
        "statistics",
        "estimators",
    },
    {"packing", "objective", "logprobs", "device"},
    {
        "policy",
        "attention",
        "optimizer",
        "models",
        "sampler",
        "env",
        "reward",
        "data",
        "sources",
        "tasks",
        "chat",
        "curriculum",
        "supply",
    },
    {
        "rollout",
        "episode",
        "patience",
        "batch",
        "assess",
        "update",
        "checkpoint",
        "track",
        "records",
        "analysis",
        "explain",
        "tables",
        "metrics",
        "plot",
        "verify",
        "benchmarks",
    },
    {"loop", "watch", "lifecycle", "session", "problems", "evaluate", "display", "reproduce"},
    {"cli"},
]
# Within a layer imports are allowed along these arrows only.
WITHIN = {
    ("sandbox", "jail"),
    ("credit", "tree"), ("tree", "types"), ("credit", "types"), ("axes", "tree"), ("axes", "types"),
    ("presets", "axes"), ("credit", "axes"), ("config", "axes"), ("config", "presets"), ("config", "sections"),
    ("sections", "axes"), ("sections", "presets"), ("sections", "steps"),
    ("recipe", "config"), ("statistics", "types"), ("estimators", "statistics"), ("estimators", "types"),
    ("policy", "attention"), ("sampler", "policy"), ("env", "chat"), ("data", "chat"), ("data", "sources"),
    ("sources", "tasks"), ("tasks", "env"), ("sources", "env"), ("supply", "curriculum"),
    ("rollout", "episode"), ("rollout", "patience"), ("episode", "patience"),
    ("analysis", "records"), ("explain", "records"), ("explain", "assess"),
    ("tables", "analysis"), ("tables", "explain"),
    ("tables", "records"), ("metrics", "analysis"), ("plot", "analysis"), ("plot", "records"), ("plot", "track"),
    ("loop", "session"), ("session", "problems"), ("loop", "problems"),
    ("loop", "lifecycle"), ("loop", "watch"), ("watch", "session"), ("watch", "lifecycle"),
    ("watch", "display"), ("lifecycle", "session"),
    ("lifecycle", "display"), ("loop", "evaluate"), ("loop", "display"), ("display", "evaluate"),
    ("reproduce", "loop"), ("reproduce", "session"), ("reproduce", "evaluate"),
}  # fmt: skip


def _part(module: str) -> str:
    return module.removeprefix("treewise.").split(".")[0]


def _imports() -> list[tuple[str, str]]:
    """(importer, imported) for every import of the package inside of the package, lazy ones included."""
    found = []
    for path in ROOT.rglob("*.py"):
        relative = path.relative_to(ROOT).with_suffix("")
        if relative.as_posix() == "__init__":
            continue
        importer = _part("treewise." + ".".join(relative.parts))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module == "treewise":
                names = [f"treewise.{alias.name}" for alias in node.names if not alias.name.startswith("__")]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("treewise."):
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names if alias.name.startswith("treewise.")]
            found += [(importer, _part(name)) for name in names]
    return sorted(set(found))


def test_every_module_has_a_layer() -> None:
    modules = {_part("treewise." + ".".join(p.relative_to(ROOT).with_suffix("").parts)) for p in ROOT.rglob("*.py")}
    assert modules - {"__init__"} == set().union(*LAYERS)


@pytest.mark.parametrize(("importer", "imported"), _imports())
def test_imports_point_down(importer: str, imported: str) -> None:
    level = {name: number for number, names in enumerate(LAYERS) for name in names}
    if importer == imported or (importer, imported) in WITHIN:
        return
    assert level[imported] < level[importer], f"{importer} must not import {imported}"


def test_environments_rewards_and_samplers_do_not_know_each_other() -> None:
    seams = {"env", "reward", "sampler"}
    assert not [(a, b) for a, b in _imports() if a in seams and b in seams and a != b]


@pytest.mark.parametrize(
    "statement",
    [
        "import treewise",
        "from treewise import load_recipe; load_recipe()",
        "import treewise.cli",
        "import treewise.credit",
    ],
)
def test_importing_loads_no_torch(statement: str) -> None:
    check = f"import sys; {statement}; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_stay_what_they_are_after_every_module_is_loaded() -> None:
    """A module with the name of a function would take its place in the package."""
    import importlib
    import pkgutil

    for module in pkgutil.walk_packages([str(ROOT)], "treewise."):
        if not module.name.endswith("worker"):
            importlib.import_module(module.name)
    assert all(callable(getattr(treewise, name)) for name in treewise.__all__)
