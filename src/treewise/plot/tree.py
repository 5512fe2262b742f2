"""The drawing of one group: its prefix tree as a flame chart, with the process rewards in it.

    ┌────────┬─────────────────┬────────────────┐
    │        │ 0.50 ×2         │ … is 6.        │● 1     left → right: tokens
    │ prompt │ The divisor of  ├────────────┬───┘        height: |λ|, how many answers share the text
    │        │ 12 and 18       │ … is 12.   │········● 0     colour: process advantage
    └────────┴─────────────────┴────────────┘             numbers: R̂(λ) × |λ|; at the right, rewards

Answers are data: their text is never read as mathematics, control characters are taken out, and what
doesn't fit its box is cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from treewise.analysis import GroupReport, ProcessSet, inspect_group
from treewise.plot.text import CAPTION_SIZES, FONT, LONGEST, Fitted, fit, last_words, printable
from treewise.records import RecordedGroup, RecordedTrajectory
from treewise.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.patches import Patch

INK, MUTED, NEUTRAL = "#222222", "#6b6b6b", "#efeeea"
WORSE, BETTER = "#d55e00", "#0072b2"  # from Okabe and Ito: distinct with every kind of colour blindness
PROMPT, REWARDS = 0.16, 0.075  # shares of the width for the prompt and the column of rewards
PADDING = 5.0  # pixels between a box and its text


class Box(NamedTuple):
    """A rectangle in pixels, y downwards."""

    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything goes.

    Attributes:
        order: the scored rows from top to bottom.
        paths: for each of them the numbers of the sets that it is in, from the root.
        edges: the token positions at which a set begins or ends, ascending.
        x: their places, from 0 to 1.
    """

    order: list[int]
    paths: dict[int, list[int]]
    edges: list[int]
    x: FloatArray


def advantage_colours() -> Colormap:
    """Vermilion (worse than the group's mean) over near-white to blue (better)."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("advantage", [WORSE, "#f5bd93", NEUTRAL, "#93c4e4", BETTER])


def layout(sets: Sequence[ProcessSet]) -> Layout:
    """Answers with a common prefix lie together, the better branch on top.

    A stretch of n tokens in which no set begins or ends is √n wide, so that late branches stay visible.
    """
    paths: dict[int, list[int]] = {row: [] for row in sets[0]["members"]}
    for number, found in enumerate(sets):  # the root comes first, and parents before children
        for row in found["members"]:
            paths[row].append(number)

    def branches(row: int) -> list[tuple[float, int]]:
        return [(-(sets[n]["reward"] or 0.0), n) for n in paths[row]]

    edges = sorted({0, *itertools.chain.from_iterable((s["start"], s["end"]) for s in sets)})
    x = np.concatenate([[0.0], np.cumsum(np.sqrt(np.diff(edges)))])
    return Layout(sorted(paths, key=branches), paths, edges, x / max(x[-1], 1.0))


def set_text(
    found: ProcessSet, rows: Sequence[RecordedTrajectory], pieces: Sequence[Sequence[str] | None] | None
) -> str:
    """What the tokens of a set say. Without `pieces`: the whole text of a single answer, else token ids."""
    first, span = found["members"][0], slice(found["start"], found["end"])
    row, shown = rows[first], pieces[first] if pieces is not None else None
    if shown is not None and len(shown) == len(row.tokens):
        return "".join(shown[span])
    if found["size"] == 1 and row.text:
        return f"[…] {row.text}"
    return " ".join(str(token) for token in row.tokens[span][:LONGEST])


def _put(axes: Axes, x: float, y: float, fitted: Fitted, *, clip: Patch, **style: Any) -> None:
    """Draw a fitted text with its upper left corner at x, y."""
    axes.text(
        x + (fitted.width / 2 if fitted.upright else 0.0),
        y + fitted.height / 2,
        fitted.text,
        size=fitted.size,
        rotation=90 if fitted.upright else 0,
        ha="center" if fitted.upright else "left",
        va="center",
        family=FONT,
        parse_math=False,
        linespacing=1.2,
        clip_on=True,
        **style,
    ).set_clip_path(clip)


def _draw_box(axes: Axes, box: Box, text: str, *, face: Any, caption: str = "") -> None:
    """A filled box, in it a bold caption where there is room for one, and below that the text."""
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Rectangle

    point = axes.figure.dpi / 72
    patch = axes.add_patch(
        Rectangle((box.x, box.y), box.width, box.height, facecolor=face, edgecolor="white", linewidth=1.2)
    )
    luminance = float(np.dot(to_rgb(face), (0.299, 0.587, 0.114)))
    colour = INK if luminance > 0.5 else "white"
    across, down = min(PADDING, 0.1 * box.width), min(PADDING, 0.1 * box.height)
    x, y, width, height = box.x + across, box.y + down, box.width - 2 * across, box.height - 2 * down
    head = fit(caption, width, height / 2, point=point, sizes=CAPTION_SIZES)
    if head is not None and head.whole:
        _put(axes, x, y, head, clip=patch, color=colour, weight="bold")
        y, height = y + head.height + 2.0, height - head.height - 2.0
    body = fit(text, width, height, point=point)
    if body is not None:
        middle = (width - body.width) / 2 if body.upright else 0.0
        _put(axes, x + middle, y + (height - body.height) / 2, body, clip=patch, color=colour)


def draw_tree(
    axes: Axes,
    rows: Sequence[RecordedTrajectory],
    *,
    pieces: Sequence[Sequence[str] | None] | None = None,
    prompt: str = "",
) -> GroupReport:
    """Draw the prefix tree of one group's scored answers into axes of a figure, which it fills.

    Args:
        axes: their size in pixels must be final.
        rows: the group's trajectories.
        pieces: per trajectory the text of each of its tokens, or None.
        prompt: what all answers share.

    Raises:
        ValueError: if no trajectory has a verdict.
    """
    report = inspect_group(RecordedGroup("", tuple(rows)))
    sets = report["sets"]
    if not sets[0]["members"]:
        raise ValueError("no trajectory of this group has a verdict; draw a group with rewards")
    placed = layout(sets)
    width, height = axes.bbox.width, axes.bbox.height
    axes.set(xlim=(0, width), ylim=(height, 0), yticks=[])
    left, right = PROMPT * width if prompt else 0.0, (1 - REWARDS) * width
    x = dict(zip(placed.edges, left + placed.x * (right - left), strict=True))
    step = height / len(placed.order)
    line = {row: number for number, row in enumerate(placed.order)}
    limit = max((abs(s["advantage"] or 0.0) for s in sets), default=0.0) or 1.0
    colours = advantage_colours()

    def colour(found: ProcessSet) -> Any:
        return colours(0.5 + 0.5 * (found["advantage"] or 0.0) / limit)

    if prompt:
        text = printable(last_words(prompt, left, height, point=axes.figure.dpi / 72))
        _draw_box(axes, Box(0, 0, left, height), text, face="#f8f8f6", caption="prompt")
    for found in sets:
        top = min(line[row] for row in found["members"])
        start, end = x[found["start"]], x[found["end"]]
        if end > start:
            box = Box(start, top * step, end - start, found["size"] * step)
            caption = f"{found['reward']:.2f} ×{found['size']}" if found["size"] > 1 else ""
            text = printable(set_text(found, rows, pieces))
            _draw_box(axes, box, text, face=colour(found), caption=caption)
    for number, copies in itertools.groupby(placed.order, key=lambda row: placed.paths[row][-1]):
        same = list(copies)
        y = (line[same[0]] + len(same) / 2) * step
        axes.plot([x[sets[number]["end"]], right + 8], [y, y], ":", color=MUTED, linewidth=0.8, zorder=0)
        rewards = [rows[row].reward or 0.0 for row in same]
        _draw_reward(axes, right + 14, y, rewards, face=colour(sets[number]), step=step)
    _draw_scales(axes, placed, x, limit)
    return report


def _draw_reward(axes: Axes, x: float, y: float, rewards: Sequence[float], *, face: Any, step: float) -> None:
    """The mark of answers with the same text, which may differ in reward; rows are `step` pixels high."""
    size = min(10.0, 0.85 * len(rewards) * step / (axes.figure.dpi / 72))
    axes.plot(x, y, "o", markersize=0.75 * size, color=face, markeredgecolor=MUTED, markeredgewidth=0.7)
    text = f"{np.mean(rewards):.3g}" + (f" ×{len(rewards)}" if len(rewards) > 1 else "")
    axes.text(x + 11, y, text, va="center", size=size)


def _draw_scales(axes: Axes, placed: Layout, x: Mapping[int, float], limit: float) -> None:
    """Ticks at token positions, and the key of the colours above the upper right corner."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    ticks = [0]
    for edge in placed.edges:
        if x[edge] - x[ticks[-1]] >= 28:
            ticks.append(edge)
    axes.set_xticks([x[tick] for tick in ticks], [str(tick) for tick in ticks])
    axes.tick_params(length=3)
    axes.spines[:].set_visible(False)
    key = axes.inset_axes((1 - REWARDS - 0.25, 1.115, 0.25, 0.018))
    scale = ScalarMappable(Normalize(-limit, limit), advantage_colours())
    axes.figure.colorbar(scale, cax=key, orientation="horizontal", ticks=[-limit, 0, limit])
    key.set_xticklabels([f"−{limit:.2g}", "0", f"+{limit:.2g}"])
    key.tick_params(labelsize=9, length=2)
    key.spines[:].set_visible(False)
    key.set_title("process advantage", size=10, color=MUTED, pad=4)
