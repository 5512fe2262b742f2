"""Presets against each other: same model, data, seeds and budget, and the baseline against itself.

    seed            0     1     2     3     4   │   5     6     7     8     9
    baseline        ●─────●─────●─────●─────●───┼───●─────●─────●─────●─────●    A/A: every pair of these
    λ-GRPO          ○     ○     ○     ○     ○   │                                A/B: every ● with every ○

"Half the steps to the baseline's peak" is a statement about the largest point of a noisy curve, so it favours whoever
is compared with it. How much, the A/A pairs tell. Presets, evaluations, smoothing and score are written down
(settings.json) before the first run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treewise.config import Recipe
from treewise.plot.runlog import read_lines
from treewise.recipe import load_recipe, parse_overrides
from treewise.reproduce.compare import Curve, peak, ratios, relabelled, sooner
from treewise.reproduce.engine import Cell, Report, Row, Table
from treewise.reproduce.options import AB
from treewise.reproduce.training import run_training
from treewise.statistics import interval, paired
from treewise.types import FloatArray

COSTS = ("step", "tokens", "seconds")


def recipe_of(options: AB, preset: str, seed: int, output: Path) -> Recipe:
    """The recipe of one run. A preset may have options on top of it: `grpo+aggregation=token`."""
    name, *extra = preset.split("+")
    changes = {**options.given, "objective.preset": name}
    changes |= parse_overrides([f"--objective.{option}" for option in extra])
    steps = load_recipe(options.recipe, options.changes).train.steps
    if steps % options.evaluations:
        raise ValueError(
            f"{steps} steps can't be divided by {options.evaluations} evaluations; set --evaluations or --train.steps"
        )
    changes |= {"eval.every": steps // options.evaluations, "train.seed": seed}
    recipe = load_recipe(options.recipe, {**changes, "train.output": str(output), "train.name": f"{preset}_{seed}"})
    if recipe.eval.source is None:
        raise ValueError(f"{options.recipe} has no held-out problems to compare on; set --eval.source")
    return recipe


def cells(options: AB) -> list[dict[str, Any]]:
    """A run per preset and seed, and as many of the baseline on other seeds; seed by seed."""
    found: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        found += [{"preset": preset, "seed": seed} for preset in options.presets]
        found.append({"preset": options.presets[0], "seed": seed + options.seeds})
    for cell in found:  # refuses now what would fail hours later
        recipe_of(options, cell["preset"], cell["seed"], Path())
    return found


def measure(options: AB, cell: Cell, folder: Path) -> list[dict[str, Any]]:
    """Train, and give the held-out evaluations with what had been spent until then."""
    recipe = recipe_of(options, cell["preset"], cell["seed"], folder / "runs")
    run = run_training(recipe, folder / "runs" / f"{recipe.train.name}.log")
    metrics, _ = read_lines(run / "metrics.jsonl")
    tokens = np.cumsum([0] + [row["completions/total_tokens"] for row in metrics])
    seconds = np.cumsum([0.0] + [row["step_time"] for row in metrics])
    rows = []
    for evaluation in read_lines(run / "eval.jsonl")[0]:
        step = evaluation["step"]
        if options.score not in evaluation["accuracy"]:
            raise ValueError(f"there is no held-out score {options.score!r}, only {', '.join(evaluation['accuracy'])}")
        score = evaluation["accuracy"][options.score]
        spent = {"step": step, "tokens": int(tokens[step]), "seconds": float(seconds[step])}
        rows.append({**cell, **spent, "score": score["mean"], "problems": score["n"]})
    return rows


def curves_of(rows: Sequence[Row]) -> dict[str, dict[int, Curve]]:
    """Preset → seed → curve."""
    found: dict[str, dict[int, Curve]] = {}
    for (preset, seed), group in itertools.groupby(rows, key=lambda row: (row["preset"], row["seed"])):
        own = list(group)
        cost = {name: np.array([float(row[name]) for row in own]) for name in COSTS}
        found.setdefault(preset, {})[seed] = Curve(np.array([float(row["score"]) for row in own]), cost)
    return found


def report(options: AB, rows: Sequence[Row]) -> Report:
    """What each preset reached, what it differs by, and how soon it reached the baseline's peak."""
    curves = curves_of(rows)
    problems = rows[0]["problems"]
    tables = [
        _reached(options, curves, f"{problems} held-out problems, score `{options.score}`"),
        _differences(options, curves),
        _sooner(options, curves),
    ]
    try:
        from treewise.plot.ab import draw

        figure = draw(curves, pairs_of(options, curves), window=options.smoothing, score=options.score)
    except ImportError:
        figure = None
    return Report(tables, figure)


def pairs_of(options: AB, curves: Mapping[str, Mapping[int, Curve]]) -> dict[str, dict[str, FloatArray]]:
    """Preset → cost → ratios of all its pairs with a baseline's run; for the baseline, with its own other seeds."""
    baseline = options.presets[0]
    found = {}
    for preset in options.presets:
        own = [
            ratios(reference, curve, window=options.smoothing)
            for seed, curve in curves[preset].items()
            for other, reference in curves[baseline].items()
            if preset != baseline or seed != other
        ]
        found[preset] = {cost: np.array([ratio[cost] for ratio in own]) for cost in COSTS}
    return found


def _reached(options: AB, curves: Mapping[str, Mapping[int, Curve]], note: str) -> Table:
    lines = []
    for preset in options.presets:
        runs = list(curves[preset].values())
        peaks = [peak(curve, options.smoothing) for curve in runs]
        cells = [
            interval(np.array([curve.score[0] for curve in runs]))[:1],
            interval(np.array([curve.score[-1] for curve in runs])),
            interval(np.array([height for _, height in peaks])),
            interval(np.array([curve.score[1:].mean() for curve in runs])),
        ]
        steps = [curve.cost["step"][at] for curve, (at, _) in zip(runs, peaks, strict=True)]
        lines.append((preset, str(len(runs)), *(_shown(*cell) for cell in cells), f"{np.median(steps):.0f}"))
    header = ("preset", "runs", "before", "after", "peak", "mean over training", "step of the peak, median")
    return Table("What was reached (95 % t intervals over seeds)", header, lines, note)


def _differences(options: AB, curves: Mapping[str, Mapping[int, Curve]]) -> Table:
    baseline, *others = options.presets
    lines: list[tuple[str, ...]] = []
    for preset in others:
        for name, value in (("after", lambda c: c.score[-1]), ("mean over training", lambda c: c.score[1:].mean())):
            found = paired(
                np.array([value(curves[preset][s]) - value(curves[baseline][s]) for s in range(options.seeds)])
            )
            shown = _shown(*found.difference, sign="+")
            lines.append((preset, name, shown, f"{found.p:.3f} (at least {found.smallest:.3f})"))
    return Table(
        f"Difference to {baseline}, same seeds",
        ("preset", "score", "difference [95 %]", "p, sign flips"),
        lines,
        f"Paired over {options.seeds} seeds: same problems in the same order, same held-out problems. In brackets the "
        "smallest p that so many seeds can give.",
    )


def _sooner(options: AB, curves: Mapping[str, Mapping[int, Curve]]) -> Table:
    baseline = options.presets[0]
    pairs = pairs_of(options, curves)
    lines = []
    for preset in options.presets:
        step = pairs[preset]["step"]
        known = step[~np.isnan(step)]
        p = "" if preset == baseline else f"{_relabelled(options, curves, preset):.3f}"
        lines.append(
            (
                f"{preset} (A/A)" if preset == baseline else preset,
                str(len(known)),
                _share(np.isfinite(known)),
                _share(known <= 0.5),
                f"{sooner(step):.2f}",
                p,
                *(_quantiles(pairs[preset][cost]) for cost in COSTS),
            )
        )
    return Table(
        f"Steps to the peak of a run of {baseline}, over the steps of that run",
        ("preset", "pairs", "reach it", "in half the steps", "sooner", "p", "steps", "sampled tokens", "time"),
        lines,
        "Every pair of runs; the last three columns are median [10 %, 90 %] of the ratio, ∞ where the peak is never "
        f"reached. Peaks of the mean of {options.smoothing} evaluations. sooner: share below 1, ties half. p: how "
        "often runs dealt at random into the two roles give a share as large (one-sided). Time is that of the training "
        "steps as this machine ran them.",
    )


def _relabelled(options: AB, curves: Mapping[str, Mapping[int, Curve]], preset: str) -> float:
    runs = [*curves[options.presets[0]].values(), *curves[preset].values()]
    matrix = np.array([[ratios(a, b, window=options.smoothing)["step"] for b in runs] for a in runs])
    count = len(curves[options.presets[0]])
    return relabelled(matrix, range(count), range(count, len(runs)))


def _shown(mean: float, low: float = np.nan, high: float = np.nan, *, sign: str = "") -> str:
    return f"{mean:{sign}.3f}" + ("" if np.isnan(low) else f" [{low:{sign}.3f}, {high:{sign}.3f}]")


def _share(values: Any) -> str:
    return f"{100 * float(np.mean(values)):.0f} %" if len(values) else "none"


def _quantiles(values: FloatArray) -> str:
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return "none"
    # Of a sorted list, because ∞ can't be interpolated.
    low, middle, high = (known[round(q * (len(known) - 1))] for q in (0.1, 0.5, 0.9))
    return f"{_number(middle)} [{_number(low)}, {_number(high)}]"


def _number(value: float) -> str:
    return "∞" if np.isinf(value) else f"{value:.2f}"
