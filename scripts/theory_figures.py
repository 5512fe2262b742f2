"""The picture of docs/theory.md: `python scripts/theory_figures.py` (seconds).

Two branches at the first token, of which one is worth 1 and the other 0: the expected step on its logit, by giving
every possible group to the library's own `credit`, against how rare the rarer branch is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from token_trees import all_groups, estimates, grow
from treewise.axes import Objective
from treewise.plot.figure import COLOURS, STYLE
from treewise.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURE = Path(__file__).parents[1] / "docs" / "theory_fork.png"
SIZES = (4, 8, 36)
RAREST = 0.002
PLAIN = Objective(scale="none", aggregation="constant", max_completion_tokens=1)  # GRPO without the std
LAMBDA = replace(PLAIN, weight_exponent=1.0)


def fork_scale(chance: float, size: int, objective: Objective) -> float:
    """F: the mean step on a logit over the true gradient, at a first fork taken with `chance` and 1 − `chance`."""
    tree = grow(lambda _: (0.0, chance, 1 - chance), lambda answer: float(answer == (1,)), limit=1)
    groups = all_groups(tree.probabilities, size)
    assert groups.exact
    mean = groups.weights @ estimates(tree, groups.members, objective, ["constant"])["constant"]
    return float(mean[0] / tree.truth[0])


def formula(chance: float | FloatArray, size: int) -> float | FloatArray:
    """`F = (x² + (1−x)² − x^(G+1) − (1−x)^(G+1)) / (G·x·(1−x))`: of λ-GRPO without the std, in closed form."""
    rest = 1 - chance
    return (chance**2 + rest**2 - chance ** (size + 1) - rest ** (size + 1)) / (size * chance * rest)


def draw_steps(axes: Axes, *, relative: bool) -> None:
    """The steps of λ-GRPO, and of GRPO as a band from G = 4 up; relative to those at an even fork, or as they are."""
    rare, marks = np.geomspace(RAREST, 0.5, 200), np.geomspace(RAREST, 0.5, 9)
    true = rare * (1 - rare) * (4 if relative else 1)
    axes.plot(rare, true, color="black", lw=1.8)
    if not relative:
        axes.fill_between(rare, true * fork_scale(0.5, min(SIZES), PLAIN), true, color="black", alpha=0.2, lw=0)
    for size, colour, mark, line in zip(SIZES, COLOURS, "os^", ("--", "-.", ":"), strict=False):
        even = fork_scale(0.5, size, LAMBDA) / 4 if relative else 1.0
        axes.plot(rare, formula(rare, size) * rare * (1 - rare) / even, line, color=colour, lw=1.8)
        steps = [fork_scale(chance, size, LAMBDA) * chance * (1 - chance) / even for chance in marks]
        axes.plot(marks, steps, mark, color=colour, ms=5.5)
    axes.set_xscale("log")
    axes.set_xticks([0.002, 0.01, 0.05, 0.1, 0.5], ["0.002", "0.01", "0.05", "0.1", "0.5"])
    axes.minorticks_off()
    axes.set_xlim(RAREST * 0.9, 0.56)
    axes.set_xlabel("probability of the rarer branch")


def label(axes: Axes, x: float, y: float, text: str, colour: str = "black", align: str = "left") -> None:
    """A line's name beside it."""
    axes.text(x, y, text, color=colour, size=11, ha=align, va="center", linespacing=1.25)


def main() -> None:
    """Draw the steps as they are and relative to those at an even fork: lines by formula, marks by enumeration."""
    from matplotlib import style
    from matplotlib.figure import Figure

    with style.context(["default", STYLE]):
        figure = Figure(figsize=(12, 5.6), dpi=100)
        steps, ratios = figure.add_axes((0.05, 0.11, 0.38, 0.64)), figure.add_axes((0.61, 0.11, 0.38, 0.64))
        draw_steps(steps, relative=False)
        draw_steps(ratios, relative=True)
        steps.set_ylim(0, 0.27)
        ratios.set_ylim(0, 1.75)
        steps.set_title("expected step on the logit", loc="left", size=12.5)
        ratios.set_title("the same, even fork = 1", loc="left", size=12.5)
        label(steps, 0.57, 0.25, "policy gradient")
        label(steps, 0.57, 0.219, "GRPO, G ≥ 4 (grey)")
        for size, colour, x, y in zip(SIZES, COLOURS, (0.071, 0.042, 0.019), (0.5, 0.65, 1.2), strict=False):
            label(steps, 0.57, fork_scale(0.5, size, LAMBDA) / 4, f"λ-GRPO, G = {size}", colour)
            label(ratios, x, y, f"G = {size}" if size == max(SIZES) else str(size), colour, "right")
        label(ratios, 0.085, 0.11, "policy gradient,\nGRPO for every G")
        figure.text(0.05, 0.945, "λ-GRPO takes smaller steps, and flatter ones", size=17, weight="bold", va="center")
        figure.text(
            0.05,
            0.865,
            "two branches at the first token, one worth 1 and one 0; without the std\n"
            "lines: formula · marks: every possible group through the library's credit",
            size=11.5,
            va="center",
            linespacing=1.35,
        )
        figure.savefig(PICTURE)


if __name__ == "__main__":
    main()
