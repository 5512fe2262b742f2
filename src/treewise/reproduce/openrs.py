"""The paper's downstream experiment: training on Open-RS, then five benchmarks (arXiv 2509.21154, §5 and Table 2).

    model ─┬─────────────────────────────────────────────▶ benchmarks      as it was before training
           └─▶ training with β, preset, seed ──▶ best step ──▶ benchmarks      ╰─ beside them the paper's numbers

It is made for a GPU; a trial on a small machine names a tiny model's folder, and files in place of the hub's data.

FOLDER/runs/NAME       a training run; its model is then that of the step that did best on the validation problems
FOLDER/answers/NAME    the answers to each benchmark as JSONL
"""

from __future__ import annotations

import gc
import itertools
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

from treewise import checkpoint, track
from treewise.benchmarks import FIVE
from treewise.config import Recipe
from treewise.recipe import load_recipe, nearest
from treewise.reproduce.benchmarks import evaluate
from treewise.reproduce.openrs_report import report
from treewise.reproduce.options import OpenRS, preset_changes
from treewise.reproduce.pool import Cell
from treewise.reproduce.training import run_training

__all__ = ["cells", "measure", "report"]

MODELS: Mapping[str, str] = MappingProxyType(
    {"deepseek": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "llama": "meta-llama/Llama-3.2-1B-Instruct"}
)


def named(entries: Sequence[str], known: Iterable[str], option: str) -> dict[str, str | None]:
    """Entries that are NAME or NAME=PLACE, as a dict of what stands behind the name.

    Raises:
        ValueError: for an unknown name, or one that comes twice.
    """
    known = list(known)
    found: dict[str, str | None] = {}
    for entry in entries:
        name, equals, place = entry.partition("=")
        if name not in known:
            raise ValueError(f"--{option}: there is no {name!r}; the nearest is {nearest(name, known)!r}")
        if name in found:
            raise ValueError(f"--{option}: {name} is given twice")
        found[name] = place if equals else None
    return found


def files_of(options: OpenRS) -> dict[str, str]:
    """The files that stand in for the hub's data.

    Raises:
        ValueError: for a name without a file, a file that isn't there, or one that nothing would read.
    """
    found = named(options.data, ("train", "validation", *FIVE), "data")
    for name, file in found.items():
        if file is None or not Path(file).is_file():
            raise ValueError(f"--data: {name} needs a file that exists, NAME=FILE; got {file!r}")
        if name in FIVE and name not in options.benchmarks:
            raise ValueError(f"--data: {name}={file} has no effect, because --benchmarks leaves {name} out")
    return {name: str(file) for name, file in found.items()}


def recipe_of(options: OpenRS, cell: Cell, output: Path) -> Recipe:
    """The recipe of one training run, or of a model that is only tried."""
    place = named(options.models, MODELS, "models")[cell["model"]]
    changes: dict[str, Any] = {**options.given, "model.path": MODELS[cell["model"]] if place is None else place}
    files = files_of(options)
    if "train" in files:
        changes |= {"data.source": files["train"], "data.split": None, "data.subset": None}
    if "validation" in files:
        changes |= {"eval.source": files["validation"], "eval.split": None}
    if cell["preset"] is None:
        changes |= {"rollout.problems_per_step": 1, "train.minibatches": 1}  # any number of problems will do
        return load_recipe(options.recipe, changes)
    changes |= preset_changes(cell["preset"])
    changes |= {"objective.kl_coef": cell["beta"], "train.seed": cell["seed"]}
    recipe = load_recipe(options.recipe, {**changes, "train.output": str(output), "train.name": name_of(cell)})
    if recipe.eval.source is None:
        raise ValueError(f"{options.recipe} has no validation problems to choose a step by; set --data validation=FILE")
    return recipe


def name_of(cell: Cell) -> str:
    """The name of a cell's folders."""
    if cell["preset"] is None:
        return f"{cell['model']}_base"
    return f"{cell['model']}_beta{cell['beta']:.15g}_{cell['preset']}_{cell['seed']}"


def cells(options: OpenRS) -> list[dict[str, Any]]:
    """Each model as it is, which also shows whether the data can be had; then every training run, seed by seed."""
    models = named(options.models, MODELS, "models")
    if list(named(options.benchmarks, FIVE, "benchmarks")) != list(options.benchmarks):
        raise ValueError("--benchmarks takes names alone; --data NAME=FILE gives a file")
    found: list[dict[str, Any]] = [{"model": model, "beta": None, "preset": None, "seed": None} for model in models]
    for seed in range(options.seeds):
        for model in models:
            for beta, preset in itertools.product(options.betas, options.presets):
                found.append({"model": model, "beta": beta, "preset": preset, "seed": seed})
    for cell in found:  # refuses now what would fail hours later
        recipe_of(options, cell, Path())
    return found


def measure(options: OpenRS, cell: Cell, folder: Path) -> list[dict[str, Any]]:
    """Train, unless the cell is a model as it is, and give its figures on each benchmark."""
    step, chosen, source = 0, "base", None
    if cell["preset"] is not None:
        recipe = recipe_of(options, cell, folder / "runs")
        run = run_training(recipe, folder / "runs" / f"{recipe.train.name}.log", keep_weights=True)
        step, chosen = keep_best(run)
        source = run / "model"
        gc.collect()  # what training held, before another model is loaded
        torch.cuda.empty_cache()
    rows = evaluate(
        recipe_of(options, {**cell, "preset": None}, folder),
        options.benchmarks,
        source=source,
        files=files_of(options),
        limit=options.limit,
        longest=options.answer_tokens,
        folder=folder / "answers" / name_of(cell),
    )
    return [{**cell, **row, "step": step, "chosen": chosen} for row in rows]


def keep_best(run: Path) -> tuple[int, str]:
    """Put the weights of the best step by validation in the place of the run's model, and delete its checkpoints.

    The last step stays where none did better than the model before training. Stopped at any moment, it can be called
    again.

    Returns:
        The step, and whether it was chosen as the `best` or as the `last`.

    Raises:
        ValueError: if the best step's checkpoint is damaged.
    """
    note = run / "evaluated.json"
    if not note.is_file():
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        step = (summary["best"] or {"step": 0})["step"]
        if step > 0 and (wrong := checkpoint.fault(checkpoint.folder_of(run, step))):
            raise ValueError(
                f"{run} did best at step {step}, but of that checkpoint {wrong}; delete {run} to train it again"
            )
        chosen = {"step": step, "chosen": "best"} if step > 0 else {"step": summary["steps"], "chosen": "last"}
        track.write_json(note, chosen)
    found = json.loads(note.read_text(encoding="utf-8"))
    weights = checkpoint.folder_of(run, found["step"]) / "model"
    if weights.is_dir():
        shutil.rmtree(run / "model", ignore_errors=True)
        weights.rename(run / "model")
    shutil.rmtree(run / "checkpoints", ignore_errors=True)
    return found["step"], found["chosen"]
