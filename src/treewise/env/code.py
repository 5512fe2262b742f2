"""Programming: the reply's last code block is run against the problem's tests, in the sandbox.

    problem ──▶ model ──▶ … ```python⏎ program ``` ──▶ sandbox × tests ──▶ passed, share, runs

`treewise.env.code_tests` says which tests there can be. Those with inputs and outputs start the program once per test,
and what is expected never comes near it; those that are code run in a process of their own beside the program, see
`treewise.env.code_judge`.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib import resources
from typing import NamedTuple

from treewise import sandbox
from treewise.env.code_tests import Case, read_suite, same_output
from treewise.sandbox import Limits, Result, SandboxError
from treewise.text import cut, encodable
from treewise.types import Message, Problem

_FENCE = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)(?:^[ \t]*```|\Z)", re.M | re.S)
_PYTHON = ("python", "py", "python3")


class Mark(NamedTuple):
    """What one test says: whether it passed, whether the program came to its end, and what was wrong."""

    passed: bool
    ended: bool
    told: str = ""


def code_of(reply: str) -> str | None:
    """The last code block of a reply, behind its thinking: the last one marked as Python, else the last without a mark.
    A block that isn't closed goes to the end."""
    blocks = _FENCE.findall(reply.rpartition("</think>")[2])
    for marks in (_PYTHON, ("",)):
        found = [text for mark, text in blocks if (mark.split() or [""])[0].lower() in marks]
        if found:
            return str(found[-1]).rstrip().removesuffix("```") + "\n"
    return None


def whole_program(code: str, stem: str) -> str:
    """The program: indented code continues the stem; other code comes behind it, and defines its function anew."""
    first = next((line for line in code.splitlines() if line.strip()), "")
    if not stem:
        return code
    if first[:1].isspace():
        return stem + ("" if stem.endswith("\n") or code.startswith("\n") else "\n") + code
    try:
        ast.parse(stem)
    except SyntaxError:  # the function has no docstring, so there is nothing in it yet
        stem += "\n    pass\n"
    return f"{stem}\n\n{code}"


@cache
def _judge() -> str:
    return resources.files("treewise.env").joinpath("code_judge.py").read_text(encoding="utf-8")


class Code:
    """One problem. Scores, of the last reply: `passed` 1 if all tests pass; `share` of tests that pass; `runs` 1 if
    the program came to its end in at least one test, right or wrong."""

    weights: Mapping[str, float] = {"passed": 1.0, "share": 0.0, "runs": 0.0}

    def __init__(
        self,
        problem: Problem,
        *,
        turns: int = 1,
        seconds: float = 5.0,
        total_seconds: float = 30.0,
        memory_mb: int = 1024,
        tolerance: float = 1e-6,
        packages: bool = False,
        feedback_chars: int = 1000,
        unprotected: bool = False,
    ) -> None:
        """
        Args:
            turns: replies that the model has; behind each but the last it is told which test fails, and how.
            seconds: CPU time of a test; three times as long may it take by the clock.
            total_seconds: of all tests of a reply; the rest then fails.
            memory_mb: of the program, in each test.
            tolerance: of a number with a fraction in an output.
            packages: whether programs may import what is installed beside treewise.
            feedback_chars: of what the model is told of input, output and error messages, each.
            unprotected: whether programs run where the sandbox can't protect everything.

        Raises ValueError for tests that can't be used, SandboxError where no program can run.
        """
        if type(turns) is not int or turns < 1:
            raise ValueError(f"turns is {turns!r}: the model needs at least one")
        if not total_seconds > 0:
            raise ValueError(f"total_seconds is {total_seconds!r}: it must be above 0")
        if not tolerance >= 0:
            raise ValueError(f"tolerance is {tolerance!r}: it must be 0 or more")
        if type(feedback_chars) is not int or feedback_chars < 2:
            raise ValueError(f"feedback_chars is {feedback_chars!r}: it must be 2 or more")
        self._problem, self._suite = problem, read_suite(problem)
        self._turns, self._tolerance, self._chars = turns, tolerance, feedback_chars
        self._limits = Limits(seconds=seconds, wall_seconds=3 * seconds, memory_mb=memory_mb)
        self._total = total_seconds
        self._run_each = partial(
            sandbox.run_each,
            limits=self._limits,
            total_seconds=total_seconds,
            packages=packages,
            unprotected=unprotected,
        )
        self._replies = 0
        self._marks: list[Mark] = []
        sandbox.require(limits=self._limits, packages=packages, unprotected=unprotected)

    @staticmethod
    def check(problem: Problem) -> None:
        """Raise ValueError if the problem can't be played."""
        read_suite(problem)

    @property
    def notes(self) -> list[str]:
        """What a run says about itself."""
        return [sandbox.describe()]

    @property
    def concurrency(self) -> int:
        """How many of these work at one time; more would only wait for a processor."""
        return sandbox.processors()

    def start(self) -> str | Sequence[Message]:
        return self._problem.prompt

    def step(self, reply: str) -> Sequence[Message]:
        self._replies += 1
        code = code_of(reply)
        if code is None and self._suite.stem and isinstance(self._problem.prompt, str):
            code = reply  # a model without chat template goes on where the prompt ends
        self._marks = [] if code is None else self._run(whole_program(code, self._suite.stem))
        if self._replies == self._turns or (self._marks and all(mark.passed for mark in self._marks)):
            return []
        return [{"role": "user", "content": self._told()}]

    def scores(self) -> dict[str, float]:
        passed = sum(mark.passed for mark in self._marks)
        count = len(self._suite.cases)
        return {
            "passed": float(passed == count),
            "share": passed / count,
            "runs": float(any(mark.ended for mark in self._marks)),
        }

    def _told(self) -> str:
        if not self._marks:
            return "There was no code block in your reply. Give the whole program in one, between ```python and ```."
        number, mark = next((n, mark) for n, mark in enumerate(self._marks, start=1) if not mark.passed)
        passed = sum(mark.passed for mark in self._marks)
        return f"{passed} of {len(self._marks)} tests pass. Test {number} fails: {encodable(mark.told)}"

    def _run(self, program: str) -> list[Mark]:
        cases, suite = self._suite.cases, self._suite
        if cases[0].output is not None:
            results = self._run_each(program, [case.text for case in cases])
            return [self._compared(result, case) for result, case in zip(results, cases, strict=True)]
        first = json.dumps({"program": program, "imports": suite.imports})
        tests = [{"setup": suite.setup, "test": case.text, "entry": suite.entry} for case in cases]
        inputs = [f"{len(first):10}{first}{json.dumps(test)}" for test in tests]
        return [self._judged(result) for result in self._run_each(_judge(), inputs)]

    def _compared(self, result: Result, case: Case) -> Mark:
        """What an output is worth."""
        assert case.output is not None, "the tests of a problem are of one kind"
        ended = result.outcome == "finished"
        if ended and same_output(result.stdout, case.output, tolerance=self._tolerance):
            return Mark(True, True)
        told = "its output is wrong." if ended else self._stopped(result)
        return Mark(False, ended, told + self._shown(Input=case.text, Output=result.stdout, Errors=result.stderr))

    def _judged(self, result: Result) -> Mark:
        """What the judge has said. Raises SandboxError if it is the judge that failed."""
        if result.outcome == "failed" and result.code < 0:  # ended by a signal, which only the program can have sent
            return Mark(False, False, "the program has ended the test.")
        if result.outcome not in ("finished", "failed"):
            return Mark(False, False, self._stopped(result) + self._shown(Errors=result.stderr))
        try:
            verdict = json.loads(result.stdout)
        except ValueError:
            raise SandboxError(f"the judge of a test failed: {result.stderr[-300:]}") from None
        if "broken" in verdict:
            raise SandboxError(f"the test can't be judged: {verdict['broken']}")
        return Mark(verdict["passed"], verdict["ran"], f"{verdict['why']}{self._shown(Errors=result.stderr)}")

    def _stopped(self, result: Result) -> str:
        limits = self._limits
        return {
            "failed": f"the program ended with exit code {result.code}.",
            "time": f"the program took longer than {limits.seconds:g} s.",
            "memory": f"the program took more than {limits.memory_mb} MB of memory.",
            "output": f"the program wrote more than {limits.output_bytes} bytes.",
            "disk": f"the program wrote more than {limits.disk_mb} MB of files.",
            "processes": f"the program started more than {limits.processes} processes.",
            "skipped": f"all tests together took longer than {self._total:g} s.",
        }[result.outcome]

    def _shown(self, **texts: str) -> str:
        """Texts under their names, without those that are empty."""
        return "".join(f"\n{name}:\n{cut(text.strip(), self._chars)}" for name, text in texts.items() if text.strip())
