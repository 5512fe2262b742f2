"""Bias and variance of the credit rules, by enumeration: `python scripts/bias_variance.py` (minutes, on one thread).

Every possible group of G answers of a small policy is given to the library's own `credit`, and the groups'
probabilities give the exact mean and covariance of the estimator

    X = 1/D · Σ_it coefficient_it · advantage_it · ∇ log π(token_it)        (ratio 1: one update per batch, no KL)

on the logits. Where there are too many groups some are drawn, and the numbers carry a standard error. Writes the tables
of docs/bias_variance.md (the text above them stays) and docs/bias_variance.png.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from token_trees import Moments, TokenTree, all_groups, estimates, fork_tree, moments, random_tree, with_exact_values
from treewise.axes import Objective
from treewise.axes.aggregation import Aggregation
from treewise.presets import resolve

DOCS = Path(__file__).parents[1] / "docs"

# What differs from the constant normaliser and no KL: preset and options. RLOO is written with a ratio per token; with
# its preset's ratio of the whole answer, the sequence mean's division by the length cancels (tests/test_bias.py).
RLOO = "RLOO"
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    RLOO: ("dr_grpo", {"advantage": "leave_one_out"}),
    "Dr. GRPO": ("dr_grpo", {}),
    **{f"tree_rloo, κ = {kappa}": ("tree_rloo", {"kappa": float(kappa)}) for kappa in (0, 1, 3, 10)},
    "GRPO": ("grpo", {}),
    "process": ("process", {}),
    "λ-GRPO, p = ½": ("lambda_grpo", {"weight_exponent": 0.5}),
    "λ-GRPO, p = 1": ("lambda_grpo", {}),
    "λ-GRPO, p = 1, no std": ("lambda_grpo", {"scale": "none"}),
    "TEMPO": ("tempo", {}),
    "TEMPO, no std": ("tempo", {"scale": "none"}),
    "TreeRL": ("treerl", {}),
}
UNBIASED = [name for name in RULES if name == RLOO or name.startswith("tree_rloo")]
NORMALISERS: tuple[Aggregation, ...] = ("constant", "token", "sequence")
SIZES = (2, 3, 4, 5, 6)
EVEN, LOW = (0.5, 0.5, 0.5), (0.9, 0.9, 0.5)
WHICH = {"the first fork": 0, "every fork": None, "the last fork": -1}


def objective(rule: str, limit: int) -> Objective:
    """A row of `RULES` with the constant normaliser."""
    preset, options = RULES[rule]
    return resolve(preset, {"aggregation": "constant", **options}, max_new_tokens=limit)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown."""
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)] + [""]


def shown(value: float) -> str:
    """A number; rounding noise is an exact 0."""
    return "0" if abs(value) < 1e-9 else f"{value:.3f}"


def verdict(found: Sequence[Moments]) -> str:
    """The class of a rule, over group sizes."""
    if max(m.residual for m in found) > 1e-9:
        return "biased"
    scales = [m.scale for m in found]
    if np.allclose(scales, 1, rtol=0, atol=1e-9):
        return "unbiased"
    known = np.allclose(scales, [(size - 1) / size for size in SIZES], rtol=0, atol=1e-9)
    return "up to (G − 1)/G" if known else "up to a factor"


def measure(tree: TokenTree, aggregations: Sequence[Aggregation]) -> dict[tuple[str, Aggregation], list[Moments]]:
    """Every rule under some normalisers, for each group size."""
    found: dict[tuple[str, Aggregation], list[Moments]] = {(rule, a): [] for rule in RULES for a in aggregations}
    for size in SIZES:
        groups = all_groups(tree.probabilities, size)
        assert groups.exact, f"{len(tree.outcomes)} answers are too many for groups of {size}"
        for rule in RULES:
            values = estimates(tree, groups.members, objective(rule, tree.limit), aggregations)
            for aggregation in aggregations:
                found[rule, aggregation].append(moments(tree, groups, values[aggregation], aggregation))
    return found


def bias_and_variance(tree: TokenTree, aggregations: Sequence[Aggregation], rewards: str) -> list[str]:
    """Two tables for each normaliser."""
    found, lines = measure(tree, aggregations), []
    for aggregation in aggregations:
        bias, variance = [], []
        for rule in RULES:
            cells = found[rule, aggregation]
            bias.append(
                [rule, verdict(cells)] + [f"{m.cosine:.4f} · {m.scale:.3f} · {shown(m.residual)}" for m in cells]
            )
            ratios = [m.variance / base.variance for m, base in zip(cells, found[RLOO, aggregation], strict=True)]
            variance.append(
                [rule, *(f"{m.variance:.4f} (× {ratio:.3f})" for m, ratio in zip(cells, ratios, strict=True))]
            )
        sizes = [f"G = {size}" for size in SIZES]
        lines += [f"### {aggregation} normaliser, {rewards}", "", "Bias: cosine · scale · residual", ""]
        lines += table(["rule", "class", *sizes], bias)
        lines += ["Variance after division by scale² (× that of RLOO)", "", *table(["rule", *sizes], variance)]
    return lines


def by_token(size: int) -> list[str]:
    """Where a biased rule learns too much or too little: the scale of each fork's logits on its own."""
    rows = []
    for rule in [RLOO, *(name for name in RULES if name not in UNBIASED)]:
        cells = []
        for chances in (EVEN, LOW):
            tree = fork_tree(chances, None)
            groups, truth = all_groups(tree.probabilities, size), tree.truth
            values = estimates(tree, groups.members, objective(rule, tree.limit), ["constant"])["constant"]
            mean = groups.weights @ values * tree.limit
            for at in (tree.depths == depth for depth in range(tree.limit)):
                cells.append(shown(mean[at] @ truth[at] / (truth[at] @ truth[at])))
        rows.append([rule, *cells])
    return table(["rule", *(f"{name} fork {n}" for name in ("even", "low") for n in (1, 2, 3))], rows)


class Ratio(NamedTuple):
    """A variance over RLOO's, and its standard error (0 if exact)."""

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3f}" + (f" ± {self.error:.3f}" if self.error else "")


def against_rloo(tree: TokenTree, size: int) -> dict[str, Ratio]:
    """The variance of the unbiased rules over RLOO's, and that with exact values."""
    groups, signal = all_groups(tree.probabilities, size), tree.truth @ tree.truth
    found = {}
    for rule in UNBIASED:
        values = estimates(tree, groups.members, objective(rule, tree.limit), ["constant"])["constant"]
        squares = (values**2).sum(1) * tree.limit**2
        variance = groups.weights @ squares - signal
        if rule == RLOO:
            base, base_squares = variance, squares
        ratio = variance / base
        error = 0.0 if groups.exact else (squares - ratio * base_squares).std() / math.sqrt(len(squares)) / base
        found[rule] = Ratio(ratio, error)
    found["exact V(prefix)"] = Ratio(with_exact_values(tree) / size / base, found[RLOO].error)
    return found


def studies() -> dict[str, tuple[TokenTree, Sequence[int]]]:
    """Where a prefix tells much about the reward, and where little: trees and group sizes."""
    found: dict[str, tuple[TokenTree, Sequence[int]]] = {}
    small = (*SIZES, 8, 16)
    for start, chances in (("even forks", EVEN), ("low entropy at the start", LOW)):
        for which, decided in WHICH.items():
            found[f"{start}, decided by {which}"] = fork_tree(chances, decided), small
        found[f"{start}, decided by the first fork, 20 % noise"] = fork_tree(chances, 0, noise=0.2), small
    found["one open fork between sure ones, which decides"] = fork_tree((0.9, 0.5, 0.9), 1), small
    for number in (1, 4, 8):
        found[f"8 even forks, decided by number {number}"] = fork_tree((0.5,) * 8, number - 1), (4, 8, 16)
    return found


def draw(results: dict[str, dict[int, dict[str, Ratio]]], path: Path) -> None:
    """Variance over RLOO's against the group size; rows: how sure the first forks are; columns: which one decides."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 3, figsize=(10, 5.6), sharex=True, sharey=True, layout="constrained")
    colours = ("#08306b", "#2171b5", "#6baed6", "#9ecae1")
    for row, start in zip(panels, ("even forks", "low entropy at the start"), strict=True):
        for panel, which in zip(row, WHICH, strict=True):
            cells = results[f"{start}, decided by {which}"]
            for rule, colour in zip(UNBIASED[1:], colours, strict=True):
                ratios = [found[rule] for found in cells.values()]
                errors = [r.error for r in ratios]
                label = rule.replace("tree_rloo, ", "")
                panel.errorbar(
                    list(cells), [r.value for r in ratios], errors, color=colour, marker="o", ms=3, label=label
                )
            limit = [found["exact V(prefix)"].value for found in cells.values()]
            panel.plot(list(cells), limit, "k:", label="exact V(prefix)")
            panel.axhline(1, color="grey", lw=0.8)
            panel.set_title(f"{start}\n{which} decides" if which != "every fork" else f"{start}\nevery fork counts")
            panel.set_xscale("log", base=2)
            panel.set_xticks([2, 4, 8, 16], ["2", "4", "8", "16"])
    for panel in panels[:, 0]:
        panel.set_ylabel("variance / RLOO's")
    for panel in panels[1]:
        panel.set_xlabel("G, answers of a group")
    panels[0, 2].legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=130)


def issue_sized(seeds: int) -> list[str]:
    """Groups of 3 on random trees of 15 answers: how tree_rloo compares with RLOO there."""
    trees = [random_tree(seed, binary=True) for seed in range(seeds)]
    found = [against_rloo(tree, 3) for tree in trees]
    rows = []
    for rule in UNBIASED[1:]:
        ratios = [one[rule].value for one in found]
        below = sum(ratio < 1 for ratio in ratios)
        rows.append([rule, f"{np.median(ratios):.3f}", f"{min(ratios):.3f} … {max(ratios):.3f}", f"{below} of {seeds}"])
    return table(["rule", "median", "range", "below RLOO"], rows)


def main() -> None:
    """Measure, draw, and write the tables under the text."""
    graded = bias_and_variance(random_tree(0, last=(0, 1)), NORMALISERS, "graded rewards")
    binary = bias_and_variance(random_tree(0, last=(0, 1), binary=True), ("constant",), "rewards 0 and 1")
    results = {name: {size: against_rloo(tree, size) for size in sizes} for name, (tree, sizes) in studies().items()}
    names = [*UNBIASED[1:], "exact V(prefix)"]
    rows = [
        [label, str(size), *(str(found[n]) for n in names)] for label, c in results.items() for size, found in c.items()
    ]
    lines = [
        f"By `python scripts/bias_variance.py` with Python {platform.python_version()}, NumPy {np.__version__}.",
        "",
        *graded,
        *binary,
        "### scale of each fork's logits, constant normaliser, G = 6",
        "",
        f"Three forks, taken to the left with {EVEN} (even) or {LOW} (low); every fork counts.",
        "",
        *by_token(6),
        "### variance over RLOO's, constant normaliser",
        "",
        *table(["tree", "G", *names], rows),
        "### the same on 20 random trees of 15 answers, rewards 0 and 1, G = 3",
        "",
        *issue_sized(20),
    ]
    page = DOCS / "bias_variance.md"
    text = page.read_text(encoding="utf-8").partition("## Tables\n")[0] if page.exists() else "# Bias and variance\n\n"
    page.write_text(text + "## Tables\n\n" + "\n".join(lines).rstrip() + "\n", encoding="utf-8")
    draw(results, DOCS / "bias_variance.png")


if __name__ == "__main__":
    main()
