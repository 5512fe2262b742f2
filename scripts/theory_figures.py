"""The picture of docs/theory.md: `python scripts/theory_figures.py` (seconds).

Two branches at the first token, of which one is better: the expected step on its logit, by giving every possible group
to the library's own `credit`, against how rare the rarer branch is.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from token_trees import all_groups, estimates, grow
from treewise.axes import Objective
from treewise.plot.figure import COLOURS, STYLE
from treewise.types import FloatArray

PICTURE = Path(__file__).parents[1] / "docs" / "theory_fork.png"
SIZES = (4, 8, 36)
PLAIN = Objective(scale="none", aggregation="constant", max_completion_tokens=1)  # GRPO without the std
LAMBDA = replace(PLAIN, weight_exponent=1.0)


def fork_scale(chance: float, size: int, objective: Objective) -> float:
    """The mean of the step on a logit over the true gradient, at a first fork taken with `chance` and 1 − `chance`."""
    tree = grow(lambda _: (0.0, chance, 1 - chance), lambda answer: float(answer == (1,)), limit=1)
    groups = all_groups(tree.probabilities, size)
    assert groups.exact
    mean = groups.weights @ estimates(tree, groups.members, objective, ["constant"])["constant"]
    return float(mean[0] / tree.truth[0])


def formula(chance: float | FloatArray, size: int) -> float | FloatArray:
    """`S = (π² + q² − π^(G+1) − q^(G+1)) / (G·π·q)`: the same for λ-GRPO without the std, in closed form."""
    rest = 1 - chance
    return (chance**2 + rest**2 - chance ** (size + 1) - rest ** (size + 1)) / (size * chance * rest)


def main() -> None:
    """Draw the steps relative to that at an even fork: lines by formula, marks by enumeration."""
    from matplotlib import style
    from matplotlib.figure import Figure

    rare = np.geomspace(0.002, 0.5, 200)
    marks = np.geomspace(0.002, 0.5, 13)
    with style.context(["default", STYLE]):
        figure = Figure(figsize=(9.5, 5.6), dpi=110)
        axes = figure.add_axes((0.08, 0.11, 0.89, 0.72))
        axes.plot(rare, 4 * rare * (1 - rare), color="black", label="policy gradient, and GRPO for every G")
        for size, colour, mark, line in zip(SIZES, COLOURS, "os^", ("--", "-.", ":"), strict=False):
            even = fork_scale(0.5, size, LAMBDA) / 4
            axes.plot(rare, formula(rare, size) * rare * (1 - rare) / even, line, color=colour, lw=1.8)
            steps = [fork_scale(chance, size, LAMBDA) * chance * (1 - chance) / even for chance in marks]
            axes.plot(marks, steps, mark, color=colour, ms=6)
            axes.plot([], [], line, marker=mark, color=colour, lw=1.8, label=f"λ-GRPO, G = {size}")
        axes.set_xscale("log")
        axes.set_xticks([0.002, 0.01, 0.05, 0.1, 0.5], ["0.002", "0.01", "0.05", "0.1", "0.5"])
        axes.minorticks_off()
        axes.set_ylim(0, 2)
        axes.set_xlabel("probability of the rarer branch")
        axes.set_ylabel("expected step on the logit, even fork = 1")
        axes.legend(loc="upper left", fontsize=11)
        figure.text(0.08, 0.945, "λ-GRPO favours uneven forks", size=16, weight="bold", va="center")
        figure.text(
            0.08,
            0.885,
            "two branches at the first token, without the std; it ends where the rarer one hardly gets into the group\n"
            "lines: formula for S · marks: every possible group through the library's credit",
            size=10.5,
            va="center",
            linespacing=1.35,
        )
        figure.savefig(PICTURE)


if __name__ == "__main__":
    main()
