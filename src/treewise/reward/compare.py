r"""Whether an answer is what the gold answer is, as it runs in the worker of `treewise.reward.math`.

    gold, answer ──latex.plain──▶ lists? ──▶ part by part, in any order ─┐
                                  x = …? ──▶ what x is                   ├──▶ … ──▶ symbolic.equal
                                  (…), [a, b)? ──▶ part by part, in order┘
                                  words, choices, times, ratios, bases, units, percents

The gold answer's form decides; each rule below says why it is there.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from treewise.reward import kinds, latex, symbolic, units

LONGEST = 2000  # characters of an answer; nobody's answer is longer
_CONGRUENCE = re.compile(r"(.+?)\\equiv(.+?)\(?\s*\\?(?:pmod|bmod|mod|text\{ ?mod ?\})\s*\{?\s*(\d{1,9})\s*\}?\s*\)?")
_EQUALS = re.compile(r"(?<![<>!\\:])=|:=|\\in(?![a-zA-Z])")
# What may be called something: x, f(x), (p,q), |AB|, m_{\max}, S_{ABC}:S.
_NAME = re.compile(r"(?:[A-Za-z(),|: ']|\\[A-Za-z]+|_ ?(?:\{[^{}]*\}|[A-Za-z0-9])|\^\{\\prime\})+")
_PRODUCT = re.compile(r"[abckmnpqrstuvwxyz]{2,3}")  # of variables; AB is a segment, and area a word
_COMMAND = re.compile(r"\\[A-Za-z]+")
_DERIVATIVE = re.compile(r"\\frac\{ ?d ?[^{}]*\}\{ ?d ?[^{}]*\}")
_ELLIPSIS = r"\ldots"


def compare(*, gold: str, answer: str) -> tuple[bool | None, str | None]:
    """Whether `answer` is `gold`, and the cause if that isn't True; None if the gold answer can't be read."""
    gold, long = latex.plain(gold[: LONGEST + 1]), len(gold) > LONGEST
    if long or not readable(gold):
        return None, "the gold answer can't be parsed"
    if len(answer) > LONGEST:
        return False, "the answer is too long"
    answer = latex.plain(answer)
    if not readable(answer) or (kinds.is_word(answer) and not kinds.is_word(gold) and kinds.label(answer) is None):
        return False, "the answer can't be parsed"
    return (True, None) if same(gold, answer) else (False, "not equal")


def readable(text: str) -> bool:
    """Whether all of an answer means something here."""
    if (
        symbolic.decimal(text)
        or _CONGRUENCE.fullmatch(text)
        or kinds.clock(text)
        or kinds.date(text)
        or kinds.base(text)
        or kinds.label(text)
    ):
        return True
    cases = kinds.cases(text)
    if cases is not None:
        return all(readable(value) for value, _ in cases)
    parts = _alternatives(text)
    if len(parts) > 1:
        return all(part == _ELLIPSIS or readable(part) for part in parts)
    inside = latex.bracketed(text)
    if inside is not None and len(inside[1]) > 1:
        return all(readable(part) for part in inside[1])
    return kinds.words(text) is not None or any(
        symbolic.parse(one) is not None for one in (text, _number(text)[0], _value(text)[1])
    )


@lru_cache(maxsize=512)
def same(gold: str, answer: str) -> bool:
    """Whether two answers in `latex.plain` notation are the same."""
    if gold == answer:
        return True
    congruences = _CONGRUENCE.fullmatch(gold), _CONGRUENCE.fullmatch(answer)
    if any(congruences):
        return all(congruences) and _same_residues(*congruences)  # type: ignore[arg-type]
    dates = kinds.same_dates(gold, answer)  # before the comma of "March 15, 2021" makes a list
    if dates is not None:
        return dates
    cases = kinds.cases(gold), kinds.cases(answer)
    if any(cases):
        return all(cases) and _same_cases(*cases)  # type: ignore[arg-type]
    golds, answers = _alternatives(gold), _alternatives(answer)
    if len(golds) > 1 or len(answers) > 1:
        return _same_list(golds, answers)
    return _same_one(golds[0], answers[0])


def _same_one(gold: str, answer: str) -> bool:
    for rule in _RULES:
        verdict = rule(gold, answer)
        if verdict is not None:
            return verdict
    return _same_quantity(gold, answer) or symbolic.equal(gold, answer)


# --- several values ----------------------------------------------------------------------------------------


def _alternatives(text: str) -> list[str]:
    r"""The values that an answer lists: "1, 2", "x=1 or x=2", "\pm 3", "1 \pm \sqrt{2}"."""
    found: list[str] = []
    for part in latex.parts(text):
        if re.search(r"\\(?:pm|mp)(?![a-zA-Z])", part) and latex.bracketed(part) is None:
            for signs in (("+", "-"), ("-", "+")):
                both = re.sub(r"\\pm(?![a-zA-Z])", signs[0], part)
                found.append(re.sub(r"\\mp(?![a-zA-Z])", signs[1], both).lstrip("+ "))
        else:
            found.append(part)
    return found or [text]


def _same_list(golds: Sequence[str], answers: Sequence[str]) -> bool:
    for listed, single in ((golds, answers), (answers, golds)):
        inside = latex.bracketed(single[0]) if len(single) == 1 else None
        if inside is not None and len(inside[1]) > 1:  # brackets left out: 1,2 for (1,2) or {2,1}
            return _in_any_order(inside[1], listed) if inside[0] == "\\{" else _in_order(inside[1], listed)
    if len(golds) == 1 or len(answers) == 1:  # the same value several times: 1/2 = 0.5, -2 twice
        return all(same(one, other) for one in golds for other in answers)
    if _ELLIPSIS in golds:
        return _in_order(golds, answers)
    return _in_any_order(golds, answers)


def _in_order(golds: Sequence[str], answers: Sequence[str]) -> bool:
    return len(golds) == len(answers) and all(same(one, other) for one, other in zip(golds, answers, strict=True))


def _in_any_order(golds: Sequence[str], answers: Sequence[str]) -> bool:
    left = list(answers)
    for one in golds:
        found = next((place for place, other in enumerate(left) if same(one, other)), None)
        if found is None:
            return False
        del left[found]
    return not left


def _brackets(gold: str, answer: str) -> bool | None:
    """Tuples, intervals and sets: brackets and order count, but those of a point or vector of three may be any."""
    one, other = latex.bracketed(gold), latex.bracketed(answer)
    if one is None or other is None or max(len(one[1]), len(other[1])) < 2:
        return None
    if one[0] == other[0] == "\\{":
        return _in_any_order(_without_repeats(one[1]), _without_repeats(other[1]))
    alike = (one[0], one[2]) == (other[0], other[2]) or (len(one[1]) > 2 and "\\{" not in (one[0], other[0]))
    return alike and _in_order(one[1], other[1])


def _same_cases(golds: Sequence[tuple[str, str]], answers: Sequence[tuple[str, str]]) -> bool:
    """Functions by cases: the lines may stand in any order, and each has its value."""
    conditions = {condition: value for value, condition in answers}
    return len(golds) == len(answers) == len(conditions) and all(
        condition in conditions and same(value, conditions[condition]) for value, condition in golds
    )


def _without_repeats(parts: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for part in (one for entry in parts for one in _alternatives(entry)):
        if not any(same(part, other) for other in kept):
            kept.append(part)
    return kept


# --- what is not one expression ------------------------------------------------------------------------------


def _labels(gold: str, answer: str) -> bool | None:
    r"""Choices: the letter counts, (A) for A; what stands behind it as well if both have it: \text{(A)} 12."""
    one, other = kinds.label(gold), kinds.label(answer)
    if one is not None and other is not None:
        upright = "text" in gold + answer or "(" in gold + answer or one[0].upper() <= "F"
        letters = one[0].casefold() == other[0].casefold() if upright else one[0] == other[0]
        return letters and (not one[1] or not other[1] or same(one[1], other[1]))
    if one is not None and one[1]:
        return same(one[1], answer)
    return None


def _assignments(gold: str, answer: str) -> bool | None:
    r"""x = 5 is 5, and x \in [0, 1] is [0, 1]; what is computed in the answer is its result: 16 + 9 = 25.

    As a gold answer, 2x + z = 1 is an equation and not 1: there is no name on its left. Nor is there one in ab = 12.
    """
    (name, value), (other_name, other_value) = _value(gold), _value(answer)
    if name is None and other_name is None:
        return None
    if name is not None and other_name is not None:
        return same(value, other_value) if _compact(name) == _compact(other_name) else None
    if name is None:
        return same(gold, other_value)
    if not _no_relation(answer):
        return None
    if _NAME.fullmatch(name) and not _PRODUCT.fullmatch(_compact(name)):
        return same(value, answer)
    return False if re.search(r"[A-Za-z]", _COMMAND.sub("", name)) and not _DERIVATIVE.fullmatch(name) else None


def _value(text: str) -> tuple[str | None, str]:
    """What stands before the first and behind the last equals sign."""
    found = list(_EQUALS.finditer(text))
    if not found or "\\sum" in text[: found[-1].end()] or "\\begin" in text:
        return None, text
    name = text[: found[0].start()].strip()
    if len(re.findall(r"[(\[{]", name)) != len(re.findall(r"[)\]}]", name)):  # in brackets: {x: x = 1}
        return None, text
    return name, text[found[-1].end() :].strip()


def _no_relation(text: str) -> bool:
    return not re.search(r"[<>]|\\(?:le|ge|lt|gt|ne)(?![a-zA-Z])", text)


def _compact(text: str) -> str:
    return re.sub(r"[\s{}]", "", text)


def _same_residues(gold: re.Match[str], answer: re.Match[str]) -> bool:
    r"""x \equiv 8 \pmod 5 is x \equiv 3 \pmod 5; the modulus is a part of the answer."""
    if _compact(gold[1]) != _compact(answer[1]) or int(gold[3]) != int(answer[3]):
        return False
    modulus = int(gold[3])
    residues = []
    for match in (gold, answer):
        numbers = [symbolic.decimal(part) for part in _alternatives(match[2].strip())]
        if modulus == 0 or not all(number and number[1] == 0 for number in numbers):
            return same(gold[2].strip(), answer[2].strip())
        residues.append({number[0] % modulus for number in numbers if number})
    return residues[0] == residues[1]


# --- quantities ----------------------------------------------------------------------------------------------


def _same_quantity(gold: str, answer: str) -> bool:
    """Numbers with units and percents: a unit may be left out; 50% is 0.5, and 50 if that is at least 1."""
    (number, unit, percent), (other_number, other_unit, other_percent) = _number(gold), _number(answer)
    if (number, other_number) == (gold, answer):
        return False
    factor = units.factor(_measured(number, unit), _measured(other_number, other_unit))
    if factor is not None:  # 2.5 km are 2500 m
        return symbolic.equal(rf"({number}) \cdot {factor}", other_number)
    if units.contradict(unit, other_unit):
        return False
    if percent == other_percent:
        return same(number, other_number)
    share, plain = (number, other_number) if percent else (other_number, number)
    written = symbolic.decimal(share)
    whole = written is None or abs(written[0]) >= 1
    return (whole and symbolic.equal(share, plain)) or symbolic.equal(rf"\frac{{{share}}}{{100}}", plain)


def _measured(number: str, unit: str) -> str:
    r"""The unit; of an angle without one that is written with \pi radians."""
    return unit or ("rad" if "\\pi" in number else "")


def _number(text: str) -> tuple[str, str, bool]:
    """The answer without unit and percent sign, its unit, and whether it is in percent."""
    number, unit = units.without_unit(text)
    bare = number.removesuffix("\\%").strip()
    return bare, unit, bare != number


# In this order; each gives a verdict or None.
_RULES = (
    _labels,
    kinds.same_clocks,
    kinds.same_words,
    kinds.same_bases,
    kinds.same_ratios,
    _assignments,
    _brackets,
)
