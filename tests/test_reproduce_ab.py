"""Presets against each other: what the instrument says of curves whose answer is known, and a real small experiment."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from folders import write_problems, write_tiny_model
from treewise import cli
from treewise.reproduce import ab
from treewise.reproduce.compare import Curve, centred_mean, peak, permutation_test, ratios, sooner
from treewise.reproduce.options import AB, make_options
from treewise.statistics import interval, shown, sign_flips, smallest_p, visible


def curve(*score: float) -> Curve:
    """Evaluations every 4 steps; a step takes 10 tokens, then 20, 30, …"""
    step = 4.0 * np.arange(len(score))
    return Curve(np.array(score), {"step": step, "tokens": 5 * step * (step + 1)})


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_the_running_mean_is_centred_and_shorter_at_the_ends() -> None:
    assert centred_mean(np.array([0.0, 3.0, 6.0, 0.0]), 3).tolist() == [1.5, 3.0, 3.0, 3.0]
    assert centred_mean(np.array([0.1, 0.2]), 1).tolist() == [0.1, 0.2]


def test_ratios_are_what_one_counts_on_fingers() -> None:
    slow, fast, never = curve(0.1, 0.2, 0.3, 0.4, 0.3), curve(0.1, 0.5, 0.2, 0.2, 0.2), curve(0.0, 0.1, 0.1, 0.1, 0.39)
    assert peak(slow, 1) == (3, 0.4)
    # The line from .1 (step 0) to .5 (step 4) is at .4 after step 3, and after 3/4 of the 100 tokens.
    assert ratios(slow, fast, window=1) == pytest.approx({"step": 3 / 12, "tokens": 75 / 780})
    assert ratios(slow, slow, window=1) == {"step": 1.0, "tokens": 1.0}
    assert ratios(slow, never, window=1) == {"step": np.inf, "tokens": np.inf}
    # Means of three: slow is at .15 .2 .3 .333 .35, so it peaks at the end; fast is at .3 .267 .3 .2 .2, never so high.
    assert peak(slow, 3) == (4, pytest.approx(0.35))
    assert ratios(slow, fast, window=3)["step"] == np.inf


def test_who_starts_above_the_peak_is_there_at_once() -> None:
    assert ratios(curve(0.1, 0.3), curve(0.5, 0.1), window=1)["step"] == 0.0


def test_a_baseline_that_only_got_worse_has_no_peak_to_reach() -> None:
    found = ratios(curve(0.5, 0.4, 0.3), curve(0.1, 0.9, 0.9), window=1)
    assert np.isnan(found["step"])
    assert np.isnan(sooner(np.array([found["step"]])))


def test_peaks_that_are_equal_up_to_rounding_are_reached() -> None:
    assert ratios(curve(0.0, 0.1 + 0.2), curve(0.0, 0.3), window=1)["step"] == 1.0


def test_never_counts_as_later_and_a_tie_as_half() -> None:
    assert sooner(np.array([0.5, 1.0, np.inf, np.nan])) == pytest.approx(0.5)


@pytest.mark.parametrize("window", [1, 3])
def test_twice_as_fast_is_half_the_steps_whatever_the_smoothing(window: int) -> None:
    steps = np.arange(21) / 20
    slow, fast = curve(*np.minimum(1.0, 1.25 * steps)), curve(*np.minimum(1.0, 2.5 * steps))
    # On a plateau a mean of three gets there one evaluation late: 9/17 in place of 8/16.
    assert ratios(slow, fast, window=window)["step"] == pytest.approx({1: 8 / 16, 3: 9 / 17}[window])


def pairs(runs: Sequence[Curve]) -> np.ndarray:
    return np.array([[ratios(a, b, window=1)["step"] for b in runs] for a in runs])


def test_the_peak_of_noise_is_reached_by_half_of_its_equals() -> None:
    """The instrument against itself: curves without any trend."""
    generator = np.random.default_rng(0)
    runs = [curve(-9.0, *generator.normal(size=10)) for _ in range(60)]
    found = np.array([ratios(a, b, window=1)["step"] for a, b in itertools.permutations(runs, 2)])
    assert np.isfinite(found).mean() == pytest.approx(0.5, abs=0.03)
    # Of those that reach it, many do so in half of the steps: luck alone gives "half the steps" now and then.
    assert (found <= 0.5).mean() > 0.15
    luck = permutation_test(pairs(runs[:12]), 8)
    assert luck.p > 0.05
    assert luck.low < sooner(found) < luck.high


@pytest.mark.parametrize("faster", [True, False])
def test_a_method_twice_as_fast_or_slow_is_seen_as_such(faster: bool) -> None:
    generator = np.random.default_rng(1)

    def learner(speed: float) -> Curve:
        return curve(*(np.minimum(1.0, speed * np.arange(11) / 10) + 0.01 * generator.normal(size=11)))

    speeds = (0.5, 1.0) if faster else (1.0, 0.5)
    runs = [learner(speeds[0]) for _ in range(6)] + [learner(speeds[1]) for _ in range(3)]
    matrix = pairs(runs)
    if faster:
        assert np.median(matrix[:6, 6:]) == pytest.approx(0.5, abs=0.06)
    found = permutation_test(matrix, 6)
    assert found.smallest == 2 / 84  # of 9 runs 3 can be chosen in 84 ways
    assert found.p == pytest.approx(2 / 84)
    real = sooner(matrix[:6, 6:])
    assert real > found.high if faster else real < found.low


def test_nothing_is_concluded_where_no_baseline_has_a_peak() -> None:
    runs = [curve(0.5, 0.5, 0.5)] * 6
    found = permutation_test(pairs(runs), 4)
    assert np.isnan(found.p)
    assert np.isnan(found.low)


def test_of_more_permutations_than_can_be_looked_at_some_are_drawn() -> None:
    generator = np.random.default_rng(2)
    matrix = generator.uniform(0.5, 2.0, (24, 24))
    found = permutation_test(matrix, 16)
    assert found.smallest == 2 / 10_001
    assert 0 < found.p <= 1


def test_the_interval_is_students() -> None:
    """n = 6, mean 3.5, standard deviation √3.5: 2.5706 is the table's t for 5 degrees of freedom."""
    mean, low, high = interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    half = 2.5706 * np.sqrt(3.5 / 6)
    assert (mean, high - mean, mean - low) == pytest.approx((3.5, half, half), rel=1e-4)
    assert interval(np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), within=(2.0, 5.0)) == (3.5, 2.0, 5.0)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0.5], "0.50"),
        ([0.25, -0.75], "−0.25 (0.25, −0.75)"),
        ([0.1, 0.1, 0.1, 0.1, 0.1], "0.10 (0.10, 0.10, 0.10, 0.10, 0.10)"),
        ([0.1 + 0.2, 0.3, 0.3, 0.3, 0.3, 0.3], "0.30 (all equal)"),
        ([0.0, 0.0, 0.0, 1.0, 1.0, 1.0], "0.50 [−0.07, 1.07]"),  # ± 2.57058 · .54772 / √6
    ],
)
def test_few_or_equal_values_have_no_interval(values: list[float], text: str) -> None:
    assert shown(np.array(values), ".2f") == text
    assert np.isnan(interval(np.array(values)).low) == ("[" not in text)


@pytest.mark.parametrize("seeds", [13, 15])
def test_the_smallest_p_is_what_the_most_extreme_differences_get(seeds: int) -> None:
    assert sign_flips(np.linspace(1.0, 2.0, seeds)) == pytest.approx(smallest_p(seeds))


def test_five_seeds_can_not_give_a_smaller_p_than_a_sixteenth() -> None:
    assert sign_flips(np.array([0.1, 0.2, 0.3, 0.4, 0.5])) == smallest_p(5) == 2 / 32
    assert sign_flips(np.array([0.1, -0.1])) == 1.0
    assert sign_flips(np.array([0.1])) == smallest_p(1) == 1.0


@pytest.mark.parametrize("seeds", [6, 20])
def test_a_difference_that_is_called_visible_is_seen_four_times_in_five(seeds: int) -> None:
    """By the noncentral t distribution: the power of a t test if the true difference is that large."""
    differences = np.random.default_rng(0).normal(size=seeds)
    shift = visible(differences) / (differences.std(ddof=1) / np.sqrt(seeds))
    assert stats.nct.sf(stats.t.ppf(0.975, seeds - 1), seeds - 1, shift) == pytest.approx(0.8, abs=0.03)


# Scores at steps 0, 10, 20, 30 and 40, and what lambda_grpo spends on a step that costs the baseline 100 and 2 s.
SCORES = {
    ("grpo", 0): (0.0, 0.25, 0.5, 0.75, 0.5),
    ("grpo", 1): (0.0, 0.25, 0.5, 0.75, 1.0),
    ("grpo", 2): (0.0, 0.5, 0.5, 0.5, 0.25),
    ("grpo", 3): (0.0, 0.25, 0.25, 0.5, 0.25),
    ("lambda_grpo", 0): (0.0, 0.75, 0.5, 0.5, 0.5),
    ("lambda_grpo", 1): (0.0, 0.75, 1.0, 0.75, 0.75),
}
SPENT = {"grpo": (100, 2.0), "lambda_grpo": (150, 1.0)}
NEVER = np.inf
# Steps of the column's run (in the order above) to the peak of the row's, over those of the row's.
STEPS = [
    [1, 1, NEVER, NEVER, 1 / 3, 1 / 3],
    [NEVER, 1, NEVER, NEVER, NEVER, 1 / 2],
    [2, 2, 1, 3, 2 / 3, 2 / 3],
    [2 / 3, 2 / 3, 1 / 3, 1, 2 / 9, 2 / 9],
    [3, 3, NEVER, NEVER, 1, 1],
    [NEVER, 2, NEVER, NEVER, NEVER, 1],
]


def hand_made(scores: Mapping[tuple[str, int], Sequence[float]]) -> list[dict[str, Any]]:
    rows = []
    for (preset, seed), curve in scores.items():
        tokens, seconds = SPENT[preset]
        for at, score in enumerate(curve):
            spent = {"step": 10 * at, "tokens": 10 * at * tokens, "seconds": 10 * at * seconds}
            rows.append({"preset": preset, "seed": seed, **spent, "score": score, "problems": 8})
    return rows


def options_of(seeds: int) -> AB:
    given = {"presets": "grpo,lambda_grpo", "seeds": seeds, "evaluations": 4, "smoothing": 1}
    options = make_options("ab", given)
    assert isinstance(options, AB)
    return options


def test_every_cell_of_the_tables_is_what_one_counts_on_fingers() -> None:
    report = ab.report(options_of(2), hand_made(SCORES))
    differences, reached, speed = report.tables
    assert differences.title == (
        "lambda_grpo − grpo, mean over training: +0.125 (+0.062, +0.188) over 2 seeds, which can't reach p < .05 "
        "(least: 2/2^2 = 0.5); use 6 or more."
    )
    assert differences.header == ("preset", "score", "minus grpo (seed by seed)", "p")
    assert differences.rows == [
        ("grpo (A/A)", "mean over training", "−0.188 (−0.062, −0.312)", "0.5"),
        ("lambda_grpo", "mean over training", "+0.125 (+0.062, +0.188)", "0.5"),
        ("grpo (A/A)", "after", "−0.500 (−0.250, −0.750)", "0.5"),
        ("lambda_grpo", "after", "−0.125 (+0.000, −0.250)", "1"),
    ]
    assert reached.header[2:] == ("before", "after", "peak", "mean over training", "peak at step", "peak is last")
    peaks = "0.875 (0.750 … 1.000)"
    zero = "0.000 (all equal)"
    assert reached.rows == [
        ("grpo", "0–1", zero, "0.750 (0.500 … 1.000)", peaks, "0.562 (0.500 … 0.625)", "35", "50 %"),
        ("grpo (A/A)", "2–3", zero, "0.250 (all equal)", "0.500 (all equal)", "0.375 (0.312 … 0.438)", "20", "0 %"),
        ("lambda_grpo", "0–1", zero, "0.625 (0.500 … 0.750)", peaks, "0.688 (0.562 … 0.812)", "15", "0 %"),
    ]
    # Of the 15 ways to call four of the six runs the baseline's.
    steps = np.array(STEPS)
    ways = [(list(c), sorted({*range(6)} - {*c})) for c in itertools.combinations(range(6), 4)]
    drawn = [((steps[np.ix_(a, b)] < 1) + 0.5 * (steps[np.ix_(a, b)] == 1)).mean() for a, b in ways]
    low, high = np.quantile(drawn, [0.025, 0.975])
    p = min(1.0, 2 * min(np.mean([d >= 7 / 8 for d in drawn]), np.mean([d <= 7 / 8 for d in drawn])))
    found = dict(zip(speed.header, zip(*speed.rows, strict=True), strict=True))
    assert found == {
        "preset": ("grpo (A/A)", "lambda_grpo"),
        "pairs": ("12", "8"),
        "reach it": ("58 %", "88 %"),  # 7 of 12, 7 of 8
        "in half": ("8 %", "62 %"),  # 1 of 12, 5 of 8
        "sooner": ("0.29", "0.88"),  # 3½ of 12, 7 of 8
        "labels at random": ("", f"{low:.2f} to {high:.2f}"),
        "p": ("", f"{p:.2g} (least: 0.13)"),
        "steps": ("3.00 [0.67, ∞]", "0.50 [0.22, 0.67]"),
        "tokens": ("3.00 [0.67, ∞]", "0.75 [0.33, 1.00]"),
        "time (--jobs 1)": ("3.00 [0.67, ∞]", "0.25 [0.11, 0.33]"),
    }
    assert "25 % of the baseline's runs are best at their last evaluation" in speed.note
    curves, _ = report.figure.axes
    legend = curves.get_legend()
    assert legend is not None
    ends = ["grpo: 0.00 → 0.75 (2 seeds)", "grpo (A/A): 0.00 → 0.25 (2 seeds)", "lambda_grpo: 0.00 → 0.62 (2 seeds)"]
    assert [text.get_text() for text in legend.get_texts()] == ends


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ((0.1, 0.2, 0.1, 0.2, 0.1, 0.2), "+0.150 [+0.093, +0.207] over 6 seeds, p = 0.031: higher."),
        ((-0.1, -0.2, -0.1, -0.2, -0.1, -0.2), "−0.150 [−0.207, −0.093] over 6 seeds, p = 0.031: lower."),
        ((0.125,) * 6, "+0.125 (all equal) over 6 seeds, p = 0.031: higher."),
        ((0.0,) * 6, "+0.000 (all equal) over 6 seeds, p = 1: no difference seen."),
        (  # ± 2.57058 · .13693 / √6, times 1 + .91954 / 2.57058
            (0.125, -0.125) * 3,
            "+0.000 [−0.144, +0.144] over 6 seeds, p = 1: no difference seen; one larger than about 0.2 would probably "
            "have been.",
        ),
    ],
)
def test_the_first_line_says_whether_there_is_a_difference(gains: Sequence[float], verdict: str) -> None:
    scores = {("grpo", seed): (0.0, *(0.25 + seed / 32,) * 4) for seed in range(12)}
    scores |= {("lambda_grpo", seed): (0.0, *(0.25 + seed / 32 + gain,) * 4) for seed, gain in enumerate(gains)}
    assert ab.report(options_of(6), hand_made(scores)).tables[0].title == (
        f"lambda_grpo − grpo, mean over training: {verdict}"
    )


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("ab")
    reward = folder / "reward.py"
    reward.write_text("def letters(completion):\n    return completion.count('a') / 6\n")
    options = {
        "model.path": write_tiny_model(folder / "model"),
        "data.source": write_problems(folder / "train.jsonl", 10),
        "eval.source": write_problems(folder / "test.jsonl", 6),
        "reward": f'[{{function = "{reward}:letters"}}]',
        "rollout.problems_per_step": 2,
        "rollout.group_size": 4,
        "rollout.max_new_tokens": 6,
        "optimizer.learning_rate": 1e-2,
        "train.steps": 4,
        "train.save_every": 0,
    }
    recipe = folder / "empty.toml"
    recipe.write_text("")
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return [
        "reproduce",
        "ab",
        "--recipe",
        str(recipe),
        "--device",
        "cpu",
        "--evaluations",
        "2",
        "--smoothing",
        "1",
        *given,
    ]


def test_an_experiment_runs_goes_on_and_reports(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "ab"
    command = [*words, "--seeds", "2", "--output", str(folder), "--jobs", "2"]
    assert cli.main(command) == 0
    rows = read_csv(folder / "results.csv")
    # Two seeds of two presets, two more of the baseline; evaluations after 0, 2 and 4 steps.
    assert len(rows) == 6 * 3
    assert {(row["preset"], row["seed"]) for row in rows} == {
        *((preset, seed) for preset in ("grpo+aggregation=token", "lambda_grpo") for seed in "01"),
        ("grpo+aggregation=token", "2"), ("grpo+aggregation=token", "3"),
    }  # fmt: skip
    results = json.loads((folder / "results.json").read_text())
    assert [table["title"].split()[0] for table in results["tables"]] == ["lambda_grpo", "What", "Steps"]
    assert results["command"].startswith("treewise reproduce ab")
    assert (folder / "figure.png").stat().st_size > 10_000
    assert (folder / "figure.svg").exists()
    for row in rows:  # the numbers are those of the runs
        run = folder / "runs" / f"{row['preset']}_{row['seed']}"
        evaluations = [json.loads(line) for line in (run / "eval.jsonl").read_text().splitlines()]
        (own,) = [e for e in evaluations if e["step"] == int(row["step"])]
        assert float(row["score"]) == own["accuracy"]["reward"]["mean"]
        metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        before = [m for m in metrics if m["step"] <= int(row["step"])]
        assert int(row["tokens"]) == sum(m["completions/total_tokens"] for m in before)
        assert float(row["seconds"]) == pytest.approx(sum(m["step_time"] for m in before))
    config = json.loads((folder / "runs/grpo+aggregation=token_0/config.json").read_text())
    assert config["objective"] == {"preset": "grpo", "aggregation": "token"}

    # A run that was killed in its last cell is all that is measured again.
    lines = (folder / "cells.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "cells.jsonl").write_bytes(b"".join(lines[:-1]) + lines[-1][:40])
    capsys.readouterr()
    assert cli.main(command) == 0
    assert "5 measured before" in " ".join(capsys.readouterr().out.split())
    assert read_csv(folder / "results.csv") == rows

    assert cli.main([*command, "--score", "letters"]) == 2
    assert "score = 'reward', not 'letters'" in capsys.readouterr().err
    Path(words[3]).write_text("[optimizer]\nbeta1 = 0.8\n")
    assert cli.main(command) == 2
    assert "made with resolved" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"presets": "grpo"}, "at least 2"),
        ({"presets": "grpo,grpo"}, "grpo is given twice"),
        ({"train.seed": 3}, "has no effect"),
        ({"objective.preset": "grpo"}, "has no effect"),
        ({"steps": 3}, "the nearest is --"),
        ({"train.stepz": 3}, "the nearest is train.steps"),
        ({"smoothing": 0}, "--smoothing 0: must be at least 1"),
        ({"smoothing": 2}, "an odd number"),
        ({"smoothing": 11}, "--evaluations 10 is fewer than --smoothing 11"),
        ({"seeds": 1}, "--seeds 1: must be at least 2"),
        ({"model.device": "cpu"}, "use --device"),
    ],
)
def test_options_that_can_not_be_meant_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_options("ab", given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"presets": "grpo,lambda_grp"}, "lambda_grp"),
        ({"presets": "grpo,grpo+agregation=token"}, "nearest is objective.aggregation"),
        ({"evaluations": 7}, "can't be divided"),
        ({"score": "right"}, "no held-out score 'right', only reward, numeric, last_number"),
        ({"eval.source": None}, "no held-out problems"),
    ],
)
def test_what_would_fail_hours_later_is_refused_before_the_first_run(given: dict[str, object], message: str) -> None:
    options = make_options("ab", given)
    assert isinstance(options, AB)
    with pytest.raises(ValueError, match=message):
        ab.cells(options)


def test_an_arm_may_differ_in_any_option() -> None:
    options = make_options("ab", {"presets": "grpo,grpo+optimizer.learning_rate=2e-5+aggregation=token"})
    assert isinstance(options, AB)
    recipe = ab.recipe_of(options, options.presets[1], 3, Path("runs"))
    assert recipe.optimizer.learning_rate == 2e-5
    assert recipe.objective.given() == {"aggregation": "token"}
    assert (recipe.train.seed, recipe.eval.every) == (3, 4)


def test_recorded_runs_are_refused_where_nothing_reads_them() -> None:
    with pytest.raises(ValueError, match="ab reads no recorded runs; leave out runs/x"):
        make_options("ab", {}, ["runs/x"])
