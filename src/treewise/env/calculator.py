"""The tool `calculator`: arithmetic, read from the expression's syntax tree, in bounded time and space."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

_LONGEST = 500  # characters of an expression
_LARGEST = 4096  # bits of an integer
_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_UNARY: dict[type, Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_NAMES = {"pi": math.pi, "e": math.e}


def _rounded(value: float, digits: int = 0) -> int | float:
    if abs(digits) > _LONGEST:  # of an integer it would take as long as it has digits
        raise ValueError(f"round can't take {digits} digits")
    return round(value, digits) if digits else round(value)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs, "round": _rounded, "min": min, "max": max, "floor": math.floor, "ceil": math.ceil, "sqrt": math.sqrt,
    "exp": math.exp, "log": math.log, "log2": math.log2, "log10": math.log10, "sin": math.sin, "cos": math.cos,
    "tan": math.tan, "asin": math.asin, "acos": math.acos, "atan": math.atan, "gcd": math.gcd, "lcm": math.lcm,
}  # fmt: skip


def calculator(expression: str) -> str:
    """
    Work out an arithmetic expression, with + - * / // % ** and parentheses, and functions such as sqrt, log, sin, gcd.

    Args:
        expression: The expression, such as "2 * (3 + 4) ** 2".
    """
    if not isinstance(expression, str):
        raise ValueError("the expression must be text")
    if len(expression) > _LONGEST:
        raise ValueError(f"the expression has more than {_LONGEST} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError(f"this is no arithmetic expression: {error}") from None
    return str(_value(tree.body))


def _value(node: ast.expr) -> int | float:
    """Raises ValueError, and what arithmetic itself raises."""
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _UNARY:
            return _bounded(_UNARY[type(sign)](_value(operand)))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _BINARY:
            first, second = _value(left), _value(right)
            if isinstance(sign, ast.Pow) and isinstance(first, int) and isinstance(second, int):
                _check_power(first, second)
            return _bounded(_BINARY[type(sign)](first, second))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name](*map(_value, arguments)))
    raise ValueError(f"this is no arithmetic: {ast.unparse(node)[:80]}")


def _check_power(base: int, exponent: int) -> None:
    """Before it is worked out: that could take for ever."""
    if abs(base) > 1 and base.bit_length() * exponent > 2 * _LARGEST:
        raise ValueError("the result is too large")


def _bounded(value: Any) -> int | float:
    if isinstance(value, complex):
        raise ValueError("the result is no real number")
    if isinstance(value, int) and value.bit_length() > _LARGEST:
        raise ValueError("the result is too large")
    return value  # type: ignore[no-any-return]
