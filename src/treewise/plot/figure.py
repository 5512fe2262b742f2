"""What all pictures share: size, colours, headings, legends.

Figures are made without pyplot, so nothing global changes and no display is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from treewise.plot.text import printable
from treewise.plot.tree import BETTER, INK, MUTED, WORSE
from treewise.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (BETTER, WORSE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito
STYLE = {
    "figure.facecolor": "white",
    "font.size": 12.0,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": "#bbbbbb",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8e8e8",
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "text.hinting": "none",  # whole-pixel advances would make text wider than its box
}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many hundred pixels, made without pyplot."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=100)


def heading(figure: Figure, x: float, title: str, text: str) -> None:
    """A title with an explanation below it, at the top of the figure, `x` in figure widths."""
    inch = 1 / figure.get_figheight()
    figure.text(x, 1 - 0.28 * inch, printable(title), size=17, weight="bold", va="center", parse_math=False)
    figure.text(x, 1 - 0.42 * inch, text, size=11.5, color=MUTED, va="top", linespacing=1.35, parse_math=False)


def legend(axes: Axes, **where: Any) -> None:
    """A legend whose labels are shown as they are."""
    for entry in axes.legend(**where).get_texts():
        entry.set_parse_math(False)


def label_steps(axes: Axes) -> None:
    """Whole steps on the horizontal axis."""
    axes.set_xlabel("step")
    axes.locator_params(axis="x", integer=True)


def shared_steps(curves: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[FloatArray, FloatArray]:
    """The steps `[n]` that all of one method's curves have, and their values there, `[runs, n]`."""
    steps = sorted(set.intersection(*(set(steps.tolist()) for steps, _ in curves)))
    values = [dict(zip(steps.tolist(), values.tolist(), strict=True)) for steps, values in curves]
    return np.array(steps), np.array([[one[step] for step in steps] for one in values])
