"""The picture of Theorem 1: how far the two gradients are apart, setting by setting, on a logarithmic scale.

p = 0, ρ ≠ 1        ●●●
(b) clip, active    ○○○ ─────────────────────── ◆◆◆
                    rounding, 1e-16             1
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from treewise.plot.figure import STYLE, heading, new_figure
from treewise.plot.tree import BETTER, MUTED, WORSE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOWEST = 1e-17  # where a difference of exactly 0 is drawn
SPACING = 1.5  # of lines with a cause above them, as against the others


class Line(NamedTuple):
    """A setting with its relative differences, one a batch; `without` are those with the cause `why` taken away."""

    label: str
    values: Sequence[float]
    without: Sequence[float] | None = None
    why: str = ""


def draw_theorem(lines: Sequence[Line]) -> Figure:
    """A line per setting: above where the theorem holds, below where it ends, with the same without the cause.

    Raises:
        ImportError: without matplotlib.
    """
    from matplotlib import style

    holds, ends = [line for line in lines if line.without is None], [line for line in lines if line.without is not None]
    with style.context(["default", STYLE]):
        figure = new_figure(15, 9)
        heading(
            figure,
            0.02,
            "Outcome and process advantages give one gradient, until the members of a set are treated differently",
            "‖g − g′‖ / ‖g‖ of all parameters of a transformer in float64: g with outcome, g′ with process advantages\n"
            "mark: median of batches of random groups · bar: smallest to largest of them · in grey: the cause",
        )
        left, width, bottom, height, gap = 0.345, 0.635, 0.09, 0.755, 0.05
        share = (height - gap) / (len(holds) + SPACING * len(ends))
        lower = figure.add_axes((left, bottom, width, share * SPACING * len(ends)))
        upper = figure.add_axes((left, bottom + share * SPACING * len(ends) + gap, width, share * len(holds)))
        for axes, chosen, title in ((upper, holds, "Where it holds"), (lower, ends, "Where it ends")):
            _draw(axes, chosen)
            axes.set_title(title, loc="left", size=13, weight="bold", pad=5)
        upper.tick_params(axis="x", labelbottom=False)
        lower.set_xlabel("relative difference of the gradients", loc="left")
        handles = [
            lower.plot([], [], "o", color=BETTER, label="agrees to rounding")[0],
            lower.plot([], [], "o", color=BETTER, markerfacecolor="white", label="the cause taken away")[0],
            lower.plot([], [], "D", color=WORSE, label="with the cause")[0],
        ]
        figure.legend(handles=handles, loc="lower right", bbox_to_anchor=(0.98, 0.005), ncols=3, fontsize=11)
    return figure


def _draw(axes: Axes, lines: Sequence[Line]) -> None:
    for place, line in enumerate(lines):
        if line.without is not None:
            centres = [np.median(np.maximum(values, LOWEST)) for values in (line.without, line.values)]
            axes.plot(centres, [place, place], color=MUTED, linewidth=1.2, linestyle=":", zorder=1)
            _range(axes, place, line.without, BETTER, "o", "white")
            axes.text(max(line.values) * 1.8, place, f"{centres[1]:.2g}", va="center", size=11, color=WORSE)
            axes.text(1e-8, place - 0.14, line.why, ha="center", va="bottom", size=9.5, color=MUTED, parse_math=False)
        held = line.without is None
        _range(axes, place, line.values, BETTER if held else WORSE, "o" if held else "D", BETTER if held else WORSE)
    axes.set_xscale("log")
    axes.set_xlim(LOWEST / 2, 30)
    axes.set_xticks([10.0**exponent for exponent in range(-16, 1, 4)])
    axes.minorticks_off()
    axes.set_yticks(range(len(lines)), [line.label for line in lines])
    axes.set_ylim(len(lines) - 0.4, -0.6)


def _range(axes: Axes, place: int, values: Sequence[float], colour: str, marker: str, face: str) -> None:
    """A bar over all batches, and their median."""
    shown = np.maximum(values, LOWEST)
    ends = [shown.min(), shown.max()]
    axes.plot(ends, [place, place], color=colour, linewidth=6, alpha=0.35, solid_capstyle="round", zorder=2)
    axes.plot(np.median(shown), place, marker, color=colour, markerfacecolor=face, markersize=9, markeredgewidth=1.6)
