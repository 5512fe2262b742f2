r"""Answers that are no expression: words, choices, times of day, numerals with a base, ratios.

A reader (`words`, `label`, `clock`, `base`) gives None for what is not of its kind; a rule (`same_…`) gives None
where another rule must decide.
"""

from __future__ import annotations

import re

from treewise.reward import latex, symbolic

_TEXT = re.compile(r"\\text\{([^{}]*)\}")
_MONTHS = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november"),
    "december",
)
_BASE = re.compile(
    r"\(?(?:\\text\{)?([0-9A-Fa-f]{1,80})\}?\)?"
    r"(?:_ ?\{? ?\(?(?:\\text\{)? ?(\d{1,2}|[a-z]+) ?\}?\)? ?\}?"
    r"|,? ?(?:\\text\{)? ?\(?(?:in )?base ?(\d{1,2}|[a-z]+) ?\)?\}?)"
)
_WORDS = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}


def words(text: str) -> str | None:
    r"""The letters of an answer that is only words, folded: \text{Does not exist} is "doesnotexist"; else None."""
    if not re.search(r"[^\W\d_]", text) or re.search(r"[\\^_=<>+*/{}|\d-]", _TEXT.sub(" ", text)):
        return None
    inside = re.sub(r"(?i)\b(?:an?|the)\b(?= )", " ", _TEXT.sub(r" \1 ", text))
    return "".join(character for character in inside.casefold() if character.isalpha())


def base(text: str) -> tuple[str, int] | None:
    r"""Digits and base of a numeral such as 204_5, 204_{\text{five}} or 204 (base 5); None for everything else."""
    match = _BASE.fullmatch(" ".join(text.split()))
    if match is None or match.group(1)[0].islower():
        return None
    digits, named = match.group(1).upper(), match.group(2) or match.group(3)
    number = int(named) if named.isdigit() else _WORDS.get(named, 0)
    allowed = 2 <= number <= 36 and all(int(digit, 16) < number for digit in digits)
    return (digits.lstrip("0"), number) if allowed else None


def clock(text: str) -> tuple[int, int, str] | None:
    """Hour, minute and "am", "pm" or "" of a time of day; None for everything else, such as the ratio 2:3."""
    inside = " ".join(_TEXT.sub(r" \1 ", text).casefold().split())
    match = re.fullmatch(r"(\d{1,2}) ?: ?([0-5]\d) ?(?:([ap])\.? ?m\.?)?|(\d{1,2}) ?([ap])\.? ?m\.?", inside)
    if match is None:
        return None
    hour, minute, half = match[1] or match[4], match[2] or "0", match[3] or match[5] or ""
    return int(hour), int(minute), half and half + "m"


def date(text: str) -> tuple[int, int, int | None] | None:
    """Month, day and year of a date such as "July 4", "4th of July", "March 15, 2021"; None for everything else."""
    inside = re.sub(r"[,.]|\b(?:the|of)\b", " ", _TEXT.sub(r" \1 ", text).casefold())
    match = re.fullmatch(r" *(?:([a-z]{3,9}) +)?(\d{1,2})(?:st|nd|rd|th)?(?: +([a-z]{3,9}))?(?: +(\d{4}))? *", inside)
    if match is None or bool(match[1]) == bool(match[3]):
        return None
    name = match[1] or match[3]
    months = [n for n, month in enumerate(_MONTHS, start=1) if name == month or name in (month[:3], month[:4])]
    return (months[0], int(match[2]), int(match[4]) if match[4] else None) if months else None


def cases(text: str) -> list[tuple[str, str]] | None:
    r"""Value and condition of each line of a function by cases, \begin{cases} … \end{cases}; else None."""
    match = re.fullmatch(r"(?:[^=]{0,20}=)? ?\\begin\{cases\}(.+)\\end\{cases\}", text.strip(), re.S)
    if match is None:
        return None
    lines = [line.split("&") for line in match[1].split("\\\\") if line.strip()]
    if any(len(line) != 2 for line in lines):
        return None
    return [(value.strip(" ,"), _condition(condition)) for value, condition in lines]


def _condition(text: str) -> str:
    inside = re.sub(
        r"\b(?:if|when|for|otherwise|else)\b", lambda m: "else" if m[0] in ("otherwise", "else") else "", text
    )
    return re.sub(r"[\s,{}]|\\text", "", inside)


def label(text: str) -> tuple[str, str] | None:
    r"""Letter and rest of a choice: "(A)", "\text{A}", "\text{(A)} 12", "B. 7"; None for everything else."""
    inside = re.sub(r"(?i)^(?:option|choice|answer) (?=\(?[a-z]\b)", "", _TEXT.sub(r"\1", text).strip())
    match = re.fullmatch(r"\(?([A-Za-z])\)?\.?", inside) or re.fullmatch(r"(?:\(([A-Z])\)|([A-Z])[.):]) ?(.+)", inside)
    if match is None:
        return None
    groups = [group or "" for group in match.groups()]
    return (groups[0], "") if len(groups) == 1 else (groups[0] or groups[1], groups[2])


def same_words(gold: str, answer: str) -> bool | None:
    r"""Words are letters in order, not a product of symbols: \text{Even} is even; east is not seat."""
    one, other = words(gold), words(answer)
    if one is None and other is None:
        return None
    word = is_word(gold) or is_word(answer)
    if one == other and (word or len(one or "") > 2):
        return True
    return False if word else None


def is_word(text: str) -> bool:
    r"""Whether an answer is words and no product of symbols: it is in upright type, or has four letters in a row."""
    folded = words(text)
    return folded is not None and len(folded) > 1 and ("\\text" in text or bool(re.search("[A-Za-z]{4}", text)))


def same_clocks(gold: str, answer: str) -> bool | None:
    """Times of day are no quotients: 6:30 is not 3:15. am and pm may be left out, but not be the other one."""
    one, other = clock(gold), clock(answer)
    if one is None or other is None:
        return None
    return one[:2] == other[:2] and ("" in (one[2], other[2]) or one[2] == other[2])


def same_dates(gold: str, answer: str) -> bool | None:
    """Dates, in any order of day, month and year."""
    one, other = date(gold), date(answer)
    return None if one is None or other is None else one == other


def same_bases(gold: str, answer: str) -> bool | None:
    """Numerals: digits and base are the same; a base that only one of them states is the other's, too."""
    one, other = base(gold), base(answer)
    if one is None and other is None:
        return None
    if one is not None and other is not None:
        return one == other
    stated, text = (one, answer) if one is not None else (other, gold)
    assert stated is not None, "one of the two is a numeral with its base"
    return re.sub(r"[\s()]", "", text).upper().lstrip("0") == stated[0]


def same_ratios(gold: str, answer: str) -> bool | None:
    """Ratios are equal up to a factor: 4:6 is 2:3, and 2/3."""
    if ":" in gold or ":" in answer:  # 3 to 4
        gold, answer = (re.sub(r"(?<=\d) ?(?:\\text\{ ?)?to(?: ?\})? ?(?=\d)", ":", text) for text in (gold, answer))
    one, other = latex.parts(gold, ":"), latex.parts(answer, ":")
    if "=" in gold + answer or len(one) == len(other) == 1:
        return None
    if len(one) == len(other):
        return all(
            symbolic.equal(rf"({a}) \cdot ({other[0]})", rf"({one[0]}) \cdot ({b})")
            for a, b in zip(one, other, strict=True)
        ) and all(symbolic.parse(part) is not None for part in (*one, *other))
    if max(len(one), len(other)) > 2:
        return False
    quotients = [rf"\frac{{{parts[0]}}}{{{parts[1]}}}" if len(parts) == 2 else parts[0] for parts in (one, other)]
    return symbolic.equal(*quotients)
