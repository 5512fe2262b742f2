"""A penalty for saying the same thing again and again."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

# Scripts without spaces between words: kana, Han, Thai and Lao, Burmese, Khmer. Each character is a word there.
_NO_SPACES = re.compile(
    "[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\U00020000-\U0003ffff]"
)


@dataclass(frozen=True)
class Repetition:
    """`−penalty · (1 − different n-grams / all n-grams)`, 0 for a reply of fewer than `size` units.

    Units are words between spaces, without regard to case, and single characters where a script has no spaces; or
    tokens, which also see what repeats inside of one long word. Source: the repetition penalty of arXiv 2502.03373, in
    the form of Open R1.
    """

    size: Annotated[int, Field(ge=1)] = 3
    penalty: Annotated[float, Field(gt=0)] = 1.0
    unit: Literal["words", "tokens"] = "words"

    def __call__(self, *, completion: str, completion_ids: Sequence[int]) -> float:
        units = completion_ids if self.unit == "tokens" else _NO_SPACES.sub(r" \g<0> ", completion.casefold()).split()
        grams = list(zip(*(units[start:] for start in range(self.size)), strict=False))
        return self.penalty * (len(set(grams)) / len(grams) - 1) if grams else 0.0
