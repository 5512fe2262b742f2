"""The environment `code`: forms of tests, programs that try to win without solving, whole episodes."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import test_chat
from folders import write_tiny_model
from test_episode import Script
from test_sandbox import parent_of, processes_with
from treewise import sandbox
from treewise.chat import Chat
from treewise.env.code import Code, code_of, whole_program
from treewise.env.code_tests import read_suite, same_output
from treewise.env.load import load_environment
from treewise.loop import train
from treewise.recipe import make_recipe
from treewise.reward import Reward
from treewise.rollout import collect
from treewise.sections import EnvSection
from treewise.session import open_session
from treewise.types import Problem, Sampling, Trajectory

chatml = test_chat.chatml
PAGE = (Path(__file__).parents[1] / "docs" / "environments.md").read_text(encoding="utf-8")

try:
    sandbox.require()
except sandbox.SandboxError as error:
    pytest.skip(f"no program can run here: {error}", allow_module_level=True)

STEM = 'from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n    """Their sum."""\n'
CHECK = "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert abs(candidate([]) - 0.0) < 1e-6\n"
FORMS: dict[str, dict[str, Any]] = {
    "pairs": {"tests": [{"input": "1 2\n", "output": "3\n"}, {"input": "4 5", "output": "9"}]},
    "JSON": {"input_output": '{"inputs": ["1 2", ["4", "5"]], "outputs": ["3\\n", ["9"]]}'},
    "asserts": {"test_list": ["assert total([1, 2]) == 3", "assert total([]) == 0"]},
    "calls": {"tests": {"inputs": [[[1, 2]], [[]]], "outputs": [3, [0]], "fn_name": "total"}},
    "calls by line": {"tests": {"inputs": ["[1, 2]\n", "[]"], "outputs": ["3", "0"], "fn_name": "total"}},
    "check": {"test": CHECK, "entry_point": "total", "prompt": STEM},
}
READER = "import sys\nprint(sum(map(int, sys.stdin.read().split())))"
FUNCTION = "def total(numbers):\n    return sum(numbers)"


def fenced(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\nDone."


def problem(info: Mapping[str, Any], *, answer: str | None = None, prompt: str = "Add the numbers.") -> Problem:
    return Problem("7", ({"role": "user", "content": prompt},), answer, info)


def scores(info: Mapping[str, Any], *programs: str, **options: Any) -> dict[str, float]:
    environment = Code(problem(info), turns=len(programs), **options)
    environment.start()
    for program in programs:
        environment.step(fenced(program))
    return environment.scores()


def passes(info: Mapping[str, Any], program: str, **options: Any) -> bool:
    return scores(info, program, **options)["passed"] == 1.0


# Forms of tests


@pytest.mark.parametrize("form", FORMS)
def test_right_programs_pass_and_wrong_ones_do_not(form: str) -> None:
    reads = form in ("pairs", "JSON")
    right, wrong = (READER, "print(3)") if reads else (FUNCTION, "def total(numbers): return 3")
    assert scores(FORMS[form], right) == {"passed": 1.0, "share": 1.0, "runs": 1.0}
    assert scores(FORMS[form], wrong) == {"passed": 0.0, "share": 0.0 if form == "check" else 0.5, "runs": 1.0}
    assert scores(FORMS[form], "import nothing_like_this") == {"passed": 0.0, "share": 0.0, "runs": 0.0}


def test_the_answer_may_hold_the_tests() -> None:
    environment = Code(problem({}, answer='{"inputs": ["1 2"], "outputs": ["3"]}'))
    environment.step(fenced(READER))
    assert environment.scores()["passed"] == 1.0


def test_a_method_of_a_class_solution_is_called() -> None:
    program = "class Solution:\n    def total(self, numbers): return (sum(numbers),)"
    assert passes({"tests": {"inputs": [[[1, 2]]], "outputs": [[3]], "fn_name": "total"}}, program)


@pytest.mark.parametrize(
    "code",
    [
        "    return sum(numbers)\n",
        "\n    return sum(numbers)",
        "def total(numbers: List[int]):\n    return sum(numbers)\n",
        "import math\n\ndef total(numbers):\n    return math.fsum(numbers)\n",
    ],
)
@pytest.mark.parametrize("stem", [STEM, STEM.replace('    """Their sum."""\n', ""), STEM.rstrip()])
def test_the_prompt_is_the_beginning_of_the_program(code: str, stem: str) -> None:
    assert passes({"test": CHECK, "entry_point": "total", "prompt": stem}, code.rstrip("\n"))
    assert compile(whole_program(code, stem), "", "exec")


def test_a_function_may_have_the_name_of_a_built_in() -> None:
    program = "def sum(a, b): return a + b"
    assert passes({"test_list": ["assert sum(1, 2) == 3"]}, program)
    check = "def check(candidate):\n    given = [1, 2]\n    assert abs(candidate(*given)) == 3"
    assert passes({"test": check, "entry_point": "sum"}, program)
    assert not passes({"test_list": ["assert sum(1, 2) == 3"]}, "def sum(a, b): return a - b")
    assert passes({"tests": {"inputs": [[1, 2]], "outputs": [3], "fn_name": "sum"}}, program)


def test_a_text_prompt_is_continued_without_a_block() -> None:
    info = {"test": CHECK, "entry_point": "total"}
    for reply, passed in (("    return sum(numbers)\n", 1.0), ("    return 3\n", 0.0), ("\nno code", 0.0)):
        environment = Code(Problem("7", STEM, None, info))
        environment.step(reply)
        assert environment.scores()["passed"] == passed


def test_a_prompt_in_words_is_not_part_of_the_program() -> None:
    assert read_suite(problem({"test": CHECK, "entry_point": "total", "prompt": "Write total()."})).stem == ""
    assert read_suite(problem({"test": CHECK, "entry_point": "total", "prompt": STEM})).stem == STEM


@pytest.mark.parametrize(
    ("info", "answer", "message"),
    [
        ({}, None, "it has no column test_list, tests, input_output, no answer, and not both test and entry_point"),
        ({}, "42", "answer must hold assert statements, .* pairs, or inputs and outputs: 42"),
        ({}, "forty-two", "answer is neither a list nor JSON: 'forty-two'"),
        ({"tests": []}, None, "tests is empty"),
        ({"tests": {"inputs": ["1"], "outputs": []}}, None, "tests needs inputs and outputs, two lists of one length"),
        ({"tests": {"inputs": [1], "outputs": ["1"]}}, None, "tests, test 1: input and output must be text"),
        ({"tests": [{"input": "1"}]}, None, "tests must hold assert statements"),
        ({"tests": [{"input": "1", "output": None}]}, None, "tests, test 1: input and output must be text"),
        ({"tests": [{"input": "1", "output": "2", "testtype": "functional"}]}, None, "tests of the type 'functional'"),
        ({"test_list": ["assert f(1) = 2"]}, None, "test_list, test 1 is no Python"),
        ({"test_list": ["assert f()"], "test_setup_code": "import"}, None, "test_setup_code is no Python"),
        ({"test_list": ["assert f()"], "test_imports": [1]}, None, "test_imports and test_setup_code must be text"),
        ({"test": "assert f()", "entry_point": "f"}, None, "test defines no function check"),
        ({"test": "def check(c): (", "entry_point": "f"}, None, "test is no Python"),
        ({"test": "def check(c): c()", "entry_point": 3}, None, "entry_point is no name"),
        ({"tests": {"inputs": [[1]], "outputs": [1], "fn_name": "a b"}}, None, "test 1: fn_name is no name"),
        ({"tests": {"inputs": [1], "outputs": [1], "fn_name": "f"}}, None, "the input of f must be a list of arg"),
        ({"tests": {"inputs": ["x"], "outputs": ["1"], "fn_name": "f"}}, None, "test 1 is neither a list nor JSON"),
    ],
)
def test_tests_that_can_not_be_used_are_refused(info: dict[str, Any], answer: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=f"the tests of problem '7' can't be used: .*{message}"):
        Code.check(problem(info, answer=answer))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"turns": 0}, "turns is 0"),
        ({"seconds": 0}, "the limit seconds is 0"),
        ({"tolerance": -1.0}, "tolerance is -1.0"),
        ({"tolerance": float("nan")}, "tolerance is nan"),
        ({"feedback_chars": 1}, "feedback_chars is 1"),
        ({"total_seconds": 0}, "total_seconds is 0"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Code(problem(FORMS["pairs"]), **options)


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("```python\na\n```", "a\n"),
        ("```python\na\n``` then ```python\nb\n```", "a\n"),
        ("```python\na\n```\nthen\n```py\nb\n```\nprints\n```\nc\n```", "b\n"),
        ("```\na\n```\n```text\nb\n```", "a\n"),
        ("```bash\na\n```", None),
        ("```Python title=x\na", "a\n"),
        ("```python\na```", "a\n"),
        ("  ```python\n  a\n  ```", "  a\n"),
        ("<think>```python\na\n```</think>```python\nb\n```", "b\n"),
        ("<think>\n```python\na\n```\n</think>\nno", None),
        ("a", None),
        ("", None),
        ("```python\n```", "\n"),
    ],
)
def test_the_last_block_of_code_counts(reply: str, code: str | None) -> None:
    assert code_of(reply) == code


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ("3", "3\n", True),
        ("1  2 \n\n3\n\n", "1 2\n3", True),
        ("1 2 3", "1 2\n3", False),
        ("", "3", False),
        ("yes", "YES", False),
        ("0.30000000000000004", "0.3", True),
        ("0.3001", "0.3", False),
        ("12.5", "12.50", True),
        ("1e-7", "0.0", True),
        ("1000000000000000002", "1000000000000000001", False),
        ("3.0", "3", False),
        ("3", "3.0", True),
        ("nan", "0.5", False),
        ("1_0", "10", False),
    ],
)
def test_outputs_are_compared_by_words(found: str, expected: str, same: bool) -> None:
    assert same_output(found, expected, tolerance=1e-6) == same
    assert not same_output("12.5", "12.50", tolerance=0.0)


# Programs that would win without solving anything


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(0)",
        "import os; os._exit(0)",
        "def total(numbers): import os; os._exit(0)",
        "def total(numbers): raise SystemExit(0)",
        'print(\'passed\'); print(\'{"passed": true, "ran": true, "why": ""}\')\ndef total(numbers): print(3)',
        "def check(candidate): pass\ndef abs(x): return 0\ndef total(numbers): return 17",
        "import builtins\nbuiltins.AssertionError = BaseException\nbuiltins.abs = lambda x: 0\ndef total(n): return 9",
        "class A:\n    __eq__ = lambda *_: True\n    __sub__ = __abs__ = lambda s, *_: s\n    __lt__ = __eq__\n"
        "def total(numbers): return A()",
        "class I(int):\n    __eq__ = lambda *_: True\n    __sub__ = __abs__ = lambda s, *_: s\n    __lt__ = __eq__\n"
        "def total(numbers): return I(17)",
        "import os\ndef total(n):\n    for fd in range(3, 64):\n        try: os.write(fd, b'{\"passed\": true}')\n"
        "        except OSError: pass\n    return 17",
        "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
        "import os, signal; os.kill(os.getppid(), signal.SIGINT)",
        "import sys\nsys.modules['json'] = None\nsys.stdout = None\ndef total(n): return 17",
        "import threading, os\nthreading.Thread(target=lambda: os._exit(0)).start()",
    ],
)
@pytest.mark.parametrize("form", ["asserts", "check"])
def test_a_program_does_not_win_by_what_it_does_to_itself(program: str, form: str) -> None:
    assert scores(FORMS[form], program)["passed"] == 0.0


LOOK = {
    "frames": "frame = inspect.currentframe()\nwhile frame:\n    look(frame.f_locals, frame.f_globals)\n"
    "    look(frame.f_code.co_consts)\n    frame = frame.f_back",
    "objects": "for thing in gc.get_objects(): look(thing)",
    "processes": "for path in glob.glob('/proc/[0-9]*/*'):\n    try: look(open(path, 'rb').read(10**7))\n"
    "    except OSError: pass",
    "memory": "look(open(f'/proc/{os.getppid()}/mem', 'rb').read(1))",
    "descriptors": "for n in range(64):\n    os.set_blocking(n, False)\n    look(os.read(n, 1000))",
}


@pytest.mark.parametrize("place", LOOK)
@pytest.mark.parametrize("form", ["asserts", "check"])
def test_a_program_does_not_see_the_test(place: str, form: str) -> None:
    info = {
        "asserts": {"test_list": ["token = 'zanzibar'\nassert total([1, 2]) == 3"]},
        "check": {"test": f"TOKEN = 'zanzibar'\n{CHECK}", "entry_point": "total", "prompt": STEM},
    }[form]
    look = "\n".join(f"        {line}" for line in LOOK[place].splitlines())
    program = f"""
import gc, glob, inspect, os
seen = []
def look(*things):
    seen.append(1)
    for thing in things:
        if thing is not seen and "zanz" + "ibar" in repr(thing):
            raise LookupError("seen")
def total(numbers):
    try:
{look}
    except (OSError, RecursionError) as error:
        print(error)
    raise ValueError(f"looked {{bool(seen)}}")
"""
    (said,) = told(info, fenced(program))
    assert "seen" not in said.splitlines()[0]
    assert "ValueError: looked" in said.splitlines()[0]
    if place in ("frames", "objects"):  # what the program is given it sees there
        assert "seen" in told({"test_list": ["total(['zanzibar'])"]}, fenced(program))[0].splitlines()[0]


@pytest.mark.parametrize(
    "program",
    [
        "import sys; sys.exit(0)",
        "print('passed')",
        "import os; os.write(1, b'3\\n'); os._exit(1)",
        "import os, glob\nprint([open(path).read() for path in glob.glob('/proc/*/cmdline') + glob.glob('/*.py')])",
        "print(*range(10))",
    ],
)
def test_a_program_does_not_win_by_what_it_prints(program: str) -> None:
    assert scores(FORMS["pairs"], program)["passed"] == 0.0


# What honest programs return


TRUE = [
    "assert pair(1, 2) == (1, 2)",
    "assert half() == 0.5",
    "assert list(count(3)) == [0, 1, 2]",
    "assert words('a b a') == {'a': 2, 'b': 1}",
    "assert day() == datetime.date(2024, 2, 29)",
    "numbers = [3, 1]\nsort(numbers)\nassert numbers == [1, 3]",
    "seen = {1}\ngrow(seen)\nassert seen == {1, 2}",
    "root = Node(1)\nroot.left = Node(2)\nassert depth(root) == 2",
    "assert Node(1) == Node(1)",
    "assert Node(1) != 1",
    "assert Node(5).value == 5 and len(Node(7)) == 7 and not Node(0) and 3 in Node(3)",
    "assert Node(1).same() is not None and isinstance(huge(), int) and huge() == 10**5000",
    "try:\n    fail('no')\n    assert False\nexcept KeyError as error:\n    assert 'no' in error.args[0]",
    "try:\n    fail_oddly()\nexcept RuntimeError as error:\n    assert 'Odd' in str(error)",
    "assert maths.fabs(-1) == 1 and PI == 3",
    "assert math.isclose(third(), 1 / 3, rel_tol=1e-9)",
    "assert nothing() is None and complex_() == 1j and bytes_() == b'a'",
    "assert nested() == {(1, 2): [{3}, frozenset({4})], None: bytearray(b'x')}",
    "assert keyed(1, b=2) == 3",
    "assert only((1, 'a', 2.5), int) == [1] and kind(1) is int and best(['a', 'bbb'], key=len) == 'bbb'",
    "import copy\nnodes = copy.deepcopy([Node(1)])\nassert nodes[0].value == 1",
    "assert numpy_() == 2 and numpy_() + 0.5 == 2.5",
]
UNTRUE = [
    "assert pair(1, 2).second == 2",
    "assert deep()",
    "assert endless()",
    "assert missing(1)",
]


VALUES = """
import collections, datetime, math as maths
from fractions import Fraction
Pair = collections.namedtuple("Pair", "first second")
PI = 3
class Node:
    def __init__(self, value): self.value, self.left = value, None
    def __eq__(self, other): return self.value == other.value
    def __len__(self): return self.value
    def __contains__(self, one): return one == self.value
    def same(self): return self
class Odd(BaseException): pass
class Own:
    def __float__(self): return 2.0
def pair(a, b): return Pair(a, b)
def half(): return Fraction(1, 2)
def count(n): yield from range(n)
def words(text): return collections.Counter(text.split())
def day(): return datetime.date(2024, 2, 29)
def sort(numbers): numbers.sort()
def grow(seen): seen.add(2)
def depth(node): return 1 + depth(node.left) if node is not None else 0
def huge(): return 10**5000
def fail(text): raise KeyError(text)
def fail_oddly(): raise Odd
def third(): return 1 / 3
def nothing(): print("talks")
def complex_(): return 1j
def bytes_(): return b"a"
def nested(): return {(1, 2): [{3}, frozenset({4})], None: bytearray(b"x")}
def deep():
    found = []
    for _ in range(100_000): found = [found]
    return found
def endless():
    found = []
    found.append(found)
    return found
def keyed(a, *, b): return a + b
def only(given, kind): return [one for one in given if isinstance(one, kind)]
def kind(thing): return type(thing)
def best(given, key): return max(given, key=key)
def numpy_(): return Own()
"""


def test_values_reach_the_test_as_they_are() -> None:
    imports = {"test_imports": ["import datetime", "import math"]}
    assert scores({"test_list": TRUE, **imports}, VALUES) == {"passed": 1.0, "share": 1.0, "runs": 1.0}
    assert scores({"test_list": UNTRUE, **imports}, VALUES) == {"passed": 0.0, "share": 0.0, "runs": 1.0}


def test_a_test_that_can_not_be_judged_is_no_verdict() -> None:
    with pytest.raises(sandbox.SandboxError, match="can't be judged: the test gives the program a function, which"):
        scores({"test_list": ["assert apply(lambda x: x, 1) == 1"]}, "def apply(f, x): return f(x)")


def test_limits_of_a_program_are_verdicts() -> None:
    slow = "import time\nif input() == '1 2': time.sleep(60)\nprint(9)"
    assert scores(FORMS["pairs"], slow, seconds=0.2) == {"passed": 0.0, "share": 0.5, "runs": 1.0}
    assert scores(FORMS["pairs"], slow, seconds=0.2, total_seconds=0.3)["share"] == 0.0
    busy = "def total(numbers):\n    while numbers: pass\n    return 0"
    assert scores(FORMS["asserts"], busy, seconds=0.3) == {"passed": 0.0, "share": 0.5, "runs": 1.0}
    large = "def total(numbers): return bytearray(10**9)"
    assert scores(FORMS["asserts"], large, memory_mb=128)["passed"] == 0.0
    large = "def total(numbers): return 'x' * (2**26 + 1)"
    assert scores(FORMS["asserts"], large)["passed"] == 0.0


def test_packages_may_be_allowed() -> None:
    program = "import numpy\nprint(int(numpy.array(input().split(), dtype=int).sum()))"
    assert not passes(FORMS["pairs"], program)
    assert passes(FORMS["pairs"], program, packages=True)


# Several turns


def told(info: Mapping[str, Any], *replies: str, **options: Any) -> list[str]:
    environment = Code(problem(info), turns=len(replies) + 1, **options)
    return ["".join(message["content"] for message in environment.step(reply)) for reply in replies]


def test_the_model_is_told_what_fails_but_not_what_is_expected() -> None:
    assert told(FORMS["pairs"], "no code", fenced("print(3)"), fenced("print('x' * 99)"), fenced(READER)) == [
        "There was no code block in your reply. Give the whole program in one, between ```python and ```.",
        "1 of 2 tests pass. Test 2 fails: its output is wrong.\nInput:\n4 5\nOutput:\n3",
        f"0 of 2 tests pass. Test 1 fails: its output is wrong.\nInput:\n1 2\nOutput:\n{'x' * 99}",
        "",
    ]
    (broken,) = told(FORMS["pairs"], fenced("print(input())\n1 / 0"))
    assert broken == (
        "0 of 2 tests pass. Test 1 fails: the program ended with exit code 1.\nInput:\n1 2\nOutput:\n1 2\nErrors:\n"
        'Traceback (most recent call last):\n  File "program.py", line 2, in <module>\n    1 / 0\n    ~~^~~\n'
        "ZeroDivisionError: division by zero"
    )
    (short,) = told(FORMS["pairs"], fenced("print('x' * 99)"), feedback_chars=10)
    assert short.endswith("Output:\nxxxxx\n… 89 characters left out …\nxxxxx")


def test_the_model_is_told_of_code_tests_what_went_wrong() -> None:
    (wrong,) = told(FORMS["asserts"], fenced("def total(numbers):\n    print('so', numbers)\n    return 4"))
    assert wrong == "0 of 2 tests pass. Test 1 fails: AssertionError\nErrors:\nso [1, 2]"
    (raises,) = told(FORMS["asserts"], fenced("def total(numbers):\n    return sum(number)"))
    assert raises == (
        "0 of 2 tests pass. Test 1 fails: NameError: name 'number' is not defined\nErrors:\n"
        'Traceback (most recent call last):\n  File "program.py", line 2, in total\n    return sum(number)\n'
        "               ^^^^^^\nNameError: name 'number' is not defined"
    )
    (half,) = told(FORMS["asserts"], fenced("raise ValueError('\\ud83d')"))  # no text for a tokenizer
    assert half.startswith("0 of 2 tests pass. Test 1 fails: ValueError: ?\n")
    (late,) = told(FORMS["asserts"], fenced("def total(numbers):\n    while True: pass"), seconds=0.2)
    assert late == "0 of 2 tests pass. Test 1 fails: the program took longer than 0.2 s."
    (ended,) = told(FORMS["asserts"], fenced("import os; os._exit(0)"))
    assert ended == "0 of 2 tests pass. Test 1 fails: Lost: the program ended before the test did"


# Whole episodes


def playing(script: Script, tokenizer: Any, info: Mapping[str, Any], size: int, **env: Any) -> Sequence[Trajectory]:
    loaded = load_environment("code", options=env)
    (group,) = collect(
        [problem(info)],
        group_size=size,
        sampler=script,
        sampling=Sampling(400),
        chat=Chat(tokenizer),
        rewards=[Reward(name, None, weight) for name, weight in loaded.weights.items()],
        seed=(0,),
        make=loaded.make,
        env=EnvSection(name="code", retries=0, concurrency=2),
    )
    return group.trajectories


def test_whole_episodes_are_played_and_judged(chatml: Any) -> None:
    end = "<|im_end|>"
    script = Script(
        chatml,
        [(fenced("print(3)") + end, "eos"), (fenced(READER) + end, "eos")],
        [(fenced(READER) + end, "eos")],
        [("no" + end, "eos"), (fenced("while True: pass") + end, "eos")],
        [(fenced(READER), "length")],
    )
    second, first, never, cut = playing(script, chatml, FORMS["pairs"], 4, turns=2, seconds=0.5)
    assert [one.reward for one in (second, first, never, cut)] == [1.0, 1.0, 0.0, 1.0]
    assert never.scores == {"passed": 0.0, "share": 0.0, "runs": 0.0}
    said = chatml.decode(second.tokens[~second.sampled])
    assert "user\n1 of 2 tests pass. Test 2 fails: its output is wrong.\nInput:\n4 5\nOutput:\n3<|im_end|>" in said
    assert "9" not in said


def test_a_sandbox_that_breaks_leaves_the_episode_without_a_verdict(chatml: Any) -> None:
    sleeper = fenced("import time\ntime.sleep(8)\nprint(3)")
    script = Script(chatml, [(sleeper + "<|im_end|>", "eos")], [(fenced(READER) + "<|im_end|>", "eos")])

    def kill_the_sleepers_guard() -> None:
        for _ in range(500):
            time.sleep(0.02)
            for pid in processes_with("treewise.jail"):
                started = time.time() - Path(f"/proc/{pid}").stat().st_mtime
                if parent_of(pid) == os.getpid() and started > 1.0:
                    os.kill(pid, signal.SIGKILL)
                    return

    killer = threading.Thread(target=kill_the_sleepers_guard)
    killer.start()
    broken, fine = playing(script, chatml, FORMS["pairs"], 2)
    killer.join()
    assert (broken.reward, fine.reward) == (None, 1.0)
    assert re.search(r"step\(\): SandboxError: the supervisor of a program has died, exit code -9", str(broken.cause))


@pytest.fixture
def recipe(tmp_path: Path) -> dict[str, Any]:
    """The page's recipe with a tiny model, for one step."""
    (text,) = re.findall(r"```toml\n([^`]*name = \"code\".*?)```", PAGE, flags=re.DOTALL)
    found = tomllib.loads(text.replace("problems.jsonl", f"{tmp_path}/problems.jsonl"))
    (row,) = re.findall(r"problems.jsonl\" +# ({.*})", text)
    row = json.loads(row)
    row["prompt"] = "add"
    (tmp_path / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(4)))
    found["data"]["system"] = "code"
    found["model"] = {"path": str(write_tiny_model(tmp_path / "model")), "dtype": "float32"}
    found["rollout"] = {"problems_per_step": 2, "group_size": 2, "max_new_tokens": 8}
    found["train"] = {"steps": 1, "output": str(tmp_path / "runs"), "name": "run"}
    return found


def test_the_pages_recipe_is_trained_on(recipe: dict[str, Any]) -> None:
    run = train(make_recipe(recipe))
    rows = [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()]
    assert [row["reward"] for row in rows] == [0.0] * 4  # a random model writes no program: a verdict
    assert rows[0]["scores"] == {"passed": 0.0, "share": 0.0, "runs": 0.0}


def test_a_run_says_what_protects_and_takes_a_turn_per_processor(recipe: dict[str, Any]) -> None:
    session = open_session(make_recipe(recipe))
    assert any(note.startswith("programs are kept from network by") for note in session.notes)
    assert session.env.concurrency == len(os.sched_getaffinity(0))
    recipe["env"]["concurrency"] = 3
    assert open_session(make_recipe(recipe)).env.concurrency == 3


def test_bad_tests_of_any_problem_are_refused_before_the_run(recipe: dict[str, Any]) -> None:
    path = Path(recipe["data"]["source"])
    path.write_text(path.read_text() + '{"prompt": "add", "tests": [{"input": 1, "output": "2"}]}\n')
    with pytest.raises(ValueError, match="the tests of problem '4' can't be used: tests, test 1: input and output"):
        train(make_recipe(recipe))
    assert not Path(recipe["train"]["output"]).exists()


def test_the_pages_python_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (text,) = re.findall(r"```python\n(from treewise.sandbox.*?)```", PAGE, flags=re.DOTALL)
    exec(text, {})
    assert capsys.readouterr().out.endswith("hello\n\n")


def test_the_page_names_every_option_with_its_default() -> None:
    import inspect

    table = dict(re.findall(r"^\| `(\w+)` \| (\S+) \|", PAGE, flags=re.M))
    options = {name: p.default for name, p in inspect.signature(Code).parameters.items() if name != "problem"}
    assert {name: table[name] for name in options} == {
        name: str(value).lower() if isinstance(value, bool) else f"{value:g}".replace("e-06", "e-6")
        for name, value in options.items()
    }
