r"""Ways to write a gold answer, by rules for its type. Each keeps the meaning; none looks at how answers are compared.

1/2  ──▶  \frac{1}{2}, \dfrac{1}{2}, \tfrac12, 0.5, \frac{2}{4}, 1 / 2, …
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

_NUMBER = re.compile(r"[-+]?\d*\.?\d+|[-+]?\d+\.")
_SCIENTIFIC = re.compile(r"(-?\d+(?:\.\d+)?)e(-?\d+)")
_FRACTION = re.compile(r"(-?)(?:\\[dt]?frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d+))|(\d+)/(\d+))")
_BASE = re.compile(r"(\d+)_\{?(\d)\}?")
_DEGREES = re.compile(r"(-?[\d.]+)\s*(?:\^\\circ|\^\{\\circ\})")
_NAME = re.compile(r"\\text\{\(?([A-Za-z]+)\)?\}")
_EQUATION = re.compile(r"([a-zA-Z](?:_\{?\w+\}?)?|[a-zA-Z]\([a-z]\))\s*=\s*([^=]+)")
_PAIRED = re.compile(r"[(\[].*[)\]]", re.S)


def split(text: str) -> list[str]:
    """The parts between commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in [*parts, text[start:]]]


def notations(gold: str) -> list[str]:
    """The answer in other notations, without those that are equal."""
    return list(dict.fromkeys(form for form in _notations(gold.strip()) if form))


def _notations(gold: str) -> Iterator[str]:
    yield gold
    plain = gold.replace(r"\left", "").replace(r"\right", "") if r"\left" in gold else gold
    yield plain
    yield gold.replace(r"\frac", r"\dfrac").replace(r"\ddfrac", r"\dfrac").replace(r"\ttfrac", r"\tfrac")
    yield gold.replace(r"\dfrac", r"\frac").replace(r"\frac", r"\tfrac")
    yield re.sub(r"\s*([-+])\s+", r"\1", gold)
    yield re.sub(r"(?<![{(\[,=^_e ])(?<!\\)([-+])(?=[^ ])", r" \1 ", gold) if "e" not in gold else gold
    bare = gold.replace(r"\,", "").replace(r"\!", "").replace(" ", "")
    if re.fullmatch(r"(?:\\\$)?\d{1,3}(?:,\d{3})+", bare):  # 58,500
        yield from (bare, bare.replace(",", "{,}"), bare.replace(",", ""), bare.replace(",", ",\\!"))
        gold = bare = bare.replace(",", "")
        plain = bare
    if _NUMBER.fullmatch(bare):
        yield from _number(bare)
    elif match := _SCIENTIFIC.fullmatch(gold):
        yield from _scientific(*match.groups())
    elif match := _FRACTION.fullmatch(gold):
        sign, *parts = match.groups()
        top, bottom = [part for part in parts if part]
        yield from _fraction(sign, int(top), int(bottom))
    elif match := _BASE.fullmatch(gold):
        digits, base = match.groups()
        yield from (f"{digits}_{base}", f"{digits}_{{{base}}}", f"({digits})_{base}", f"{digits}_{{({base})}}")
        yield from (f"{digits} \\text{{ (base {base})}}", f"{digits}_{{\\text{{{_WORDS[int(base)]}}}}}")
    elif match := _DEGREES.fullmatch(gold):
        yield from (f"{match[1]}^\\circ", f"{match[1]}^{{\\circ}}", f"{match[1]}°", f"{match[1]}\\text{{ degrees}}")
        yield from (f"{match[1]}\\degree", match[1])
    elif match := _NAME.fullmatch(gold):
        word = match[1]
        yield from (word, f"\\textbf{{{word}}}", f"\\mathrm{{{word}}}", f"\\text{{{word}}}", f"\\text{{{word} }}")
        if len(word) == 1:
            yield from (f"({word})", f"\\textbf{{({word})}}", f"\\text{{({word})}}")
        else:
            yield from (word.lower(), word.capitalize())
    elif "pmatrix" in gold:
        yield from (gold.replace("pmatrix", "bmatrix"), re.sub(r"\s*(\\\\|&)\s*", r"\1", gold))
        yield re.sub(r"(-?)(\d+)/(\d+)", r"\1\\frac{\2}{\3}", gold)
        yield "\\left" + gold.replace("pmatrix", "matrix").replace(r"\begin", r"(\begin") + r"\right)"
    elif match := _EQUATION.fullmatch(gold):
        yield from (f"{match[1]} = {match[2]}", f"{match[1]}={match[2].strip()}")
        if "(" not in match[1] or len(split(match[2])) == 1:
            yield match[2]
    elif len(parts := split(plain)) > 1:
        yield from (", ".join(parts), ",".join(parts), ", ".join(reversed(parts)))
        yield from (f"{', '.join(parts[:-1])} and {parts[-1]}", f"{', '.join(parts[:-1])}\\text{{ and }}{parts[-1]}")
        yield from (f"\\{{{', '.join(parts)}\\}}", f"\\left\\{{{', '.join(parts)}\\right\\}}")
        yield f"${'$, $'.join(parts)}$"
    elif _PAIRED.fullmatch(plain) and "cup" not in plain and len(inner := split(plain[1:-1])) > 1:
        yield from (plain[0] + ",".join(inner) + plain[-1], plain[0] + " , ".join(inner) + plain[-1])
        yield f"\\left{plain[0]}{', '.join(inner)}\\right{plain[-1]}"
        yield f"\\big{plain[0]} {', '.join(inner)} \\big{plain[-1]}"
    if "\\sqrt" in gold:
        yield re.sub(r"\\sqrt\{(\d)\}", r"\\sqrt\1", gold)
        yield re.sub(r"(\d)\s*\\sqrt", r"\1 \\cdot \\sqrt", gold)
        yield re.sub(r"\\sqrt(\d)", r"\\sqrt{\1}", gold)
        yield re.sub(r"(\d)\s*\\sqrt", r"\1\\,\\sqrt", gold)
    if "\\pi" in gold:
        yield re.sub(r"(\d)\s*\\pi", r"\1 \\cdot \\pi", gold)
        yield re.sub(r"(\d)\s*\\pi", r"\1\\,\\pi", gold)
    if r"\cup" in gold:
        yield gold.replace(r"\cup", r" \cup ")
        first, second = gold.split(r"\cup")
        yield f"{second} \\cup {first}"
    if r" \pm " in gold and re.fullmatch(r"[\d\\sqrt{} ]+ \\pm [\d\\sqrt{} ]+", gold):
        left, right = gold.split(r" \pm ")
        yield f"{left} + {right}, {left} - {right}"
        yield f"{left} - {right} \\text{{ or }} {left} + {right}"
    if "\\$" in gold:
        yield from (gold.replace("\\$", ""), gold.replace("\\$", "") + "\\text{ dollars}", gold.replace("\\$", "$"))
    if "%" in gold:
        yield from (
            gold.replace("\\%", "%"),
            gold.replace("%", "\\%").replace("\\\\", "\\"),
            re.sub(r"\s*\\?%", " percent", gold),
        )


_WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight", 9: "nine"}


def _number(text: str) -> Iterator[str]:
    value = Fraction(text)
    sign = "-" if value < 0 else ""
    text = text.lstrip("+-")
    whole, dot, decimals = text.partition(".")
    yield from (sign + (whole or "0") + dot + decimals, f"{sign}{whole or '0'}.{decimals}0")
    yield f"\\frac{{{2 * value.numerator}}}{{{2 * value.denominator}}}"
    yield f"{value.numerator}/{value.denominator}" if value.denominator > 1 else f"{value.numerator}.0"
    yield f"{{{sign}{text}}}"
    yield f"{sign}{text}\\,"
    if value.denominator == 1:
        yield f"\\dfrac{{{3 * value.numerator}}}{{3}}"
        yield f"{3 * value.numerator}/3"
        if abs(value) >= 1000:
            grouped = f"{value.numerator:,}"
            yield from (grouped, grouped.replace(",", "{,}"), grouped.replace(",", "\\,"), grouped.replace(",", ",\\!"))
    if abs(value) >= 10 or 0 < abs(value) < 1:
        mantissa, exponent = f"{float(value):.12e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".")
        if Fraction(mantissa) * Fraction(10) ** int(exponent) == value:
            yield f"{mantissa} \\times 10^{{{int(exponent)}}}"
            yield f"{mantissa} \\cdot 10^{{{int(exponent)}}}"


def _scientific(mantissa: str, exponent: str) -> Iterator[str]:
    power = int(exponent)
    for sign in (r"\times", r"\cdot", "×"):
        yield f"{mantissa} {sign} 10^{{{power}}}"
    yield f"{mantissa}\\times10^{{{power}}}"
    yield f"{mantissa}E{power}"
    yield f"{float(mantissa) * 10:g} \\times 10^{{{power - 1}}}"
    if "." not in mantissa:
        yield f"{mantissa}.0 \\times 10^{{{power}}}"
    if mantissa == "1":
        yield f"10^{{{power}}}"
    value = Fraction(mantissa) * Fraction(10) ** power
    if 1 <= value < 10**9 and value.denominator == 1:
        yield from (str(value), f"{int(value):,}")
    if Fraction(1, 10**6) < value < 1:
        yield f"{float(value):.12f}".rstrip("0")


def _fraction(sign: str, top: int, bottom: int) -> Iterator[str]:
    yield from (f"{sign}{top}/{bottom}", f"{sign}\\frac{{{top}}}{{{bottom}}}", f"\\frac{{{sign}{top}}}{{{bottom}}}")
    yield from (
        f"{sign}\\dfrac{{{top}}}{{{bottom}}}",
        f"{sign} \\frac {{{top}}} {{{bottom}}}",
        f"{sign}{top} / {bottom}",
    )
    yield f"{sign}\\frac{{{3 * top}}}{{{3 * bottom}}}"
    yield f"{sign}\\tfrac{{{top}}}{{{bottom}}}"
    yield f"{sign}{top} \\div {bottom}"
    if sign:
        yield f"\\frac{{{top}}}{{-{bottom}}}"
    scaled = Fraction(top, bottom)
    rest = scaled.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    if rest == 1:
        yield sign + format(float(scaled), ".12f").rstrip("0").rstrip(".")
    if top > bottom and not sign and top % bottom:
        yield f"{top // bottom}\\frac{{{top % bottom}}}{{{bottom}}}"


FRAMES = (
    "We find that the answer is $\\boxed{%s}$.",
    "\\boxed{%s}",
    "First I thought $\\boxed{-987}$, but that is wrong.\n\\[\n\\boxed{%s}\n\\]",
    "Thus, **the final answer is:** $\\boxed{ %s }$",
    "Therefore $$x=\\boxed{\\displaystyle %s}.$$",
    "Hence \\(\\boxed{%s}\\), as was to be shown.",
    "<think>\nMaybe \\boxed{-987}?\n</think>\n\nThe result is\n\n$$\\boxed{%s}$$",
    "So $\\boxed{%s}$ is what we were looking for.",
    "The final answer is \\boxed{%s.}",
    "The result: \\boxed{%s}\n\nI hope it is correct.",
)


def replies(gold: str) -> list[str]:
    """Ten replies or more that are right: every notation, and every way to state it, in turn."""
    if "$" in gold.replace("\\$", ""):  # words and formulas
        return [f"It is \\boxed{{{gold}}}", f"The answer is:\n\n\\boxed{{{gold}}}\n", f"\\boxed{{ {gold} }}"]
    forms = notations(gold)
    number = max(len(forms), len(FRAMES))
    return [FRAMES[at % len(FRAMES)].replace("%s", forms[at % len(forms)]) for at in range(number)]


def wrong_replies(gold: str, problem: str) -> list[str]:
    """Replies that are wrong, though the gold answer stands in most of them."""
    return [
        "",
        "  \n",
        problem,
        f"{problem}\n\nPlease reason step by step, and put your final answer within \\boxed{{}}.",
        "\\boxed{987654321}",
        f"\\boxed{{{gold}, 987654321}}",
        f"\\boxed{{0, 1, 2, 3, 987, {gold}}}",
        f"\\boxed{{987654321 \\text{{ or }} {gold}}}",
        f"\\boxed{{{gold} \\text{{ or maybe }} 55555}}",
        f"\\boxed{{{gold}}} or \\boxed{{-17.5}}",
        f"\\boxed{{{gold}}}. Wait, no. It is \\boxed{{987654321}}.",
        f"\\boxed{{{gold}}} and then \\boxed{{}}",
        f"\\boxed{{{gold}}} and then \\boxed{{98765",
        f"\\boxed{{987654321}} or {gold}",
        f"It could be $98765$ or $4321$ or ${gold}$.",
        f"Maybe $98765$, maybe $4321$, maybe ${gold}$.",
        f"I see that $98765$ is possible. Also $4321$. Also ${gold}$",
    ]
