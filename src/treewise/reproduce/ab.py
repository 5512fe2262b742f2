"""Presets against each other: same model, data, seeds and budget, and the baseline against itself.

    seed            0     1     2     3     4   │   5     6     7     8     9
    baseline        ●─────●─────●─────●─────●───┼───●─────●─────●─────●─────●    A/A: every pair of these
    λ-GRPO          ○     ○     ○     ○     ○   │                                A/B: every ● with every ○

The answer is the first line: by how much the mean score over training differs, seed by seed.

"Half the steps to the baseline's peak" is a statement about the largest point of a noisy curve, so it favours whoever
is compared with it; what luck alone does, the A/A pairs tell. Presets, evaluations, smoothing and score are written
down (settings.json) before the first run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from treewise.config import Recipe
from treewise.plot.ab import draw
from treewise.recipe import load_recipe
from treewise.reproduce.compare import Curve, PermutationTest, peak, permutation_test, ratios, sooner
from treewise.reproduce.engine import Report, Row, Table
from treewise.reproduce.options import AB, preset_changes
from treewise.reproduce.pool import Cell
from treewise.reproduce.training import run_training
from treewise.reward.load import load_rewards
from treewise.statistics import FEWEST, ROUNDING, counted, shown, sign_flips, smallest_p, visible
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
    scores = ["reward", *(reward.name for reward in load_rewards(recipe.reward))]
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


class Arm(NamedTuple):
    """Runs that are looked at together: a preset's, or the baseline's on other seeds."""

    name: str
    seeds: range
    runs: list[Curve]


class Pairs(NamedTuple):
    """A preset's runs against all of the baseline's: cost → [pairs] ratios, and the test of those of the steps."""

    ratios: dict[str, FloatArray]
    test: PermutationTest | None


def arms_of(options: AB, rows: Sequence[Row]) -> list[Arm]:
    """The baseline, the baseline on other seeds (A/A), and what is compared with it."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["preset"], row["seed"]), []).append(row)
    curves = {run: Curve(_column(own, "score"), {c: _column(own, c) for c in COSTS}) for run, own in found.items()}
    baseline, *others = options.presets
    paired, again = range(options.seeds), range(options.seeds, 2 * options.seeds)
    chosen = [(baseline, baseline, paired), (f"{baseline} (A/A)", baseline, again)]
    chosen += [(preset, preset, paired) for preset in others]
    return [Arm(name, seeds, [curves[preset, seed] for seed in seeds]) for name, preset, seeds in chosen]


def _column(rows: Sequence[Row], name: str) -> FloatArray:
    return np.array([float(row[name]) for row in rows])


def report(options: AB, rows: Sequence[Row]) -> Report:
    """Whether a preset differs from the baseline, what each reached, and how soon it was at the baseline's peak."""
    arms = arms_of(options, rows)
    pairs = pairs_of(options, arms)
    problems = "–".join(f"{number:,}" for number in sorted({row["problems"] for row in rows}))
    tables = [
        _differences(arms),
        _reached(options, arms, f"{problems} held-out problems, score `{options.score}`."),
        _sooner(options, arms, pairs),
    ]
    steps = {preset: found.ratios["step"] for preset, found in pairs.items()}
    return Report(tables, draw({arm.name: arm.runs for arm in arms}, steps, options.smoothing, options.score))


def pairs_of(options: AB, arms: Sequence[Arm]) -> dict[str, Pairs]:
    """Preset → its pairs; for the baseline every pair of different runs of its own."""
    runs = [run for arm in arms for run in arm.runs]
    every = [[ratios(reference, run, window=options.smoothing) for run in runs] for reference in runs]
    found = {cost: np.array([[pair[cost] for pair in row] for row in every]) for cost in COSTS}
    own, baseline = options.seeds, 2 * options.seeds  # runs, of which the baseline's come first
    different = ~np.eye(baseline, dtype=bool)
    pairs = {
        options.presets[0]: Pairs({c: matrix[:baseline, :baseline][different] for c, matrix in found.items()}, None)
    }
    for number, preset in enumerate(options.presets[1:]):
        columns = np.arange(own) + baseline + number * own
        both = np.append(np.arange(baseline), columns)
        test = permutation_test(found["step"][np.ix_(both, both)], baseline)
        pairs[preset] = Pairs({c: matrix[:baseline, columns].ravel() for c, matrix in found.items()}, test)
    return pairs


def over_training(curve: Curve) -> float:
    """Mean score of the evaluations after the start."""
    return float(curve.score[1:].mean())


def _differences(arms: Sequence[Arm]) -> Table:
    baseline, *others = arms
    seeds = len(baseline.seeds)
    lines: list[tuple[str, ...]] = []
    verdicts = []
    for name, score in (("mean over training", over_training), ("after", lambda curve: float(curve.score[-1]))):
        first = np.array([score(run) for run in baseline.runs])
        for arm in others:
            differences = np.array([score(run) for run in arm.runs]) - first
            lines.append((arm.name, name, shown(differences, "+.3f"), f"{sign_flips(differences):.2g}"))
            if score is over_training and arm.seeds == baseline.seeds:
                verdicts.append(_verdict(f"{arm.name} − {baseline.name}, {name}", differences))
    return Table(
        " ".join(verdicts),
        ("preset", "score", f"minus {baseline.name} " + ("(seed by seed)" if seeds < FEWEST else "[95 %]"), "p"),
        lines,
        f"Seed by seed ({seeds} of them: same problems in the same order), with Student's interval where there are "
        f"{FEWEST} seeds or more. A/A: what luck alone does, the baseline's other seeds minus its own, in their order. "
        f"p: sign flips, two-sided, for each line by itself; so many seeds can't give less than "
        f"{smallest_p(seeds):.2g}. Probably: four times in five, if seeds spread as they did here.",
    )


def _verdict(what: str, differences: FloatArray) -> str:
    """The sentence that answers whether a preset is better."""
    number, p, limit = len(differences), sign_flips(differences), visible(differences)
    text = f"{what}: {shown(differences, '+.3f')} over {counted(number, 'seed')}"
    if number < FEWEST:
        return (
            f"{text}, which can't reach p < .05 (least: 2/2^{number} = {smallest_p(number):.4g}); use {FEWEST} or more."
        )
    if p < 0.05:
        return f"{text}, p = {p:.2g}: {'higher' if differences.mean() > 0 else 'lower'}."
    unseen = "" if np.isnan(limit) else f"; one larger than about {limit:.2g} would probably have been"
    return f"{text}, p = {p:.2g}: no difference seen{unseen}."


def _reached(options: AB, arms: Sequence[Arm], note: str) -> Table:
    lines: list[tuple[str, ...]] = []
    for arm in arms:
        peaks = [peak(run, options.smoothing) for run in arm.runs]
        columns = (
            [run.score[0] for run in arm.runs],
            [run.score[-1] for run in arm.runs],
            [height for _, height in peaks],
            [over_training(run) for run in arm.runs],
        )
        steps = [run.cost["step"][at] for run, (at, _) in zip(arm.runs, peaks, strict=True)]
        last = [at == len(run.score) - 1 for run, (at, _) in zip(arm.runs, peaks, strict=True)]
        seeds = f"{arm.seeds[0]}–{arm.seeds[-1]}"
        lines.append((arm.name, seeds, *map(_span, columns), f"{np.median(steps):.0f}", _share(last)))
    return Table(
        "What was reached: mean (lowest … highest run)",
        ("preset", "seeds", "before", "after", "peak", "mean over training", "peak at step", "peak is last"),
        lines,
        f"{note} Of these problems and this recipe only, its learning rate included. Peak: the highest centred mean "
        f"of {counted(options.smoothing, 'evaluation')}, at the median step. Peak is last: share of runs best at "
        "their end. A/A: the baseline on as many other seeds.",
    )


def _sooner(options: AB, arms: Sequence[Arm], pairs: Mapping[str, Pairs]) -> Table:
    lines: list[tuple[str, ...]] = []
    for preset, (found, test) in pairs.items():
        known = found["step"][~np.isnan(found["step"])]
        luck = (
            (f"{test.low:.2f} to {test.high:.2f}", f"{test.p:.2g} (least: {test.smallest:.2g})") if test else ("", "")
        )
        shares = (_share(np.isfinite(known)), _share(known <= 0.5), f"{sooner(known):.2f}")
        name = preset if test else f"{preset} (A/A)"
        lines.append((name, str(len(known)), *shares, *luck, *(_quantiles(found[cost]) for cost in COSTS)))
    ends = [peak(run, options.smoothing)[0] == len(run.score) - 1 for arm in arms[:2] for run in arm.runs]
    unfinished = (
        f" {_share(ends)} of the baseline's runs are best at their last evaluation: they had not peaked, so that a "
        "ratio above 1 could hardly be seen, and this says little about the way to a peak. Train longer."
    )
    return Table(
        f"Steps to the peak of a run of {options.presets[0]}, over the steps of that run",
        (
            "preset",
            "pairs",
            "reach it",
            "in half",
            "sooner",
            "labels at random",
            "p",
            "steps",
            "tokens",
            "time (--jobs 1)",
        ),
        lines,
        f"Every pair of {2 * options.seeds} runs of the baseline with {options.seeds} of another preset, without those "
        "whose baseline was best before training. Pairs share runs, so their number is no sample size; only p accounts "
        "for that. reach it, in half: share of pairs with a ratio of steps at all, and of ½ at most. sooner: share "
        "below 1, ties half. labels at random: 95 % of what that is if it means nothing which runs are the baseline's; "
        "p: two-sided, by these permutations, conservative where runs of one seed are alike. steps, sampled tokens, "
        "time: median [10 %, 90 %] of the ratio, ∞ where the peak is never reached. time: of the training steps, as "
        "this machine ran them; it only means something with --jobs 1 and nothing else running."
        f"{unfinished if np.mean(ends) > UNFINISHED else ''}",
    )


def _span(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    rest = f"({low:.3f} … {high:.3f})" if high - low > ROUNDING else "(all equal)"
    return f"{np.mean(values):.3f} {rest}".replace("-", "−")


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
