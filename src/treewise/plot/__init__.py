"""The picture of a finished run.

RUN/metrics.jsonl  ─▶ training reward ┐
RUN/eval.jsonl     ─▶ held-out scores ├▶ RUN/summary.png
RUN/rollouts.jsonl ─▶ one prefix tree ┘
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treewise.plot.figure import COLOURS, STYLE, heading, label_steps, legend, new_figure
from treewise.plot.runlog import Candidate, Curves, choose_group, read_curves, running_mean
from treewise.plot.text import printable
from treewise.plot.tree import BETTER, INK, MUTED, draw_tree

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def _distinct(runs: Sequence[Curves]) -> dict[str, str]:
    """Held-out scores to draw, name → label: scores that are equal in every run share a label and are drawn once."""
    labels: dict[tuple[Any, ...], list[str]] = defaultdict(list)
    for name in dict.fromkeys(name for run in runs for name in run.held_out):
        found = [run.held_out.get(name) for run in runs]
        values = tuple(None if points is None else (*points.steps.tolist(), *points.mean.tolist()) for points in found)
        labels[values].append(name)
    return {names[0]: " = ".join(names) for names in labels.values()}


def _draw_rewards(axes: Axes, curves: Curves) -> None:
    """Training reward per step, its running mean, and the held-out scores with their intervals."""
    if len(curves.steps):
        axes.plot(curves.steps, curves.reward, color=BETTER, linewidth=0.8, alpha=0.45)
        smooth = running_mean(curves.reward)
        axes.plot(curves.steps, smooth, color=BETTER, linewidth=2.5, label="training reward, running mean")
    width = 0.012 * np.ptp(np.concatenate([curves.steps, *(p.steps for p in curves.held_out.values())]))
    for number, (name, label) in enumerate(_distinct([curves]).items()):
        points = curves.held_out[name]
        colour = (INK, *COLOURS[1:])[number % len(COLOURS)]
        change = f"{points.mean[0]:.2f}" + (f" → {points.mean[-1]:.2f}" if len(points.mean) > 1 else "")
        axes.plot(points.steps + number * width, points.mean, "--", color=colour, linewidth=1.0, alpha=0.5)
        axes.errorbar(  # beside each other, so that every interval can be seen
            points.steps + number * width,
            points.mean,
            yerr=np.nan_to_num([points.mean - points.low, points.high - points.mean]),
            color=colour,
            linestyle="none",
            marker="o",
            markersize=7,
            elinewidth=1.8,
            label=f"held-out {printable(label)}: {change}",
        )
    label_steps(axes)


def _draw_group(figure: Figure, group: Candidate) -> None:
    scored = len(group.report["sets"][0]["members"])
    missing = len(group.rows) - scored
    heading(
        figure,
        0.33,
        "What the prefixes of answers were worth",
        f"step {group.step} · problem {printable(group.problem)[:40]} · {scored} answers, mean reward "
        f"{group.report['mean']:.2f}" + (f" · {missing} without verdict not drawn" if missing else "") + "\n"
        "box: text that answers share · height: how many share it · number: their mean reward, "
        "which is the prefix's process reward",
    )
    tree = figure.add_axes((0.33, 0.085, 0.655, 0.785))
    tree.grid(False)
    draw_tree(tree, group.rows, pieces=group.pieces, prompt=group.prompt)
    tree.set_xlabel("tokens of the answer (long stretches are drawn shorter)", loc="left")


def draw_run(run: Path, out: Path | None = None) -> Path:
    """Draw a run's rewards and the tree of one of its last groups into `out`, by default RUN/summary.png.

    Raises:
        ValueError: if the folder has no readable metrics, evaluations or rollouts.
        ImportError: without matplotlib.
    """
    from matplotlib import style

    curves = read_curves(run)
    group, skipped = choose_group(run)
    if group is None and not len(curves.steps) and not curves.held_out:
        raise ValueError(f"{run} has nothing to draw; give the folder of a run that made a step")
    with style.context(["default", STYLE]):
        figure = new_figure(16, 9)
        heading(figure, 0.02, f"Rewards of {run.resolve().name[:24]}", "")
        if len(curves.steps) or curves.held_out:
            axes = figure.add_axes((0.04, 0.085, 0.25, 0.665))
            _draw_rewards(axes, curves)
            legend(axes, loc="lower left", bbox_to_anchor=(-0.08, 1.0), fontsize=11)
        if group is not None:
            _draw_group(figure, group)
        if skipped + curves.skipped:
            note = f"{skipped + curves.skipped} unreadable lines left out"
            figure.text(0.02, 0.01, note, size=9, color=MUTED)
        out = run / "summary.png" if out is None else out
        figure.savefig(out)
    return out
