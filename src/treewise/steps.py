"""The steps of an answer: where they end in its text, and with which token.

    text     3 + 4 = 7.⏎ │ 7 + 5 = 13.⏎⏎ │ Answer: 13
    tokens   …  7   .⏎   │ …  13   .⏎⏎   │ …  13  <end>
    reward          1    │         0     │          .5     comes with the token of the step's last character

A separator belongs to the step that it ends. What stands between separators and is only white space is no step of
its own: it belongs to the step before it, or to the first one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate

SEPARATOR = "\n"  # the default


def split_steps(text: str, separator: str) -> list[str]:
    """The steps of `text`, which they make up again when they are joined; none if it is empty or only white space."""
    *ended, rest = text.split(separator)
    steps: list[str] = []
    start = ""
    for content, part in [*((content, content + separator) for content in ended), (rest, rest)]:
        if content.strip():
            steps.append(start + part)
            start = ""
        elif steps:
            steps[-1] += part
        else:
            start += part
    return steps


def last_tokens(steps: Sequence[str], ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[int]:
    """For each step the index in `ids` of the token that holds its last character; rising, not always strictly.

    The last step goes up to the last token, whatever that is: an end token, a stop string.
    """
    inner = list(accumulate(len(step) for step in steps))[:-1]
    complete = _complete_characters(ids, decode) if inner else []
    return [min(bisect_left(complete, end), len(ids) - 1) for end in inner] + [len(ids) - 1] * bool(steps)


def _complete_characters(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[int]:
    """[n] how many characters of the text are complete with each token.

    Decodes a few tokens at a time: what is new, behind a context that settles spaces between tokens. Tokens that end
    in the middle of a character decode to a replacement character until the rest of it is there.
    """
    counts: list[int] = []
    total = start = new = known = 0  # the context is ids[start:new], and decodes to `known` characters
    for stop in range(1, len(ids) + 1):
        text = decode(ids[start:stop])
        if len(text) > known and not text.endswith("\ufffd"):
            total += len(text) - known
            start, new = new, stop
            known = len(decode(ids[start:new]))
        counts.append(total)
    return counts
