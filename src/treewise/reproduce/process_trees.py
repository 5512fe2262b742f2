"""How much of a tree the groups of a training run are, over its steps (arXiv 2509.21154, §3.2).

    B(G) of six answers            inner depth: sets above an answer         intermediate proportion
    root ┬ AB ─┬ CD                1                                         2/4
         │     └ EFHI              1                                         2/6
         ├ JKL ┬ M                 1                                         3/4
         │     └ NQ ┬ ST           2                                         5/7
         │          └ U            2                                         5/6
         └ VWYZ                    0                                         0/4

The groups come from training runs of several group sizes, or from any file of recorded rollouts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treewise.config import Recipe
from treewise.plot.process_trees import draw
from treewise.recipe import load_recipe
from treewise.reproduce.engine import Report, Row, Table
from treewise.reproduce.options import ProcessTrees
from treewise.reproduce.pool import Cell
from treewise.reproduce.recorded import LEFT_OUT, listed, step_rows
from treewise.reproduce.training import run_training

PAPER = ((6, 6700, 12), (36, 1100, 0))  # group size, groups, flat ones
CLAIM = 0.99  # the share of groups that is said to be surpassed
TRIVIAL = {"flat": "flat", "without_inner": "no inner set", "without_credit": "no credit"}
SHOWN = {"inner_depth": 2, "intermediate_proportion": 3, "reward": 2, "length": 1}  # decimals


def recipe_of(options: ProcessTrees, group_size: int, seed: int, output: Path) -> Recipe:
    """The recipe of one training run."""
    decided = {"rollout.group_size": group_size, "train.seed": seed}
    where = {"train.output": str(output), "train.name": f"G{group_size}_seed{seed}"}
    return load_recipe(options.recipe, {**options.given, **decided, **where})


def rollouts_of(run: str) -> Path:
    """The file of a run's training rollouts, given its folder or the file itself."""
    path = Path(run) / "rollouts.jsonl" if Path(run).is_dir() else Path(run)
    if not path.is_file():
        raise ValueError(f"there is no file {path}; give a run's folder, or a JSONL file of recorded rollouts")
    return path


def cells(options: ProcessTrees) -> list[dict[str, Any]]:
    """A recorded run each; or a training run for every group size and seed, seed by seed."""
    if options.runs:
        # With its size, so that a run that has grown since is read again.
        return [{"run": run, "bytes": rollouts_of(run).stat().st_size} for run in options.runs]
    pairs = [(size, seed) for seed in range(options.seeds) for size in options.group_sizes]
    for size, seed in pairs:  # refuses now what would fail hours later
        recipe_of(options, size, seed, Path())
    return [{"group_size": size, "seed": seed} for size, seed in pairs]


def measure(options: ProcessTrees, cell: Cell, folder: Path) -> list[dict[str, Any]]:
    """Train, unless the run is recorded already, and give the figures of every step."""
    if "run" in cell:
        return [{"run": cell["run"], "seed": None, **row} for row in step_rows(rollouts_of(cell["run"]))]
    recipe = recipe_of(options, cell["group_size"], cell["seed"], folder / "runs")
    run = run_training(recipe, folder / "runs" / f"{recipe.train.name}.log")
    return [{"run": run.name, "seed": cell["seed"], **row} for row in step_rows(run / "rollouts.jsonl")]


def report(options: ProcessTrees, rows: Sequence[Row]) -> Report:
    """The share of groups that are trees, what becomes of the trees over the steps, and that as curves."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["run"]].append(row)
    runs = dict(zip(short_names(list(found)), found.values(), strict=True))
    figure = draw(_curves(runs, by_run=bool(options.runs)))
    return Report([_shares(runs), _training(runs), _papers()], figure)


def short_names(names: Sequence[str]) -> list[str]:
    """As many last parts of each path as tell the paths apart."""
    parts = [Path(name).parts for name in names]
    for length in range(1, max(map(len, parts)) + 1):
        found = ["/".join(part[-length:]) for part in parts]
        if len(set(found)) == len(names):
            return found
    return list(names)


def _curves(runs: Mapping[str, Sequence[Row]], *, by_run: bool) -> dict[str, list[dict[str, Any]]]:
    """What the picture draws: runs of one group size share a label, unless they were recorded elsewhere."""
    curves: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, rows in runs.items():
        size = f"G = {rows[0]['group_size']}"
        known = [row for row in rows if row["groups"]]
        columns = ("step", "inner_depth", "intermediate_proportion", "reward")
        curves[f"{name}, {size}" if by_run else size].append(
            {column: np.array([row[column] for row in known], dtype=np.float64) for column in columns}
        )
    return curves


def _shares(runs: Mapping[str, Sequence[Row]]) -> Table:
    found = []
    for name, rows in runs.items():
        groups = sum(row["groups"] for row in rows)
        for key, words in TRIVIAL.items():
            found.append((name, rows[0]["group_size"], words, sum(row[key] for row in rows), groups))
    return _counts(
        "How many groups are a tree",
        found,
        "no tree if flat: no sampled token is shared by two answers. So the authors say it (coli-saar.github.io/"
        "grpo_prm): no shared prefix, every step a whole answer. What they count where all answers begin alike, or "
        "where two are identical, is not known to us; hence the stricter lines. no inner set: no process set between "
        "root and leaves, so that what is shared is shared by the whole group, whose process advantage is 0, or by "
        "identical answers, whose process reward is their outcome's. no credit: no inner set whose mean reward differs "
        "from the group's; so it is where all rewards are equal. Answers without a verdict don't count. Intervals are "
        "exact (Clopper–Pearson), as if groups were independent of each other, which those of one run are not quite. "
        "against 99 %: whether the interval lies above, below, or on both sides (can't tell).",
    )


def _papers() -> Table:
    found = [("paper", size, TRIVIAL["flat"], flat, groups) for size, groups, flat in PAPER]
    return _counts("For comparison: the paper's groups", found)


def _counts(title: str, found: Sequence[tuple[str, int, str, int, int]], note: str = "") -> Table:
    """A line per run, group size, what counts as no tree, how many groups are none, and how many there are."""
    return Table(
        title,
        ("run", "G", "no tree if", "no tree", "% with a tree [95 %]", "against 99 %"),
        [
            (name, str(size), words, f"{number:,} of {groups:,}", *share_of(groups - number, groups))
            for name, size, words, number, groups in found
        ],
        note,
    )


def share_of(number: int, groups: int) -> tuple[str, str]:
    """A share in percent with its exact 95 % interval, and on which side of CLAIM that lies."""
    from scipy.stats import binomtest

    low, high = binomtest(number, groups).proportion_ci(0.95, method="exact")
    verdict = "above" if low > CLAIM else "below" if high < CLAIM else "can't tell"
    shown = (f"{100 * value:.2f}" if 0 < value < 1 else f"{100 * value:.0f}" for value in (number / groups, low, high))
    return "{} [{}, {}]".format(*shown), verdict


def _training(runs: Mapping[str, Sequence[Row]]) -> Table:
    table: list[tuple[str, ...]] = []
    left_out = []
    for name, rows in runs.items():
        steps = [row["step"] for row in rows if row["groups"]]
        span = f"{steps[0]}–{steps[-1]}" if steps[-1] else 'unknown (no key "step")'
        table.append((name, span, *(change(rows, column, digits) for column, digits in SHOWN.items())))
        if reasons := listed((reason, row[reason]) for row in rows for reason in LEFT_OUT):
            first = next((f"; first damaged line: {row['damage']}" for row in rows if row["damage"]), "")
            left_out.append(f" Left out of {name}: {reasons}{first}.")
    return Table(
        "The same trees over training: first → last tenth of the steps",
        ("run", "steps", "inner depth", "intermediate", "reward", "length"),
        table,
        "Means over groups. inner depth: process sets between the root and an answer's leaf, both not counted: the "
        "paper's path depth, in the authors' words. (path_depth in results.csv, the metric tree/path_depth and "
        "inspect count root and leaf, too, where they span a sampled token.) intermediate: share of an answer's tokens "
        "in a prefix that it shares with an answer that is not identical. length: sampled tokens." + "".join(left_out),
    )


def change(rows: Sequence[Row], name: str, digits: int) -> str:
    """A figure's mean over the groups of the first tenth of the steps, and over those of the last."""
    known = [row for row in rows if row["groups"]]
    tenth = math.ceil(len(known) / 10)

    def mean(part: Sequence[Row]) -> str:
        return f"{np.average([row[name] for row in part], weights=[row['groups'] for row in part]):.{digits}f}"

    return mean(known) if len(known) == 1 else f"{mean(known[:tenth])} → {mean(known[-tenth:])}"
