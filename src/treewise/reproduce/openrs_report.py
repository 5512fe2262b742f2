"""What the rows of `openrs` say: each model's accuracies beside the paper's, and what so many problems can tell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from treewise import estimators
from treewise.benchmarks import BENCHMARKS
from treewise.plot.openrs import draw
from treewise.reproduce.benchmarks import METHODS, PAPER, Method, paper_of
from treewise.reproduce.engine import Report, Row, Table
from treewise.reproduce.options import OpenRS
from treewise.statistics import Estimate, counted

Results = Mapping[Method, Mapping[str, Estimate]]


def report(options: OpenRS, rows: Sequence[Row]) -> Report:
    """Each model's accuracies beside the paper's, and what so many problems can tell."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    results = {model: results_of(options, [row for row in rows if row["model"] == model]) for model in models}
    tables = [_accuracies(options, model, results[model], rows) for model in models]
    tables[-1] = replace(tables[-1], note=" ".join((tables[-1].note, *_notes(options))).strip())
    tables.append(_precision(options, results, rows))
    titles = {name: BENCHMARKS[name].title for name in options.benchmarks} | {"mean": "mean"}
    figure = draw({model: _drawn(options, model, found) for model, found in results.items()}, titles)
    return Report(tables, figure)


def results_of(options: OpenRS, rows: Sequence[Row]) -> dict[Method, dict[str, Estimate]]:
    """Method → benchmark → mean accuracy over seeds, with the interval of so many problems; and the benchmarks' mean.

    Seeds answer the same problems, so they don't narrow the interval. An accuracy that is not known is nan.
    """
    found: dict[Method, dict[str, Estimate]] = {}
    for method in dict.fromkeys(method_of(row) for row in rows):
        own = [row for row in rows if method_of(row) == method]
        estimates = {}
        for name in options.benchmarks:
            known = [row for row in own if row["benchmark"] == name and row["accuracy"] is not None]
            share = float(np.mean([row["accuracy"] for row in known])) if known else math.nan
            estimates[name] = wilson(share, min((row["n"] - row["no_verdict"] for row in known), default=0))
        means = [one.mean for one in estimates.values()]
        half = math.sqrt(sum(((one.high - one.low) / 2) ** 2 for one in estimates.values())) / len(means)
        mean = float(np.mean(means))
        found[method] = estimates | {"mean": Estimate(mean, mean - half, mean + half)}
    return found


def wilson(share: float, count: int) -> Estimate:
    """Wilson's 95 % interval of a share of `count` independent trials."""
    if not count:
        return Estimate(math.nan, math.nan, math.nan)
    return Estimate(share, *estimators.wilson(share, count))


def method_of(row: Row) -> Method:
    """What was done to the model of a row."""
    return row["beta"], row["preset"]


def label(method: Method) -> str:
    """A method's name in tables and pictures."""
    beta, preset = method
    return "before training" if preset is None else f"β = {beta:.15g}, {preset}"


def _accuracies(options: OpenRS, model: str, results: Results, rows: Any) -> Table:
    own = [row for row in rows if row["model"] == model]
    columns = (*options.benchmarks, "mean")
    lines = []
    for method, found in results.items():
        mine = [row for row in own if method_of(row) == method]
        cut = [row["truncated"] for row in mine if row["truncated"] is not None]
        steps = sorted({(row["seed"] or 0, row["step"], row["chosen"]) for row in mine})
        lines.append(
            (
                label(method),
                *("–" if math.isnan(found[name].mean) else f"{found[name].mean:.3f}" for name in columns),
                f"{100 * np.mean(cut):.0f} %" if cut else "–",
                ", ".join(f"{step} ({chosen})" if chosen != "base" else "–" for _, step, chosen in steps),
            )
        )
    for beta, preset in PAPER[model]:
        known = paper_of(model, (beta, preset))
        name = "before training" if preset is None else f"β = {beta:g}, {METHODS[preset]}"
        shown = (f"{known[column]:.3f}" if column in known else "–" for column in columns)
        lines.append((f"paper: {name}", *shown, "–", "–"))
    return Table(
        ", ".join(entry for entry in options.models if entry.partition("=")[0] == model),
        ("", *(BENCHMARKS[name].title for name in options.benchmarks), "mean", "cut", "step"),
        lines,
        " ".join(_warnings(own)),
    )


def _notes(options: OpenRS) -> list[str]:
    return [
        f"Accuracy from 0 to 1, one answer a problem, mean over {counted(options.seeds, 'seed')}; answers without a "
        f"verdict don't count. mean: of the benchmarks. cut: answers that reached {options.answer_tokens:,} tokens or "
        "the model's limit, mean over benchmarks. step: that of the model, best by validation, or last where no step "
        "did better than the model before training.",
        "The paper's rows are second-hand: from readers' notes on its Table 2, – where they give none, and which β "
        "λ-GRPO's five cells have is inferred from their mean. They are exact match on the same scale, k of N for "
        "30, 500, 40, 272 and 675 problems. Its prompts and sampling at evaluation are not known to us. Its mean is of "
        "all five benchmarks.",
        "Golds such as 4.5e33 (a fifth of Minerva Math) are compared as numbers here. math-verify alone takes e for "
        "Euler's number: an evaluation that relies on it counts 4.5 × 10^33 as wrong.",
    ]


def _warnings(rows: Sequence[Row]) -> list[str]:
    """What is not as it should be with the problems."""
    found = []
    for name, benchmark in BENCHMARKS.items():
        own = [row for row in rows if row["benchmark"] == name]
        if other := sorted({row["n"] for row in own if row["n"] != benchmark.count}):
            found.append(f"Warning: {', '.join(map(str, other))} problems of {benchmark.title}, not {benchmark.count}.")
        if missing := max((row["no_verdict"] for row in own), default=0):
            found.append(f"No verdict on up to {missing} answers to {benchmark.title}.")
    return found


def _precision(options: OpenRS, results: Mapping[str, Results], rows: Sequence[Row]) -> Table:
    lines: list[tuple[str, ...]] = []
    for name in (*options.benchmarks, "mean"):
        halves = [(f[name].high - f[name].low) / 2 for found in results.values() for f in found.values()]
        known = [half for half in halves if not math.isnan(half)]
        half = max(known, default=math.nan)
        counts = sorted({row["n"] for row in rows if row["benchmark"] == name})
        title = "mean" if name == "mean" else BENCHMARKS[name].title
        lines.append((title, ", ".join(map(str, counts)), f"± {half:.3f}", f"{math.sqrt(2) * half:.3f}"))
    gains = []
    for model, table in PAPER.items():
        for beta in (0.0, 0.04):
            gain = (table[beta, "lambda_grpo"][-1] or 0.0) - (table[beta, "grpo"][-1] or 0.0)
            gains.append(f"{gain:+.3f} ({model}, β = {beta:g})")
    return Table(
        "What so many problems can tell",
        ("benchmark", "problems", "95 % interval", "a difference can be seen from"),
        lines,
        "95 % interval: half the width of the widest above (Wilson), as if problems were drawn at random from many of "
        "their kind. Last column: √2 times that, for two results that are independent; those on the same problems are "
        "not quite, and a paired comparison of what is in answers/ can see somewhat less. Training with other seeds "
        f"varies, too. By the paper's means λ-GRPO differs from GRPO by {', '.join(gains)}.",
    )


def _drawn(options: OpenRS, model: str, results: Results) -> list[dict[str, Any]]:
    """Per method: its label, its results, and the paper's where they are known and for the same mean."""
    complete = set(options.benchmarks) == set(BENCHMARKS)
    drawn = []
    for method, found in results.items():
        paper = {name: value for name, value in paper_of(model, method).items() if name in found}
        if not complete:
            paper.pop("mean", None)
        drawn.append({"label": label(method), "found": found, "paper": paper})
    return drawn
