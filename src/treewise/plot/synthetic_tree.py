"""The picture of the synthetic tree: who found the target, tree by tree, and at which learning rates.

share │ ●  ○       │   ╭─╮           ○ the paper   ● mean over seeds, with its interval
      │    │  ●    │ ╭─╯ ╰─╮
      └─ n, r_neg  └─── rate
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from treewise.plot.figure import COLOURS, STYLE, heading, new_figure
from treewise.plot.tree import INK, MUTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from treewise.statistics import Estimate

BAR = "dot: mean over seeds · bar: 95 % t interval, cut at 0 and 1; none for few seeds, or equal ones"
OPTIMIZERS = {"sgd": "SGD", "adamw": "AdamW"}
LOOKS = tuple(zip("sD^vPXo", ("--", ":", "-.", ":", "-.", "--", "-"), strict=True))  # marker and line of a method


class Look(NamedTuple):
    """How a method is drawn everywhere."""

    colour: str
    marker: str
    line: str


def _looks(methods: Sequence[str]) -> dict[str, Look]:
    """A look per method; GRPO and λ-GRPO stand out by theirs."""
    others = [name for name in methods if name not in ("GRPO", "λ-GRPO")]
    colours = [*COLOURS[2:], MUTED]
    looks = {name: Look(colours[n % len(colours)], *LOOKS[n % (len(LOOKS) - 2) + 1]) for n, name in enumerate(others)}
    return looks | {"GRPO": Look(COLOURS[1], "s", "--"), "λ-GRPO": Look(COLOURS[0], "o", "-")}


def draw_synthetic_tree(
    labels: Sequence[str],
    shares: Mapping[str, Sequence[Estimate]],
    paper: Mapping[str, Sequence[float | None]],
    sweeps: Mapping[str, Mapping[str, Sequence[tuple[float, Estimate]]]],
    curves: Mapping[str, Sequence[tuple[float, float]]],
    *,
    rate: str,
    note: str,
) -> Figure:
    """Draw shares of the target.

    Args:
        labels: of the trees.
        shares: method → share in each tree, at `rate`.
        paper: method → the paper's share in each tree.
        sweeps: optimizer → method → share over all trees by learning rate; empty with one rate per optimizer.
        curves: method → share by step at `rate`, drawn where there are no sweeps.
        rate: optimizer and learning rate of the left panel.
        note: what was run.

    Raises:
        ImportError: without matplotlib.
    """
    from matplotlib import style

    looks = _looks(list(shares))
    with style.context(["default", STYLE]):
        figure = new_figure(16, 8)
        optimizer, _, number = rate.partition(":")
        title = f"Who finds the target? {OPTIMIZERS.get(optimizer, optimizer)} at {number}"
        heading(figure, 0.045, title, f"{BAR}\n{note}")
        left = figure.add_axes((0.045, 0.18, 0.5, 0.65))
        _draw_trees(left, labels, shares, paper, looks)
        if sweeps:
            heading(figure, 0.585, "… and at which learning rate?", "mean over all trees; bars for GRPO and λ-GRPO")
            width = (0.4 - 0.03 * (len(sweeps) - 1)) / len(sweeps)
            for place, (name, methods) in enumerate(sweeps.items()):
                axes = figure.add_axes((0.585 + place * (width + 0.03), 0.18, width, 0.65))
                _draw_sweep(axes, methods, looks)
                axes.set_xlabel(f"learning rate of {OPTIMIZERS.get(name, name)}")
        else:
            heading(
                figure,
                0.585,
                "… and when?",
                "mean over all trees, seeds and 25 steps around each mark",
            )
            axes = figure.add_axes((0.585, 0.18, 0.4, 0.65))
            for method, points in curves.items():
                colour, marker, line = looks[method]
                steps, values = zip(*points, strict=True)
                axes.plot(steps, values, line, color=colour, marker=marker, linewidth=2, markersize=6)
            axes.set_ylim(-0.03, 1.03)
            axes.set_xlim(left=0)
            axes.set_xlabel("step")
        handles = [
            left.plot([], [], line, color=colour, marker=marker, markersize=8, linewidth=2, label=method)[0]
            for method, (colour, marker, line) in ((method, looks[method]) for method in shares)
        ]
        handles.append(
            left.plot([], [], "o", color=INK, markerfacecolor="white", markersize=10, label="hollow: paper")[0]
        )
        figure.legend(handles=handles, loc="lower center", ncols=len(handles), fontsize=12, handlelength=2.6)
    return figure


def _draw_trees(
    axes: Axes,
    labels: Sequence[str],
    shares: Mapping[str, Sequence[Estimate]],
    paper: Mapping[str, Sequence[float | None]],
    looks: Mapping[str, Look],
) -> None:
    """A column per tree, in it a dot per method, and the paper's in the method's own place."""
    places = np.arange(len(labels), dtype=float)
    offsets = np.linspace(-0.36, 0.36, len(shares)) if len(shares) > 1 else [0.0]
    for offset, (method, found) in zip(offsets, shares.items(), strict=True):
        mean, low, high = np.array(found).T
        colour, marker, _ = looks[method]
        axes.errorbar(
            places + offset,
            mean,
            yerr=np.nan_to_num([mean - low, high - mean]),
            color=colour,
            marker=marker,
            linestyle="none",
            markersize=8,
            elinewidth=1.6,
        )
        known = [
            (place, share) for place, share in zip(places, paper.get(method, ()), strict=False) if share is not None
        ]
        for place, share in known:  # beside the dot, which it would cover
            axes.plot(
                place + offset - 0.05, share, marker, color=colour, markerfacecolor="white", markersize=11, mew=1.8
            )
    for place in places[:-1]:
        axes.axvline(place + 0.5, color="#e0e0e0", linewidth=1)
    axes.set_xticks(places, list(labels))
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_ylim(-0.03, 1.03)
    axes.set_ylabel("share of samples that are the target, last steps")
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="x", length=0)


def _draw_sweep(axes: Axes, methods: Mapping[str, Sequence[tuple[float, Estimate]]], looks: Mapping[str, Look]) -> None:
    rates = [rate for rate, _ in next(iter(methods.values()))]
    for method, points in methods.items():
        colour, marker, line = looks[method]
        mean, low, high = np.array([estimate for _, estimate in points]).T
        bold = method in ("GRPO", "λ-GRPO")
        places = np.array(rates) * {"GRPO": 0.97, "λ-GRPO": 1.03}.get(method, 1.0)  # so that no bar hides another
        if bold:
            ends = np.nan_to_num([mean - low, high - mean])
            axes.errorbar(places, mean, yerr=ends, fmt="none", ecolor=colour, elinewidth=1.6)
        axes.plot(places, mean, line, color=colour, marker=marker, linewidth=2.6 if bold else 1.6, markersize=7)
    axes.set_xscale("log")
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.minorticks_off()
    axes.set_ylim(-0.03, 1.03)
