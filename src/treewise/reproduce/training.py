"""One training run of an experiment: begun, gone on with, or found finished.

RUN/summary.json          finished: nothing to do
RUN/checkpoints/step_…    stopped: goes on from the newest complete one
RUN/ without either       stopped before it was saved: put aside as RUN.stopped1, and begun anew
"""

from __future__ import annotations

import shutil
from contextlib import redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any

from treewise import checkpoint
from treewise.config import Recipe
from treewise.loop import train
from treewise.recipe import load_recipe


def run_training(recipe: Recipe, log: Path, *, keep_weights: bool = False) -> Path:
    """Train as the recipe says, unless that is done already, and return the folder of the finished run.

    Args:
        recipe: `train.output` and `train.name` say where the run is.
        log: gets what the run prints, behind what it printed before.
        keep_weights: otherwise a finished run's checkpoints and model are deleted; an experiment has many runs.

    Raises:
        ValueError: if a run of another recipe is there, and whatever `train` raises.
        KeyboardInterrupt: if the run was told to stop; it is saved, and the next call goes on with it.
    """
    assert recipe.train.name is not None, "only a run with a name can be found again"
    run = Path(recipe.train.output).resolve() / recipe.train.name
    if (run / "config.json").is_file() and _settings(load_recipe(run / "config.json")) != _settings(recipe):
        raise ValueError(f"{run} is a run of another recipe; choose another --output, or delete it")
    if (run / "summary.json").is_file():
        return _finished(run, keep_weights)
    going_on = run.exists() and checkpoint.newest(run)[0] is not None
    if run.exists() and not going_on:
        run.rename(next(aside for n in count(1) if not (aside := run.with_name(f"{run.name}.stopped{n}")).exists()))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8", buffering=1) as file, redirect_stdout(file):
        if going_on:
            train(resume=run)
        else:
            train(recipe)
    if not (run / "summary.json").is_file():
        raise KeyboardInterrupt(f"{run} was told to stop; it is saved, and the same command goes on with it")
    return _finished(run, keep_weights)


def _finished(run: Path, keep_weights: bool) -> Path:
    if not keep_weights:
        for name in ("checkpoints", "model"):
            shutil.rmtree(run / name, ignore_errors=True)
    return run


def _settings(recipe: Recipe) -> dict[str, Any]:
    """All that decides what a run does; its folder may have been moved since."""
    return recipe.model_dump(mode="json", exclude={"train": {"output"}})
