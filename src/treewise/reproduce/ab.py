"""Presets against each other: same model, data, seeds and budget, and the baseline against itself.

    seed            0     1     2     3     4   │   5     6     7     8     9
    baseline        ●─────●─────●─────●─────●───┼───●─────●─────●─────●─────●    A/A: every pair of these
    λ-GRPO          ○     ○     ○     ○     ○   │                                A/B: every ● with every ○

"Half the steps to the baseline's peak" is a statement about the largest point of a noisy curve, so it favours whoever
is compared with it; what luck alone does, the A/A pairs tell. What should be looked at first is the mean score over
training. Presets, evaluations, smoothing and score are written down (settings.json) before the first run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from treewise.config import Recipe
from treewise.plot.ab import draw
from treewise.recipe import load_recipe
from treewise.reproduce.compare import Curve, Relabelled, peak, ratios, relabelled, sooner
from treewise.reproduce.engine import Report, Row, Table
from treewise.reproduce.options import AB
from treewise.reproduce.pool import Cell
from treewise.reproduce.training import preset_changes, run_training
from treewise.reward.load import load_reward
from treewise.statistics import difference, interval, paired
from treewise.track import read_lines
from treewise.types import FloatArray

COSTS = ("step", "tokens", "seconds")
UNFINISHED = 0.2  # share of runs that had not peaked, from which on the report says so


def recipe_of(options: AB, preset: str, seed: int, output: Path) -> Recipe:
    """The recipe of one run."""
    changes = options.given | preset_changes(preset)
    steps = load_recipe(options.recipe, changes).train.steps
    if steps % options.evaluations:
        raise ValueError(
            f"{steps} steps can't be divided by {options.evaluations} evaluations; set --evaluations or --train.steps"
        )
    changes |= {"eval.every": steps // options.evaluations, "train.seed": seed}
    recipe = load_recipe(options.recipe, {**changes, "train.output": str(output), "train.name": f"{preset}_{seed}"})
    if recipe.eval.source is None:
        raise ValueError(f"{options.recipe} has no held-out problems to compare on; set --eval.source")
    scores = ["reward", *(load_reward(item.function, weight=item.weight).name for item in recipe.reward)]
    if options.score not in scores:
        raise ValueError(f"--score: there is no held-out score {options.score!r}, only {', '.join(scores)}")
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
    spent = {row["step"]: row for row in read_lines(run / "metrics.jsonl")[0]}
    tokens = np.cumsum([0] + [spent[step]["completions/total_tokens"] for step in sorted(spent)])
    seconds = np.cumsum([0.0] + [spent[step]["step_time"] for step in sorted(spent)])
    rows = []
    for evaluation in read_lines(run / "eval.jsonl")[0]:
        step, score = evaluation["step"], evaluation["accuracy"][options.score]
        if score["mean"] is None:
            raise ValueError(f"{run}: the evaluation after step {step} has no verdict, so there is no curve")
        cost = {"step": step, "tokens": int(tokens[step]), "seconds": float(seconds[step])}
        rows.append({**cell, **cost, "score": score["mean"], "problems": score["n"]})
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
    curves, problems = curves_of(rows), sorted({row["problems"] for row in rows})
    tables = [
        _reached(options, curves, f"{'–'.join(map(str, problems))} held-out problems, score `{options.score}`."),
        _differences(options, curves),
        _sooner(options, curves),
    ]
    return Report(tables, draw(curves, pairs_of(options, curves), window=options.smoothing, score=options.score))


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
    lines: list[tuple[str, ...]] = []
    for preset in options.presets:
        runs = list(curves[preset].values())
        peaks = [peak(curve, options.smoothing) for curve in runs]
        cells = [
            interval(np.array([curve.score[0] for curve in runs]))[:1],
            interval(np.array([curve.score[-1] for curve in runs])),
            interval(np.array([height for _, height in peaks])),
            interval(np.array([over_training(curve) for curve in runs])),
        ]
        steps = [curve.cost["step"][at] for curve, (at, _) in zip(runs, peaks, strict=True)]
        last = [at == len(curve.score) - 1 for curve, (at, _) in zip(runs, peaks, strict=True)]
        shown = (*(_shown(*cell) for cell in cells), f"{np.median(steps):.0f}", _share(last))
        lines.append((preset, str(len(runs)), *shown))
    return Table(
        "What was reached",
        ("preset", "runs", "before", "after", "peak", "mean over training", "peak at step", "at the end"),
        lines,
        f"{note} Mean [95 % t interval] over training seeds: on these problems, with this recipe's learning rate. Peak "
        f"of the centred mean of {options.smoothing} evaluations, at the median step; at the end: share of runs whose "
        "peak is their last evaluation.",
    )


def over_training(curve: Curve) -> float:
    """Mean score of the evaluations after the start."""
    return float(curve.score[1:].mean())


def _differences(options: AB, curves: Mapping[str, Mapping[int, Curve]]) -> Table:
    baseline, *others = options.presets
    scores: tuple[tuple[str, Callable[[Curve], float]], ...] = (
        ("mean over training", over_training),
        ("after", lambda curve: float(curve.score[-1])),
    )
    lines: list[tuple[str, ...]] = []
    for name, score in scores:
        values = {preset: {seed: score(curve) for seed, curve in runs.items()} for preset, runs in curves.items()}
        first = np.array([values[baseline][seed] for seed in range(options.seeds)])
        again = np.array([value for seed, value in values[baseline].items() if seed >= options.seeds])
        lines.append((f"{baseline}, other seeds (A/A)", name, _shown(*difference(again, first), sign="+"), ""))
        for preset in others:
            found = paired(np.array([values[preset][seed] for seed in range(options.seeds)]) - first)
            p = f"{found.p:.2g} (at least {found.smallest:.2g})"
            lines.append((preset, name, _shown(*found.difference, sign="+"), p))
    return Table(
        f"Difference to {baseline}",
        ("preset", "score", "difference [95 %]", "p"),
        lines,
        f"Paired over {options.seeds} seeds (same problems in the same order) with Student's interval; A/A by Welch's. "
        "p: sign flips, two-sided, for each line by itself; in brackets the least that so many seeds can give.",
    )


def _sooner(options: AB, curves: Mapping[str, Mapping[int, Curve]]) -> Table:
    baseline = options.presets[0]
    pairs = pairs_of(options, curves)
    lines: list[tuple[str, ...]] = []
    for preset in options.presets:
        step = pairs[preset]["step"]
        known = step[~np.isnan(step)]
        luck = ("", "")
        if preset != baseline:
            test = _test(options, curves, preset)
            luck = (f"{test.low:.2f} to {test.high:.2f}", f"{test.p:.2g} (at least {test.smallest:.2g})")
        lines.append(
            (
                f"{preset} (A/A)" if preset == baseline else preset,
                str(len(known)),
                _share(np.isfinite(known)),
                _share(known <= 0.5),
                f"{sooner(step):.2f}",
                *luck,
                *(_quantiles(pairs[preset][cost]) for cost in COSTS),
            )
        )
    ends = [peak(curve, options.smoothing)[0] == len(curve.score) - 1 for curve in curves[baseline].values()]
    unfinished = (
        f" {_share(ends)} of the baseline's runs are best at their last evaluation: they had not peaked, so that a "
        "ratio above 1 could hardly be seen, and this says little about the way to a peak. Train longer."
    )
    return Table(
        f"Steps to the peak of a run of {baseline}, over the steps of that run",
        ("preset", "pairs", "reach it", "in half", "sooner", "by luck", "p", "steps", "tokens", "time"),
        lines,
        f"Every pair of {len(curves[baseline])} runs of the baseline with {options.seeds} of another preset. Pairs "
        "share runs, so their number is no sample size; only p accounts for that. steps, sampled tokens, time: median "
        "[10 %, 90 %] of the ratio, ∞ where the peak is never reached. sooner: share of ratios below 1, ties half. by "
        "luck: 95 % of what it is when runs are dealt into the two roles at random; p: two-sided, from these deals, "
        "and careful if runs of one seed are alike. time: of the training steps, as this machine ran them; only with "
        f"--jobs 1 and nothing else running it says something.{unfinished if np.mean(ends) > UNFINISHED else ''}",
    )


def _test(options: AB, curves: Mapping[str, Mapping[int, Curve]], preset: str) -> Relabelled:
    runs = [*curves[options.presets[0]].values(), *curves[preset].values()]
    matrix = np.array([[ratios(a, b, window=options.smoothing)["step"] for b in runs] for a in runs])
    return relabelled(matrix, len(curves[options.presets[0]]))


def _shown(mean: float, low: float = np.nan, high: float = np.nan, *, sign: str = "") -> str:
    return f"{mean:{sign}.3f}" + ("" if np.isnan(low) else f" [{low:{sign}.3f}, {high:{sign}.3f}]")


def _share(values: Any) -> str:
    return f"{100 * float(np.mean(values)):.0f} %" if len(values) else "–"


def _quantiles(values: FloatArray) -> str:
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return "–"
    # Of a sorted list, because ∞ can't be interpolated.
    low, middle, high = (known[round(q * (len(known) - 1))] for q in (0.1, 0.5, 0.9))
    return f"{_number(middle)} [{_number(low)}, {_number(high)}]"


def _number(value: float) -> str:
    return "∞" if np.isinf(value) else f"{value:.2f}"
