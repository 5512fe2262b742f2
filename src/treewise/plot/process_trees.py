"""The prefix trees of training groups over the steps: how deep they are, and how much of an answer is shared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from treewise.plot.figure import COLOURS, STYLE, heading, label_steps, legend, new_figure, shared_steps
from treewise.plot.runlog import running_mean
from treewise.plot.text import printable
from treewise.plot.tree import MUTED
from treewise.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "os^Dv*"
LINES = ("-", "--", "-.", ":")
PANELS = {
    "inner_depth": "Inner depth",
    "intermediate_proportion": "Intermediate proportion",
    "reward": "Training reward",
}
FEW = 12  # points of a curve that are marked
LONGEST = 34  # characters of a label
LEGEND_LINE = 0.24  # inches
Run = Mapping[str, FloatArray]


def draw(runs: Mapping[str, Sequence[Run]]) -> Figure:
    """Draw inner depth, intermediate proportion and, for orientation, reward.

    Args:
        runs: label → runs that differ by their seed, each with `step[n]` and what PANELS names, `[n]`.
    """
    from matplotlib import style

    height = 5.6 + LEGEND_LINE * len(runs)  # inches, so that panels keep their size
    with style.context(["default", STYLE]):
        figure = new_figure(16, height)
        heading(
            figure,
            0.04,
            "How much of a tree the groups are, over training",
            "inner depth (the paper's path depth): process sets between root and leaf, mean over answers\n"
            "intermediate proportion: share of an answer's tokens in a prefix that a different answer has, too\n"
            "bold: running mean over a tenth of the steps" + _seeds(runs) + " · thin: single steps",
        )
        panels = figure.subplots(1, len(PANELS), squeeze=False)[0]
        top = 1 - (1.6 + LEGEND_LINE * len(runs)) / height
        figure.subplots_adjust(left=0.04, right=0.985, bottom=0.62 / height, top=top, wspace=0.16)
        for panel, (name, title) in zip(panels, PANELS.items(), strict=True):
            _draw_panel(panel, name, runs)
            panel.set_title(title, loc="left", size=13, weight="bold", pad=13 + 72 * LEGEND_LINE * len(runs))
            label_steps(panel)
            legend(panel, loc="lower left", bbox_to_anchor=(-0.03, 0.99), fontsize=11, handlelength=3.2)
    return figure


def _seeds(runs: Mapping[str, Sequence[Run]]) -> str:
    return ", mean over seeds" if any(len(seeds) > 1 for seeds in runs.values()) else ""


def _draw_panel(axes: Axes, name: str, runs: Mapping[str, Sequence[Run]]) -> None:
    for number, (label, seeds) in enumerate(runs.items()):
        colour = COLOURS[number % len(COLOURS)]
        for run in seeds:
            axes.plot(run["step"], run[name], color=colour, linewidth=0.8, alpha=0.4)  # of one step nothing is seen
        steps, values = shared_steps([(run["step"], run[name]) for run in seeds])
        if not len(steps):
            continue
        smooth = running_mean(values.mean(axis=0))
        course = len(steps) > 1  # of one step there is none to draw, and only the label says its mean
        axes.plot(
            steps if course else [],
            smooth if course else [],
            LINES[number % len(LINES)],
            color=colour,
            linewidth=2.6,
            marker=MARKERS[number % len(MARKERS)],
            markersize=6,
            markevery=max(1, len(steps) // FEW),
            label=f"{printable(label)[-LONGEST:]}: {smooth[0]:.3g}" + (f" → {smooth[-1]:.3g}" if course else ""),
        )
    if not any(len(run["step"]) > 1 for seeds in runs.values() for run in seeds):
        axes.set_axis_off()
        axes.text(0.5, 0.5, "one step: no course", transform=axes.transAxes, ha="center", color=MUTED)
    if name != "reward":
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
