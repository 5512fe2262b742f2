"""Text for boxes of a picture: made harmless, broken into lines, as large as it fits.

    printable("a\\n\\x00b") = "a↵ ·b"        fit("The divisor of 12", …) ─▶ ┌───────────┐
                                                                        │The divisor│
                                                                        │of 12      │
                                                                        └───────────┘
A font of a fixed width makes the size of a text a matter of counting. No drawing happens here.
"""

from __future__ import annotations

import itertools
import textwrap
import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

FONT = "DejaVu Sans Mono"  # comes with matplotlib
CHARACTER, LINE = 0.602, 1.22  # width of a character and distance of lines, in font sizes
SIZES = (11.0, 10.0, 9.0, 8.0, 7.0, 6.0, 5.0)  # points
CAPTION_SIZES = (9.0, 8.0, 7.0)
LONGEST = 2000  # characters of a text that are looked at; no box holds more


class Fitted(NamedTuple):
    """A text broken into lines of `size` points for a box of some `width` and `height` in pixels.

    `upright`: read from bottom to top; `whole`: nothing was cut and no word broken.
    """

    text: str
    size: float
    upright: bool
    whole: bool
    width: float
    height: float


@lru_cache(maxsize=4096)
def _has_glyph(character: str) -> bool:
    from matplotlib.font_manager import findfont, get_font

    return bool(get_font(findfont(FONT)).get_char_index(ord(character)))


def printable(text: str) -> str:
    """Text for one line: ↵ for line breaks, · for other control characters, □ for what the font lacks."""
    text = unicodedata.normalize("NFC", text[:LONGEST]).replace("\r\n", "\n").replace("\t", " ")
    visible = ("·" if unicodedata.category(c).startswith("C") else c for c in text.replace("\n", "↵ "))
    return "".join(c if _has_glyph(c) else "□" for c in visible)


def fit(text: str, width: float, height: float, *, point: float, sizes: Sequence[float] = SIZES) -> Fitted | None:
    """Break a text so that it fits a box of `width` × `height` pixels as large as possible, lying or upright.

    A text too long for the smallest size is cut with an ellipsis. `None` if there is no room for a character.
    `point` is the size of a point in pixels.
    """
    text = text.strip() or ("␣" if text else "")
    longest_word = max((len(word) for word in text.split()), default=0)
    best, best_rank = None, (-1.0, 0.0)
    for size, upright in itertools.product(sizes, (False, True)):
        character, line = CHARACTER * size * point, LINE * size * point
        along, across = (height, width) if upright else (width, height)
        columns, most = int(along / character), int(across / line)
        if min(columns, most, len(text)) < 1:
            continue
        lines = textwrap.wrap(text, columns, break_on_hyphens=False)
        whole = len(lines) <= most and longest_word <= columns
        if len(lines) > most:
            lines = [*lines[: most - 1], f"{lines[most - 1][: columns - 1]}…"]
        if longest_word > columns and columns < 8 and (upright or len(lines) > 2 or columns < 4):
            continue  # a column of single letters says nothing
        # A whole text as large as possible, lying if that costs at most two points; else much of the text.
        rank = (1.0, size - 2.0 * upright) if whole else (0.0, float(sum(map(len, lines))))
        if rank > best_rank:
            long, high = max(map(len, lines)) * character, len(lines) * line
            extent = (high, long) if upright else (long, high)
            best, best_rank = Fitted("\n".join(lines), size, upright, whole, *extent), rank
    return best


def last_words(text: str, width: float, height: float, *, point: float) -> str:
    """The end of a text, as much of it as a box holds at a size that is easy to read."""
    size = CAPTION_SIZES[-1] * point
    room = int(0.75 * (width / (CHARACTER * size)) * (height / (LINE * size)))
    return text if len(text) <= room else f"…{text[len(text) - room :]}"
