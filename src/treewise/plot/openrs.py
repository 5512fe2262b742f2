"""Models before and after training on the benchmarks, beside what the paper reports."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from treewise.plot.figure import COLOURS, STYLE, heading, new_figure
from treewise.plot.text import printable
from treewise.plot.tree import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MARKERS = "os^Dv*"
INDENT, GAP = 0.17, 0.62  # distance of methods within a benchmark, and what is left between benchmarks
Entry = Mapping[str, Any]


def draw(panels: Mapping[str, Sequence[Entry]], titles: Mapping[str, str]) -> Figure:
    """Draw an `openrs` experiment, a panel per model.

    Args:
        panels: model → its methods, each with `label`, `found` (benchmark → mean, low, high; nan where not known) and
            `paper` (benchmark → what the paper reports).
        titles: benchmark → its name for people, from top to bottom.
    """
    from matplotlib import style

    methods = max(map(len, panels.values()))
    height = 2.1 + len(titles) * (GAP + INDENT * methods) * 0.74
    with style.context(["default", STYLE]):
        figure = new_figure(16, height)
        heading(
            figure,
            0.035,
            "Accuracy on the benchmarks, before and after training",
            "filled: measured here, with the 95 % interval of so many problems\n"
            "hollow: the paper's, second-hand, where known",
        )
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        top = 1 - 1.5 / height
        figure.subplots_adjust(left=0.105, right=0.985, bottom=0.6 / height, top=top, wspace=0.06)
        for number, (one, (model, entries)) in enumerate(zip(axes, panels.items(), strict=True)):
            _draw_panel(one, entries, titles)
            one.set_title(printable(model), loc="left", size=13, weight="bold")
            if number:
                one.tick_params(labelleft=False)
        drawn, labels = axes[0].get_legend_handles_labels()
        for text in figure.legend(drawn, labels, loc="upper right", bbox_to_anchor=(0.985, 0.99), ncols=2).get_texts():
            text.set_parse_math(False)
    return figure


def _draw_panel(axes: Axes, entries: Sequence[Entry], titles: Mapping[str, str]) -> None:
    step = GAP + INDENT * len(entries)
    for number, entry in enumerate(entries):
        colour, marker = (INK, *COLOURS)[number % (1 + len(COLOURS))], MARKERS[number % len(MARKERS)]
        axes.plot([], [], marker, color=colour, markersize=8, label=printable(entry["label"]))
        for place, name in enumerate(titles):
            y = -step * place - INDENT * (number - (len(entries) - 1) / 2)
            mean, low, high = entry["found"][name]
            if not math.isnan(mean):
                axes.plot([low, high], [y, y], color=colour, linewidth=1.8, alpha=0.7, solid_capstyle="butt")
                axes.plot([mean], [y], marker, color=colour, markersize=8)
            if name in entry["paper"]:
                (hollow,) = axes.plot([entry["paper"][name]], [y], marker, color=colour, markersize=12, zorder=3)
                hollow.set(markerfacecolor="none", markeredgewidth=1.6)
    for place in range(1, len(titles)):
        axes.axhline(-step * (place - 0.5), color="#bbbbbb", linewidth=0.8)
    axes.set_yticks([-step * place for place in range(len(titles))], [printable(title) for title in titles.values()])
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.set_ylim(-step * (len(titles) - 0.5), step / 2)
    axes.set_xlim(left=-0.01)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("accuracy")
