"""The tests of a programming problem, in the forms that data sets have.

    columns of the data                                                       as in
    tests: [{"input": "1 2\\n", "output": "3\\n"}, …]                           LiveCodeBench
    input_output or answer: {"inputs": […], "outputs": […], "fn_name"?: …}     APPS, TACO, verl
    test_list: ["assert f(1) == 2", …], test_setup_code, test_imports         MBPP
    test: "def check(candidate): …", entry_point: "f", and the prompt         HumanEval

`tests`, `input_output` and `answer` take each of the first two, and a list of assert statements; a column may also hold
JSON text.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from treewise.types import Problem

_COLUMNS = ("test_list", "tests", "input_output")
_INTEGER = re.compile(r"[+-]?\d+")


@dataclass(frozen=True, slots=True)
class Case:
    """Standard input and what must be printed; or code that raises if the program is wrong, and None."""

    text: str
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Suite:
    """All tests of a problem.

    Attributes:
        setup: code that stands before every case that is code.
        stem: the beginning of the program, which the prompt has given.
        entry: the name of the function that code tests, where the data says it.
    """

    cases: tuple[Case, ...]
    setup: str = ""
    stem: str = ""
    entry: str = ""

    @property
    def imports(self) -> str:
        """What of the set-up the program may use, too."""
        return "\n".join(line for line in self.setup.splitlines() if re.match(r"(import|from) ", line))


def read_suite(problem: Problem) -> Suite:
    """The tests of a problem. Raises ValueError for none, and for such as can't be used."""
    info = problem.info
    try:
        if info.get("test") is not None and info.get("entry_point") is not None:
            return _function(info["test"], info["entry_point"], problem)
        given = {name: info[name] for name in _COLUMNS if info.get(name) is not None}
        if not given and problem.answer is not None:
            given = {"answer": problem.answer}
        if not given:
            raise ValueError(f"it has no column {', '.join(_COLUMNS)}, no answer, and not both test and entry_point")
        column, value = next(iter(given.items()))
        setup = "\n".join([*_texts(info.get("test_imports")), *_texts(info.get("test_setup_code"))])
        value = _decoded(value, column)
        cases = _cases(value, column)
        if setup and cases[0].output is None:
            _parse(setup, "test_setup_code")
        entry = value.get("fn_name") if isinstance(value, Mapping) else None
        return Suite(tuple(cases), setup, entry=entry or "")
    except ValueError as error:
        raise ValueError(f"the tests of problem {problem.id!r} can't be used: {error}") from None


def _decoded(value: Any, column: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError(f"{column} is neither a list nor JSON: {value!r:.60}") from None


def _cases(value: Any, column: str) -> list[Case]:
    name = None
    if isinstance(value, Mapping):
        inputs, outputs, name = value.get("inputs"), value.get("outputs"), value.get("fn_name")
        if not (_is_list(inputs) and _is_list(outputs) and len(inputs) == len(outputs)):
            raise ValueError(f"{column} needs inputs and outputs, two lists of one length")
        tests: list[Any] = list(zip(inputs, outputs, strict=True))
    elif _is_list(value) and all(isinstance(one, Mapping) and {"input", "output"} <= one.keys() for one in value):
        if other := next((one for one in value if one.get("testtype", "stdin") != "stdin"), None):
            raise ValueError(
                f"{column} has tests of the type {other['testtype']!r}: give those that call a function as "
                "{'inputs', 'outputs', 'fn_name'}"
            )
        tests = [(one["input"], one["output"]) for one in value]
    elif _is_list(value) and all(isinstance(one, str) for one in value):
        tests = list(value)
    else:
        raise ValueError(
            f"{column} must hold assert statements, {{'input', 'output'}} pairs, or inputs and outputs: {value!r:.60}"
        )
    if not tests:
        raise ValueError(f"{column} is empty")
    return [_case(test, name, f"{column}, test {number}") for number, test in enumerate(tests, start=1)]


def _case(test: Any, name: Any, where: str) -> Case:
    if isinstance(test, str):
        _parse(test, where)
        return Case(test)
    if name is not None:
        return _call(name, *test, where=where)
    given, output = ("\n".join(one) if _is_list(one) and all(isinstance(s, str) for s in one) else one for one in test)
    if not isinstance(given, str) or not isinstance(output, str):
        raise ValueError(f"{where}: input and output must be text: {test!r:.80}")
    return Case(given, output)


def _call(name: Any, given: Any, expected: Any, *, where: str) -> Case:
    """A case that calls a function, or a method of a class Solution, with a list of arguments."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"{where}: fn_name is no name of a function: {name!r:.60}")
    if isinstance(given, str):  # an argument a line
        given, expected = [_decoded(line, where) for line in given.splitlines()], _decoded(expected, where)
    if not _is_list(given):
        raise ValueError(f"{where}: the input of {name} must be a list of arguments: {given!r:.60}")
    right = [expected, *expected] if _is_list(expected) and len(expected) == 1 else [expected]  # some data wrap it
    return Case(
        f"try:\n    called = Solution().{name}\nexcept NameError:\n    called = {name}\n"
        f"found = called(*{list(given)!r})\n"
        f"assert (list(found) if isinstance(found, tuple) else found) in {right!r}"
    )


def _function(test: Any, name: Any, problem: Problem) -> Suite:
    """HumanEval: `check` calls the function; the prompt begins it."""
    if not isinstance(test, str) or "def check(" not in test:
        raise ValueError(f"test defines no function check: {test!r:.60}")
    _parse(test, "test")
    if not isinstance(name, str):
        raise ValueError(f"entry_point is no name: {name!r:.60}")
    _parse(name, "entry_point")
    stem = problem.info.get("prompt") or (problem.prompt if isinstance(problem.prompt, str) else "")
    begins = isinstance(stem, str) and re.search(rf"^(async )?def {re.escape(name)}\b", stem, flags=re.M)
    return Suite((Case(f"{test}\n\ncheck({name})"),), stem=str(stem) if begins else "", entry=name)


def _parse(text: str, where: str) -> None:
    try:
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{where} is no Python: {error}: {text!r:.80}") from None


def _is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _texts(value: Any) -> list[str]:
    found = [] if value is None else [value] if isinstance(value, str) else list(value)
    if not all(isinstance(one, str) for one in found):
        raise ValueError(f"test_imports and test_setup_code must be text: {value!r:.60}")
    return found


def same_output(found: str, expected: str, *, tolerance: float) -> bool:
    """Whether two outputs have the same words in the same lines; blank lines don't count. Where a number with a
    fraction is expected, one within `tolerance` (relative, or absolute below 1) is the same."""
    lines = [[line.split() for line in text.splitlines() if line.strip()] for text in (found, expected)]
    return [len(words) for words in lines[0]] == [len(words) for words in lines[1]] and all(
        mine == theirs or _close(mine, theirs, tolerance)
        for pair in zip(*lines, strict=True)
        for mine, theirs in zip(*pair, strict=True)
    )


def _close(found: str, expected: str, tolerance: float) -> bool:
    if not tolerance or _INTEGER.fullmatch(expected):
        return False
    try:
        mine, theirs = float(found), float(expected)
    except ValueError:
        return False
    return abs(mine - theirs) <= tolerance * max(1.0, abs(theirs))
