"""Whatever a reward function does, it costs at most the verdict of the reply that it judged."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from folders import write_problems, write_tiny_model
from treewise.loop import train
from treewise.recipe import make_recipe
from treewise.reward import Reply, Reward, Verdict, score
from treewise.reward.isolated import Isolated
from treewise.reward.load import load_reward
from treewise.track import read_lines
from treewise.types import Problem

PATIENT = 60.0  # a busy machine is not an error here
RULES = '''
import os, re, subprocess, sys, time
import numpy as np
from decimal import Decimal
from fractions import Fraction
from treewise.reward import NoVerdict

def obey(completion, **columns):
    """Does what the reply says."""
    if completion == "raise":
        raise ZeroDivisionError("oh\\x1b[31m no")
    if completion == "no verdict":
        raise NoVerdict("can't tell")
    if completion == "nan":
        return float("nan")
    if completion == "text":
        return "1.0"
    if completion == "set":
        return {1.0}
    if completion == "hang":
        while True:
            pass
    if completion == "hang in C":
        return len(str(9 ** 9 ** 9))
    if completion == "hang in a pattern":
        return float(bool(re.fullmatch("(a+)+b", "a" * 60)))
    if completion == "exit":
        os._exit(0)
    if completion == "sys.exit":
        sys.exit(3)
    if completion == "crash":
        os.kill(os.getpid(), 11)
    if completion == "memory":
        return float(len(bytearray(2 ** 40)))
    if completion == "print":
        print("\\x1b[2J\\x07 from the reward", flush=True)
        os.write(1, b"\\x1b[2J")
    return float(len(completion) % 10)

def kinds(completion):
    return {
        "numpy": np.float32(0.5), "fraction": Fraction(1, 4), "decimal": Decimal("0.5"), "true": True, "none": None
    }[completion]

def columns(completion, answer, level, deadline, spec, arguments, turns):
    assert (answer, level, deadline) == ("7", {"a": [1, None, 2.5, "ü"]}, "a column"), (answer, level, deadline)
    assert (spec, arguments, turns[0]["content"]) == (1, [2], completion)
    return 1.0

def per_step(steps):
    return [float(len(step)) for step in steps]

async def slow(completion):
    return 0.5

class Counts:
    def __init__(self, start):
        self.count = start
    def __call__(self, completion):
        if completion == "exit":
            os._exit(1)
        self.count += 1
        return self.count

def batch(completions):
    return [0.0 for _ in completions]

def with_child(completion):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(completion, "w").write(str(child.pid))
    time.sleep(600)
'''


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[..., Reward]]:
    """Loads a function of the file above, in a process of its own unless told otherwise."""
    (tmp_path / "rules.py").write_text(RULES, encoding="utf-8")
    made: list[Any] = []

    def one(name: str, *, seconds: float | None = PATIENT, **options: Any) -> Reward:
        reward = load_reward(f"{tmp_path}/rules.py:{name}", seconds=seconds, **options)
        made.append(getattr(reward.function, "func", reward.function))
        return reward

    yield one
    for function in made:
        if isinstance(function, Isolated):
            function.close()


def judge(reward: Reward, *texts: str, **columns: Any) -> list[Verdict]:
    given = [Reply(Problem(str(n), "p", "7", columns), text, steps=text.split()) for n, text in enumerate(texts)]
    return asyncio.run(score([reward], given))


# With a deadline


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        ("raise", "ZeroDivisionError: oh\\x1b[31m no"),
        ("no verdict", "can't tell"),
        ("nan", "returned nan"),
        ("text", "returned '1.0', which is a str and not a number"),
        ("set", "TypeError: Object of type set is not JSON serializable"),
        ("exit", "the process of rules.py:obey died"),
        ("sys.exit", "the process of rules.py:obey died"),
        ("crash", "the process of rules.py:obey died"),
        ("memory", "MemoryError: "),
    ],
)
def test_a_fault_costs_one_verdict_and_the_next_reply_is_judged(
    load: Callable[..., Reward], tmp_path: Path, reply: str, cause: str
) -> None:
    before, bad, after = judge(load("obey"), "four", reply, "three")
    assert (before.reward, after.reward) == (4.0, 5.0)
    shown = (bad.cause or "").replace(f"{tmp_path}/", "")
    assert (bad.reward, bad.scores, shown) == (None, {"obey": None}, f"obey: {cause}")


@pytest.mark.parametrize("reply", ["hang", "hang in C", "hang in a pattern"])
def test_a_hang_is_over_at_the_deadline_and_the_next_reply_is_judged(load: Callable[..., Reward], reply: str) -> None:
    reward = load("obey", seconds=2.0)
    judge(reward, "four")  # the start is not what is timed
    started = time.perf_counter()
    bad, after = judge(reward, reply, "three")
    assert (bad.reward, bad.cause) == (None, "obey: no result within 2 s")
    assert after.reward == 5.0
    assert 2.0 <= time.perf_counter() - started < PATIENT


def test_what_a_function_started_ends_with_it(load: Callable[..., Reward], tmp_path: Path) -> None:
    (bad,) = judge(load("with_child", seconds=3.0), str(tmp_path / "pid"))
    assert bad.cause == "with_child: no result within 3 s"
    state = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    patience = time.monotonic() + PATIENT
    while state.exists() and state.read_text().split()[2] != "Z":
        assert time.monotonic() < patience, "the child lives on"
        time.sleep(0.05)


def test_what_is_printed_in_a_process_goes_nowhere(
    load: Callable[..., Reward], capfd: pytest.CaptureFixture[str]
) -> None:
    assert [v.reward for v in judge(load("obey"), "print", "four")] == [5.0, 4.0]
    assert capfd.readouterr() == ("", "")


def test_columns_of_any_kind_that_json_has_arrive_whatever_they_are_called(load: Callable[..., Reward]) -> None:
    level = {"a": [1, None, 2.5, "ü"]}
    (verdict,) = judge(load("columns"), "x", level=level, deadline="a column", spec=1, arguments=[2])
    assert (verdict.reward, verdict.cause) == (1.0, None)
    (verdict,) = judge(load("columns"), "x", level={1, 2}, deadline="a column", spec=1, arguments=[2])
    assert verdict.cause is not None
    assert "can't be sent to its process as JSON: Object of type set" in verdict.cause


def test_long_and_empty_replies_are_judged(load: Callable[..., Reward]) -> None:
    assert [v.reward for v in judge(load("obey"), "ä" * 100_003, "", "\ud800ab")] == [3.0, 0.0, 3.0]


def test_numbers_of_every_kind_steps_async_functions_and_classes_work_in_a_process(load: Callable[..., Reward]) -> None:
    verdicts = judge(load("kinds"), "numpy", "fraction", "decimal", "true", "none")
    assert [v.reward for v in verdicts] == [0.5, 0.25, 0.5, 1.0, None]
    (verdict,) = judge(load("per_step"), "a bcd ef")
    assert verdict.steps == (1.0, 3.0, 2.0)
    assert judge(load("slow"), "x")[0].reward == 0.5
    counts = judge(load("Counts", options={"start": 4}), "a", "b", "exit", "c")
    assert [v.reward for v in counts] == [5.0, 6.0, None, 5.0]  # its state ends with the process
    assert judge(load("obey", options={"level": 3}), "four")[0].reward == 4.0


def test_a_deadline_that_can_not_be_kept_is_refused(load: Callable[..., Reward]) -> None:
    with pytest.raises(ValueError, match="needs a function that another process can find: give the reward <lambda> as"):
        load_reward(lambda completion: 1.0, seconds=1)
    with pytest.raises(ValueError, match="the built-in reward numeric doesn't hang, or has an option `deadline`"):
        load_reward("numeric", seconds=1)
    with pytest.raises(ValueError, match="seconds = 1 can't work for the reward batch, which judges a whole batch"):
        load("batch", seconds=1)
    with pytest.raises(ValueError, match=r"rules\.py has no function 'nothing'"):
        load("nothing")


# Without one


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        ("raise", "ZeroDivisionError: oh\\x1b[31m no"),
        ("no verdict", "can't tell"),
        ("nan", "returned nan"),
        ("set", "returned {1.0}, which is a set and not a number"),
        ("sys.exit", "SystemExit: 3"),
        ("memory", "MemoryError: "),
    ],
)
def test_a_fault_in_this_process_costs_one_verdict_too(load: Callable[..., Reward], reply: str, cause: str) -> None:
    before, bad, after = judge(load("obey", seconds=None), "four", reply, "three")
    assert (before.reward, bad.reward, after.reward) == (4.0, None, 5.0)
    assert bad.cause == f"obey: {cause}"


def test_what_is_printed_can_not_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def prints(completion: str) -> float:
        print(completion, end="")
        return 1.0

    async def prints_later(completions: list[str]) -> list[float]:
        await asyncio.sleep(0)
        print(*completions, sep="\n")
        return [1.0]

    assert judge(load_reward(prints), "a\tb\x1b[2J\r\x07ü\n")[0].reward == 1.0
    assert judge(load_reward(prints_later), "\x9b2J")[0].reward == 1.0
    assert capsys.readouterr().out == "a\tb\\x1b[2J\\r\\x07ü\n\\x9b2J\n"


# In a run


def test_faults_are_counted_and_recorded_with_their_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "moods.py").write_text(
        "import os\n"
        "def moods(completion):\n"
        "    if len(completion) % 2:\n"
        "        os._exit(1)\n"
        "    return float(completion.count('a'))\n"
    )
    recipe = make_recipe(
        {
            "model": {"path": str(write_tiny_model(tmp_path / "model"))},
            "data": {"source": str(write_problems(tmp_path / "sums.jsonl", 8))},
            "reward": [{"function": f"{tmp_path}/moods.py:moods", "seconds": PATIENT}],
            "rollout": {"problems_per_step": 2, "group_size": 4, "max_new_tokens": 8, "stop": list("bcdefg")},
            "train": {"steps": 1, "output": str(tmp_path), "name": "run"},
        }
    )
    run = train(recipe)
    (rows, _) = read_lines(run / "rollouts.jsonl")
    for row in rows:
        odd = len(row["text"]) % 2 == 1
        assert row["reward"] == (None if odd else row["text"].count("a"))
        assert row["scores"] == {"moods": row["reward"]}
        assert row["cause"] == (f"moods: the process of {tmp_path}/moods.py:moods died" if odd else None)
    lost = sum(row["reward"] is None for row in rows)
    assert 0 < lost < len(rows), "some should be judged, and some not"
    (metrics,) = read_lines(run / "metrics.jsonl")[0]
    assert metrics["no_verdict"] == lost
    assert f"{lost} of 8 answers got no verdict" in capsys.readouterr().out.replace("\n", " ")
