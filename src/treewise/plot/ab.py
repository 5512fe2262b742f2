"""Presets against each other: held-out curves, and how soon each reaches the peak of a baseline's run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treewise.plot.figure import COLOURS as PALETTE
from treewise.plot.figure import STYLE, heading, label_steps, legend, new_figure
from treewise.plot.text import printable
from treewise.plot.tree import INK, MUTED
from treewise.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The baseline looks like GRPO in the pictures of the synthetic tree, the first challenger like λ-GRPO.
COLOURS = (PALETTE[1], PALETTE[0], *PALETTE[2:])
MARKERS = "soD^vP"
LINES = ("--", "-", "-.")
LARGEST_RATIO = 2.5  # beyond it a ratio is drawn at the edge


def draw(arms: Mapping[str, Sequence[Any]], ratios: Mapping[str, FloatArray], window: int, score: str) -> Figure:
    """Draw an `ab` experiment.

    Args:
        arms: name → runs, each with `score[n]` and `cost["step"][n]`: the baseline's, its own on other seeds, and those
            of every preset that is compared with it.
        ratios: preset → [pairs] steps to the peak of the baseline's run, over that run's; ∞ where it is never reached.
        window: evaluations of the running mean.
        score: name of the held-out score.
    """
    from matplotlib import style

    with style.context(["default", STYLE]):
        figure = new_figure(16, 7)
        heading(
            figure,
            0.045,
            f"Held-out {printable(score)}",
            "bold: mean over seeds · thin: runs · dotted: the baseline on other seeds (A/A)",
        )
        left = figure.add_axes((0.045, 0.1, 0.44, 0.745))
        for number, (name, runs) in enumerate(arms.items()):
            _draw_arm(left, name, runs, number)
        label_steps(left)
        legend(left, loc="lower right")
        heading(
            figure,
            0.54,
            "Steps to the baseline's peak, over the baseline's own",
            "a dot: a pair of runs · bar: median · the first row, seeds of one method, is what luck does\n"
            f"peak of {'the mean of ' + str(window) if window > 1 else 'single'} evaluations",
        )
        right = figure.add_axes((0.54, 0.1, 0.445, 0.715))
        _draw_ratios(right, ratios)
    return figure


def _draw_arm(axes: Axes, name: str, runs: Sequence[Any], number: int) -> None:
    again = number == 1  # the baseline's other seeds
    look = max(0, number - 1)
    colour, steps = COLOURS[look % len(COLOURS)], runs[0].cost["step"]
    values = np.array([run.score for run in runs])
    mean = values.mean(axis=0)
    axes.plot(steps, values.T, ":" if again else "-", color=colour, linewidth=0.7, alpha=0.35)
    axes.plot(
        steps,
        mean,
        ":" if again else LINES[look % len(LINES)],
        color=colour,
        linewidth=1.4 if again else 2.6,
        marker="" if again else MARKERS[look % len(MARKERS)],
        label=f"{printable(name)}: {mean[0]:.2f} → {mean[-1]:.2f} ({len(runs)} seeds)",
    )


def _draw_ratios(axes: Axes, ratios: Mapping[str, FloatArray]) -> None:
    generator, never = np.random.default_rng(0), LARGEST_RATIO + 0.35
    names = list(ratios)
    for number, values in enumerate(ratios.values()):
        known = values[~np.isnan(values)]
        shown = np.where(np.isinf(known), never, np.minimum(known, LARGEST_RATIO))
        height = -number + generator.uniform(-0.32, 0.24, len(shown))
        spread = np.where(np.isinf(known), generator.uniform(-0.12, 0.12, len(shown)), 0.0)
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(shown + spread, height, MARKERS[number % len(MARKERS)], color=colour, alpha=0.45, markersize=5)
        if len(shown):
            median = np.sort(shown)[round(0.5 * (len(shown) - 1))]
            axes.plot([median, median], [-number - 0.38, -number + 0.3], color=INK, linewidth=3)
    for place, text in ((0.5, "half the steps"), (1.0, "as many")):
        axes.axvline(place, color=MUTED, linewidth=1.0, linestyle="--")
        axes.text(place, 0.62, text, color=MUTED, ha="center", va="bottom", size=10.5)
    axes.axvspan(LARGEST_RATIO + 0.15, never + 0.2, color="#f0f0f0", zorder=0)
    axes.set_xlim(0, never + 0.2)
    axes.set_ylim(-len(names) + 0.5, 0.6)
    ticks = [0.0, 0.5, 1.0, 1.5, 2.0, LARGEST_RATIO, never]
    axes.set_xticks(ticks, [*(f"{tick:g}" for tick in ticks[:-2]), f"≥ {LARGEST_RATIO:g}", "never"])
    for number, name in enumerate(names):
        text = f"{name} with itself" if number == 0 else name
        axes.text(
            0.02,
            0.44 - number,
            printable(text),
            size=11.5,
            weight="bold",
            va="center",
            parse_math=False,
            backgroundcolor="white",
        )
    axes.set_yticks([])
    axes.grid(visible=False, axis="y")
