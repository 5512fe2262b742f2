"""Answers that are a number or a short text.

    numeric       1 if the stated answer is the gold number     "Answer: 12", "\\boxed{12}"
    last_number   1 if the last number of the reply is it       "… that makes 12 apples."
    exact         1 if the stated answer is the gold text       "Answer: Paris"

A stated answer is what `extract.stated_answer` finds. Numbers are compared exactly, as fractions:
5 = 5.0 = 10/2, 0.5 = 1/2, 1,234 = 1234; "$" and "%" are left out (5% = 5).
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from treewise.reward import NoVerdict
from treewise.reward.extract import gold_answer, stated_answer, visible

# A minus right after a word, a digit or a closing bracket is a subtraction: "10-3", "x-3".
_NUMBER = re.compile(
    r"""(?<!\w)(?<!\d\.)(?P<sign>(?<![)\]}])[-+])?(?:[$€£]\s?)?(?P<inner>-)?
    (?:(?P<digits>\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?P<decimals>\.\d+)?|(?P<fraction>(?<!\.)\.\d+))
    (?P<exponent>[eE][-+]?\d{1,3}(?!\d))?(?:\s?/\s?(?P<under>\d+)(?!\.?\d))?""",
    re.X,
)
_LONGEST = 400  # characters of a number; Python turns longer ones into integers slowly or not at all


def numeric(*, completion: str, answer: str | None) -> float:
    """1.0 if the stated answer is a number and equal to the gold number, else 0.0.

    Raises NoVerdict without a gold number.
    """
    gold = _gold_number(answer)
    stated = stated_answer(completion)
    return float(stated is not None and _only_number(stated) == gold)


def last_number(*, completion: str, answer: str | None) -> float:
    """1.0 if the last number of the reply is equal to the gold number, wherever it stands, else 0.0.

    Raises NoVerdict without a gold number.
    """
    gold = _gold_number(answer)
    found = max(_NUMBER.finditer(_clean(completion)), key=lambda match: match.start(), default=None)
    return float(found is not None and _value(found) == gold)


def exact(*, completion: str, answer: str | None) -> float:
    """1.0 if the stated answer, or the whole reply if it states none, is the gold text, else 0.0. Case, white
    space, quotation marks around it and a final full stop don't count.

    Raises NoVerdict without a gold answer.
    """
    if answer is None or not answer.strip():
        raise NoVerdict("the problem has no answer")
    stated = stated_answer(completion)
    return float(plain(completion if stated is None else stated) == plain(gold_answer(answer)))


def _gold_number(answer: str | None) -> Fraction:
    if answer is None or not answer.strip():
        raise NoVerdict("the problem has no answer")
    gold = _only_number(gold_answer(answer))
    if gold is None:
        raise NoVerdict(f"the gold answer {answer[-60:]!r} is not a number")
    return gold


def _only_number(text: str) -> Fraction | None:
    """The value of a text that is a number and nothing else but `$`, `%` and a final full stop."""
    text = _clean(text).strip("$ \t").removesuffix(".").removesuffix("%").strip("$ \t")
    match = _NUMBER.fullmatch(text)
    return _value(match) if match else None


def _value(match: re.Match[str]) -> Fraction | None:
    if len(match.group()) > _LONGEST:
        return None
    digits = match["fraction"] or match["digits"].replace(",", "") + (match["decimals"] or "")
    value = Fraction(digits + (match["exponent"] or ""))
    under = int(match["under"] or 1)
    if under == 0:
        return None
    return value / under * (-1 if "-" in (match["sign"], match["inner"]) else 1)


def _clean(text: str) -> str:
    r"""Write LaTeX's and Unicode's forms of numbers plainly: \frac{1}{2}, 1{,}234, \$5, 50\%, −3."""
    text = re.sub(r"\\[dt]?frac\s?\{(-?\d{1,400})\}\s?\{(\d{1,400})\}", r"\1/\2", text)
    text = re.sub(r"\\[dt]?frac\s?(\d)\s?(\d)(?!\d)", r"\1/\2", text)
    return text.replace("{,}", ",").replace("\\$", "$").replace("\\%", "%").replace("\u2212", "-")


def plain(text: str) -> str:
    """The text as it is compared: one case, single spaces, nothing invisible, no quotation marks or full stop around
    it."""
    text = " ".join(unicodedata.normalize("NFKC", visible(text)).split()).casefold()
    return text.strip("\"'`").removesuffix(".").strip("\"'` ")
