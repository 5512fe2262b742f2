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
import textwrap
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from treewise.analysis import GroupReport, ProcessSet, inspect_group
from treewise.records import RecordedGroup, RecordedTrajectory
from treewise.types import FloatArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap

INK, MUTED, NEUTRAL = "#222222", "#6b6b6b", "#efeeea"
WORSE, BETTER = "#d55e00", "#0072b2"  # from Okabe and Ito: distinct with every kind of colour blindness
MONOSPACE = "DejaVu Sans Mono"  # comes with matplotlib; text of a fixed width can be fitted by counting
CHARACTER, LINE = 0.602, 1.22  # width of a character and distance of lines, in font sizes
SIZES = (11.0, 10.0, 9.0, 8.0, 7.0)  # points
LONGEST = 2000  # characters of a text that are looked at; no box holds more
PROMPT, REWARDS = 0.16, 0.065  # shares of the width for the prompt and the column of rewards
PADDING = 5.0  # pixels between a box and its text


class Box(NamedTuple):
    """A rectangle in pixels, y downwards."""

    x: float
    y: float
    width: float
    height: float


class Fitted(NamedTuple):
    """A text broken into lines for a box; `upright`: read from bottom to top."""

    text: str
    size: float
    upright: bool


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


@lru_cache(maxsize=4096)
def _has_glyph(character: str) -> bool:
    from matplotlib.font_manager import findfont, get_font

    return bool(get_font(findfont(MONOSPACE)).get_char_index(ord(character)))


def printable(text: str) -> str:
    """Text for one line: ↵ for line breaks, · for other control characters, □ for what the font lacks."""
    text = unicodedata.normalize("NFC", text[:LONGEST]).replace("\r\n", "\n").replace("\t", " ")
    visible = ("·" if unicodedata.category(c).startswith("C") else c for c in text.replace("\n", "↵ "))
    return "".join(c if _has_glyph(c) else "□" for c in visible)


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


def fit(text: str, width: float, height: float, *, point: float) -> Fitted | None:
    """Break a text so that it fills a box of `width` × `height` pixels, as large as it fits, lying or upright.

    A text too long for the smallest size is cut with an ellipsis. `None` if there is no room for a character.
    """
    text = text.strip() or ("␣" if text else "")
    longest_word = max((len(word) for word in text.split()), default=0)
    best, best_rank = None, (-1.0, 0.0)
    for size, upright in itertools.product(SIZES, (False, True)):
        along, across = (height, width) if upright else (width, height)
        columns, lines = int(along / (CHARACTER * size * point)), int(across / (LINE * size * point))
        if min(columns, lines, len(text)) < 1:
            continue
        broken = longest_word > columns
        whole = textwrap.wrap(text, columns, break_on_hyphens=False)
        cut = len(whole) > lines
        if cut:
            whole = textwrap.wrap(text, columns, max_lines=lines, placeholder="…", break_on_hyphens=False)
        rank = (float(not cut and not broken), size - 2.0 * upright)
        if cut or broken:  # show much of the text, and don't chop words
            rank = (0.0, sum(map(len, whole)) * (0.5 if broken and columns < 8 else 1.0))
        if rank > best_rank:
            best, best_rank = Fitted("\n".join(whole), size, upright), rank
    return best


def _write(axes: Axes, box: Box, text: str, caption: str, colour: str) -> None:
    """Fill a box with its text below a bold caption (left of it, where both stand upright)."""
    from matplotlib.patches import Rectangle

    point = axes.figure.dpi / 72
    clip = axes.add_patch(Rectangle((box.x, box.y), box.width, box.height, visible=False))
    style = {"color": colour, "family": MONOSPACE, "parse_math": False, "linespacing": 1.0, "clip_on": True}
    x, y, width, height = box.x + PADDING, box.y + 2, box.width - 2 * PADDING, box.height - 4
    if width < LINE * SIZES[-1] * point:  # a column of one token: no room for padding
        x, width = box.x, box.width
    if caption:
        for size in (9.0, 8.0, 7.0):
            long, high = CHARACTER * size * point * len(caption), LINE * size * point
            if long <= width and 2 * high <= height:
                drawn = axes.text(x, y, caption, size=size, weight="bold", va="top", **style)
                y, height = y + high, height - high
                break
            if high <= width and 2 * long <= height:
                centre = x + width / 2
                drawn = axes.text(
                    centre, y, caption, size=size, weight="bold", va="top", ha="center", rotation=90, **style
                )
                y, height = y + long + PADDING, height - long - PADDING
                break
        else:
            drawn = None
        if drawn is not None:
            drawn.set_clip_path(clip)
    fitted = fit(text, width, height, point=point)
    if fitted is None:
        return
    where = (x + width / 2, y + height / 2) if fitted.upright else (x, y + height / 2)
    drawn = axes.text(
        *where,
        fitted.text,
        size=fitted.size,
        va="center",
        ha="center" if fitted.upright else "left",
        rotation=90 if fitted.upright else 0,
        **style,
    )
    drawn.set_clip_path(clip)
