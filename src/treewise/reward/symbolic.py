r"""Whether two expressions are equal: parsed by math-verify's parser, compared at points, else by math-verify.

    \frac{x^2-1}{x-1}, x+1  ──▶ sympy ──▶ equal at some points, to 30 digits ──▶ True
                                      ╰──▶ no points (relations, sets, sums) ──▶ math-verify

Import it only in the worker of `treewise.reward.math`: nothing here has a time limit.

math-verify compares the difference with 10⁻¹⁵ and decimals after six places, so 1/2004! equals 1/2006! there; it
writes symbols in small letters, so R equals r; of a formula that it can't parse it takes a number that it finds.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

import math_verify
import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # it warns that it has no time limit

_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_DECIMAL = re.compile(r"([-+]?) ?(\d*)\.?(\d*)")
_INSIDE = re.compile(r"(?<![\w.\\])(\d*)\.(\d+)(?![\w.]*\.)")
_TWO_NUMBERS = re.compile(r"(?<![\w.^_])\d+\.? \d")
_SUBSCRIPT = re.compile(r"_\s?(?:\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}|([A-Za-z0-9]))")
_TAKEN = re.compile(
    r"\\text\s?\{[^{}]*\}|(?P<taken>\\[Gg]amma(?![a-zA-Z])|[IT]|E(?=_))(?:_\{(?P<sub>[^{}]*)\})?|\\[A-Za-z]+|_\{[^{}]*\}"
)
_DIGITS, _AGREE = 40, 30  # of a number that is evaluated, and of two that count as equal
_PLACES = 6  # from here on a decimal fraction may stand for a number that it is a rounding of, as with math-verify
# Where expressions are compared: no two symbols get the same value, and no point is special (0, 1, integers).
_POINTS = tuple(sympy.Rational(n, d) for n, d in ((37, 23), (-29, 31), (53, 19), (7, 43), (-61, 17), (11, 13)))
_ENOUGH = 3  # points at which both expressions have a value


@lru_cache(maxsize=512)
def parse(text: str) -> Any:
    """The sympy object of an expression; None if it can't be parsed, or has no value (1/0)."""
    if _TWO_NUMBERS.search(text):  # 2 3 is no product
        return None
    try:
        tree = latex2sympy(
            normalize_latex(_prepared(text), config=_NORMALIZATION),
            is_real=True,
            convert_degrees=False,
            normalization_config=None,
            conversion_config=_CONVERSION,
        )
        if isinstance(tree, sympy.Basic):
            names = {one: sympy.Symbol(str(one), real=True) for one in tree.atoms(AppliedUndef)}  # f(x) is one name
            names |= {one: sympy.Symbol(str(one), real=True) for one in tree.atoms(sympy.Derivative)}  # not 0
            names |= {one: sympy.I for one in tree.free_symbols if one.name == "i"}
            tree = tree.xreplace(names)
            if tree.has(sympy.nan, sympy.zoo) or any(
                p.base.is_zero and p.exp.is_negative for p in tree.atoms(sympy.Pow)
            ):
                return None
    except Exception:  # of a generated parser, fed with whatever a model wrote
        return None
    return tree if isinstance(tree, sympy.Basic | sympy.MatrixBase) else None


def equal(gold: str, answer: str) -> bool:
    """Whether two expressions are equal. One that can't be parsed is equal to nothing."""
    literals = decimal(gold), decimal(answer)
    if all(literals):
        return _same_decimals(literals, None, None)
    one, other = parse(gold), parse(answer)
    if one is None or other is None:
        return False
    if any(literals) and _is_constant(one) and _is_constant(other):
        return _same_decimals(literals, one, other)
    return _same(one, other)


@lru_cache(maxsize=512)
def decimal(text: str) -> tuple[Fraction, int] | None:
    """Value and decimal places of a number that is written out, such as -0.25; None for everything else."""
    match = _DECIMAL.fullmatch(text)
    if match is None or not (match[2] or match[3]) or len(text) > 400:
        return None
    value = Fraction(int(match[2] + match[3] or 0), 10 ** len(match[3]))
    return (-value if match[1] == "-" else value), len(match[3])


def _same_decimals(literals: tuple[Any, Any], one: Any, other: Any) -> bool:
    """Two numbers of which at least one is written out: they are equal, or the one with fewer decimal places is the
    other one rounded or cut off, to at least six places and six digits: 0.333333 for 1/3."""
    if all(literals):
        (value, places), (exact, _) = sorted(literals, key=lambda literal: literal[1])
        if value == exact:
            return True
    else:
        (value, places), tree = (literals[0], other) if literals[0] else (literals[1], one)
        rational = sympy.Rational(value.numerator, value.denominator)
        if _same(rational, tree):
            return True
        number = sympy.N(tree, _DIGITS)
        if not number.is_Float or abs(number - rational) > 1:  # 10^8! has too many digits for what follows
            return False
        exact = Fraction(str(number))
    long = places >= _PLACES and abs(value) * 10**places >= 10 ** (_PLACES - 1)
    missing = (abs(exact) - abs(value)) * 10**places if value * exact > 0 else Fraction(1)
    return long and Fraction(-1, 2) <= missing < 1


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, sympy.MatrixBase) and isinstance(other, sympy.MatrixBase):
        return one.shape == other.shape and all(_same(a, b) for a, b in zip(one, other, strict=True))
    if _is_expression(one) and _is_expression(other):
        if one == other:
            return True
        found = (
            _same_constants(one, other) if _is_constant(one) and _is_constant(other) else _same_at_points(one, other)
        )
        if found is not None:
            return found
    elif _solutions(one) is not None and _solutions(one) == _solutions(other):
        return True
    return bool(math_verify.verify(one, other, timeout_seconds=None, raise_on_error=True))


def _same_constants(one: Any, other: Any) -> bool | None:
    values = [sympy.N(each, _DIGITS) for each in (one, other)]
    if not all(value.is_number and value.is_finite for value in values):
        return None
    # Where everything cancels, one bit is left.
    sizes = [0 if getattr(value, "_prec", 2) == 1 else abs(value) for value in values]
    if max(sizes) == 0:
        return True
    if abs(values[0] - values[1]) > max(sizes) * sympy.Rational(1, 10**_AGREE):
        return False
    magnitude = int(sympy.log(max(sizes), 10).evalf(5))
    if not _AGREE // 2 < magnitude < 100_000:
        return True
    exact = [sympy.N(each, magnitude + _DIGITS) for each in (one, other)]  # 7^77 + 1
    return bool(abs(exact[0] - exact[1]) * 10 ** (_DIGITS // 2) < 1)


def _same_at_points(one: Any, other: Any) -> bool | None:
    """Whether the values agree at all points; None where they say too little, as for sums with a symbolic end."""
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    agreed, doubtful = 0, False
    for turn in range(len(_POINTS)):
        point = {
            symbol: _POINTS[(turn + place) % len(_POINTS)] + sympy.Rational(place, 7)
            for place, symbol in enumerate(symbols)
        }
        values = [each.xreplace(point).evalf(_DIGITS) for each in (one, other)]
        if not all(value.is_number and value.is_finite and value.is_comparable is not None for value in values):
            continue
        if not all(value.as_real_imag()[0].is_Float or value.as_real_imag()[0].is_Rational for value in values):
            continue
        size = max(abs(value) for value in values)
        if abs(values[0] - values[1]) <= size * sympy.Rational(1, 10**_AGREE):
            agreed += 1
        elif all(value.is_real for value in values):
            return False
        else:  # roots of negative numbers have several values
            doubtful = True
    return True if agreed >= _ENOUGH and not doubtful else None


def _solutions(tree: Any) -> Any:
    """The real numbers that fulfil conditions on one symbol, else None: -1 < x < 1 is what |x| < 1 is."""
    conditions = getattr(tree, "_unsorted_args", (tree,))
    if not all(isinstance(one, Relational) and not isinstance(one, sympy.Eq) for one in conditions):
        return None
    if len(tree.free_symbols) != 1:
        return None
    try:
        return sympy.And(*conditions).as_set(), tree.free_symbols
    except Exception:  # sympy can't solve everything, and says so in several ways
        return None


def _is_expression(tree: Any) -> bool:
    return isinstance(tree, sympy.Expr) and not isinstance(tree, sympy.MatrixExpr)


def _is_constant(tree: Any) -> bool:
    return _is_expression(tree) and not tree.free_symbols


def _prepared(text: str) -> str:
    r"""With exact fractions for decimals, and under names that mean nothing to the parser: it takes I for the
    imaginary unit and γ for Euler's constant, drops the T of a transposed matrix, and can't read E_1."""
    text = _INSIDE.sub(lambda match: f"(\\frac{{{int(match[1] + match[2])}}}{{{10 ** len(match[2])}}})", text)
    text = _SUBSCRIPT.sub(_subscript, text)
    return _TAKEN.sub(_renamed, text)


def _renamed(match: re.Match[str]) -> str:
    if not match["taken"]:
        return match.group()
    return rf"\Xi_{{{re.sub('[^A-Za-z0-9]', '', match['taken'] + (match['sub'] or ''))}}}"


def _subscript(match: re.Match[str]) -> str:
    inside = match[1] or match[2]
    if re.search(r"=|\\to(?![a-zA-Z])", inside):  # of a sum or a limit
        return match.group()
    return "_{" + re.sub(r"\\text|[^A-Za-z0-9+-]", "", inside) + "}"
