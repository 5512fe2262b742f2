r"""Units behind an answer: 10\text{ cm}, 90^{\circ}, 5 miles per hour.

A unit may be left out, but not be another one: 5 km is right for 5, and wrong for 5 m. Single letters are units in
upright type only: 6m is six times m, 6\text{ m} are metres.
"""

from __future__ import annotations

import re

# Names of one unit; the first stands for all of them. Anything else in upright type counts as a unit of its own.
_NAMES = """
mm millimeter millimetre | cm centimeter centimetre | m meter metre | km kilometer kilometre | in inch inches
ft foot feet | yd yard | mi mile | mg milligram | g gram | kg kilogram | lb pound lbs | oz ounce | s sec second
min minute | h hr hour | day | week | month | yr year | cent | dollar | degree deg | rad radian
ml milliliter millilitre | l liter litre | mph | kmh kph | hz hertz | n newton | j joule | w watt | v volt
pa pascal | k kelvin | mol mole
""".replace("\n", " | ")
_CANONICAL = {name: group.split()[0] for group in _NAMES.split("|") if group.strip() for name in group.split()}
# How many of the first unit of a line one of each is. What isn't exact (a month in days) is not here.
_SIZES = (
    {
        "mm": (1, 1),
        "cm": (10, 1),
        "m": (1000, 1),
        "km": (10**6, 1),
        "in": (254, 10),
        "ft": (3048, 10),
        "yd": (9144, 10),
    },
    {"in": (1, 1), "ft": (12, 1), "yd": (36, 1), "mi": (63360, 1)},
    {"mg": (1, 1), "g": (1000, 1), "kg": (10**6, 1)},
    {"oz": (1, 1), "lb": (16, 1)},
    {"s": (1, 1), "min": (60, 1), "h": (3600, 1), "day": (86400, 1), "week": (604800, 1)},
    {"ml": (1, 1), "l": (1000, 1)},
    {"cent": (1, 1), "dollar": (100, 1)},
)
_SIZES_POWER = re.compile(r"([a-z]+)([1-3]?)")
_PLAIN = sorted((name for name in _CANONICAL if len(name) > 1 and name != "in"), key=len, reverse=True)
# Words of a unit that say nothing by themselves.
_FILLERS = "square|cubic|sq|cu|per|of|a|an|the|units?"
_POWER = r"(?:\s?\^\s?\{?\s?-?\d\s?\}?)?"
_UPRIGHT = rf"\\text\{{[^{{}}]*[A-Za-z][^{{}}]*\}}{_POWER}"
_WORD = rf"(?<![\\A-Za-z])(?:(?:{'|'.join(_PLAIN)})s?|{_FILLERS})(?![A-Za-z]){_POWER}"
_ANY_WORD = r"(?<= )(?<!\\)[A-Za-z]{4,20}(?![A-Za-z])"  # 5 apples
_UNIT = re.compile(rf"(?:{_UPRIGHT}|{_WORD}|{_ANY_WORD}|\^\{{\\circ\}}\s?[CF]?|[/.]|\\cdot|\s)+$")
_NUMBER_BEFORE = re.compile(r"[\d}\)]$|\\pi$")


def without_unit(text: str) -> tuple[str, str]:
    """The answer without its unit, and the unit's name, "" if there is none."""
    match = _UNIT.search(text)
    if match is None or not re.search("[A-Za-z]", match.group().replace("\\cdot", "")):
        return text, ""
    before = text[: match.start()].rstrip()
    if not _NUMBER_BEFORE.search(before):
        return text, ""
    return before, _canonical(match.group())


def _canonical(unit: str) -> str:
    if "circ" in unit:
        return "degree"
    powers = re.sub(r"[^\d-]", "", unit)
    names = [name.casefold() for name in re.findall(r"[A-Za-z]+", unit.replace("\\text", " ").replace("\\cdot", " "))]
    kept = [name for name in names if name not in ("of", "a", "an", "the", "unit", "units", "per")]
    for long, power in (("square", "2"), ("sq", "2"), ("cubic", "3"), ("cu", "3")):
        if long in kept:
            kept.remove(long)
            powers += power
    singular = [_CANONICAL.get(name) or _CANONICAL.get(name.removesuffix("s")) or "" for name in kept]
    # An unknown word may be any unit: it can't contradict.
    return " ".join(singular) + powers if all(singular) and singular else ""


def factor(one: str, other: str) -> str | None:
    r"""What a number in the unit `one` is multiplied by to be in `other`, as LaTeX; None where they are the same, or
    can't be converted."""
    if one == other:
        return None
    angles = {("degree", "rad"): r"\frac{\pi}{180}", ("rad", "degree"): r"\frac{180}{\pi}"}
    if (one, other) in angles:
        return angles[one, other]
    first, second = _SIZES_POWER.fullmatch(one), _SIZES_POWER.fullmatch(other)
    if first is None or second is None or first[2] != second[2]:
        return None
    for sizes in _SIZES:
        if first[1] in sizes and second[1] in sizes:
            (above, under), (other_above, other_under) = sizes[first[1]], sizes[second[1]]
            power = int(first[2] or 1)
            return rf"\frac{{{(above * other_under) ** power}}}{{{(under * other_above) ** power}}}"
    return None


def contradict(one: str, other: str) -> bool:
    """Whether both are known units and not the same."""
    return bool(one and other) and one != other
