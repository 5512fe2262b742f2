"""How much of a reply is written in the wanted script.

    script = "han"    "我们 solve 它"    4 letters of 9    → 0.44

Left out of the count: code, LaTeX, tags, addresses, and single Latin letters, which are variables and labels.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import cache

from pydantic.dataclasses import dataclass

SCRIPTS = (
    "arabic", "armenian", "bengali", "cyrillic", "devanagari", "georgian", "greek", "gujarati", "han", "hangul",
    "hebrew", "hiragana", "kannada", "katakana", "khmer", "lao", "latin", "malayalam", "myanmar", "sinhala", "tamil",
    "telugu", "thai",
)  # fmt: skip
# Letters whose names in Unicode begin with other words than their script's.
_NAMES = {"cjk": "han", "ideographic": "han", "katakana-hiragana": "katakana"}
_LEFT_OUT = re.compile(
    r"```.*?(?:```|\Z)|`[^`\n]*`|\$\$[^$]*\$\$|\$[^$\n]*\$|\\\(.*?(?:\\\)|\Z)|\\\[.*?(?:\\\]|\Z)|\\[A-Za-z]+"
    r"|</?[A-Za-z_]+>|https?://\S+|(?<![A-Za-z])[A-Za-z](?![A-Za-z])",
    re.S,
)


@dataclass(frozen=True)
class Language:
    """`letters of the script / all letters` of the reply, 0 without any letter; `script` may be several of them.

    Languages of one script are not told apart. Source: the language consistency reward of DeepSeek-R1,
    arXiv 2501.12948, which counts words.
    """

    script: str | tuple[str, ...]

    def __post_init__(self) -> None:
        unknown = [script for script in self._wanted if script not in SCRIPTS]
        if unknown or not self._wanted:
            raise ValueError(f"script = {self.script!r} must be of {', '.join(SCRIPTS)}")

    @property
    def _wanted(self) -> tuple[str, ...]:
        return (self.script,) if isinstance(self.script, str) else self.script

    def __call__(self, *, completion: str) -> float:
        text = unicodedata.normalize("NFKC", _LEFT_OUT.sub(" ", completion))
        scripts = Counter(_script(character) for character in text)
        del scripts[""]
        return sum(scripts[script] for script in self._wanted) / scripts.total() if scripts else 0.0


@cache
def _script(character: str) -> str:
    """The script of a letter; "" if it is none, "other" if it has no name."""
    if not unicodedata.category(character).startswith("L"):
        return ""
    first = unicodedata.name(character, "other").split()[0].lower()
    return _NAMES.get(first, first)
