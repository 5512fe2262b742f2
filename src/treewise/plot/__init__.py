"""Pictures of finished runs: one run's summary, and several runs over each other.

RUN/metrics.jsonl  ─▶ training reward ┐
RUN/eval.jsonl     ─▶ held-out scores ├▶ RUN/summary.png
RUN/rollouts.jsonl ─▶ one prefix tree ┘
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from treewise.plot.figure import COLOURS, STYLE, heading, label_steps, legend, new_figure, shared_steps
from treewise.plot.runlog import Candidate, Curves, choose_group, read_curves, running_mean
from treewise.plot.text import printable
from treewise.plot.tree import BETTER, INK, MUTED, draw_tree
from treewise.types import FloatArray

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


def _draw_methods(axes: Axes, title: str, methods: Mapping[str, Sequence[tuple[FloatArray, FloatArray]]]) -> None:
    """Per method the mean of its runs, a band from the lowest to the highest, and each run as a thin line."""
    for (label, curves), colour in zip(methods.items(), COLOURS * len(methods), strict=False):
        steps, values = shared_steps(curves)
        if not len(steps):
            continue
        mean, marker = values.mean(axis=0), "o" if len(steps) < 12 else ""
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.13, linewidth=0)
        axes.plot(steps, values.T, color=colour, linewidth=0.8, alpha=0.5, marker=marker, markersize=3)
        change = f"{mean[0]:.2f} → {mean[-1]:.2f}"
        axes.plot(steps, mean, color=colour, linewidth=2.6, marker=marker, label=f"{printable(label)}: {change}")
    label_steps(axes)
    axes.set_title(printable(title), loc="left", size=13, weight="bold", pad=14 + 20 * len(methods), parse_math=False)
    if axes.lines:
        legend(axes, loc="lower left", bbox_to_anchor=(-0.04, 1.0), fontsize=11)


def draw_curves(runs: Sequence[Path], labels: Sequence[str], out: Path) -> Path:
    """Draw several runs over each other into `out`: training reward, and a panel per held-out score.

    Runs with the same label are seeds of one method.

    Raises:
        ValueError: if there is not one label per run, or a run has no readable metrics.
        ImportError: without matplotlib.
    """
    from matplotlib import style

    if not runs or len(runs) != len(labels):
        raise ValueError(f"{len(runs)} runs but {len(labels)} labels; give every run one, seeds the same")
    methods: dict[str, list[Curves]] = defaultdict(list)
    for run, label in zip(runs, labels, strict=True):
        methods[label].append(read_curves(run))
        if not len(methods[label][-1].steps):
            raise ValueError(f"{run} has no reward to draw; give the folder of a run that made a step")
    names = _distinct([run for seeds in methods.values() for run in seeds])
    with style.context(["default", STYLE]):
        figure = new_figure(16, 6)
        widths = [1.6] + [1.0] * min(len(names), 3)
        panels = figure.subplots(1, len(widths), squeeze=False, gridspec_kw={"width_ratios": widths})[0]
        figure.subplots_adjust(left=0.04, right=0.985, bottom=0.14, top=0.91 - 0.043 * len(methods), wspace=0.18)
        training = {label: [(run.steps, running_mean(run.reward)) for run in seeds] for label, seeds in methods.items()}
        _draw_methods(panels[0], "Training reward, running mean", training)
        for panel, name in zip(panels[1:], names, strict=False):
            scores = {
                label: [(run.held_out[name].steps, run.held_out[name].mean) for run in seeds]
                for label, seeds in methods.items()
                if all(name in run.held_out for run in seeds)
            }
            _draw_methods(panel, f"Held-out {names[name]}", scores)
        limits = [panel.get_ylim() for panel in panels[1:]]
        for panel in panels[1:]:  # one scale for all shares of problems
            panel.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        counts = ", ".join(f"{len(seeds)} of {printable(label)}" for label, seeds in methods.items())
        note = f"thin: single runs ({counts}) · bold: their mean · band: from the lowest to the highest"
        figure.text(0.04, 0.025, note, size=10, color=MUTED, parse_math=False)
        figure.savefig(out)
    return out
