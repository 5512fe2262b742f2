"""The environment `tools`: calls in the form of Hermes and Qwen, built-in and own tools, whole episodes."""

from __future__ import annotations

import json
import re
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import test_chat
from folders import write_tiny_model
from test_chat import user
from test_episode import Script
from treewise import sandbox
from treewise.chat import Chat
from treewise.env.calculator import calculator
from treewise.env.load import load_environment
from treewise.env.tools import Tools, Unavailable, load_tool
from treewise.loop import train
from treewise.recipe import make_recipe
from treewise.reward import Reward
from treewise.reward.load import load_reward
from treewise.rollout import collect
from treewise.sections import EnvSection
from treewise.types import Problem, Sampling, Trajectory

chatml = test_chat.chatml
PAGE = (Path(__file__).parents[1] / "docs" / "environments.md").read_text(encoding="utf-8")
ASK = Problem("0", (user("What is 7 * 8?"),), "56")

try:
    sandbox.require()
    lacking = ""
except sandbox.SandboxError as error:
    lacking = str(error)
runs_programs = pytest.mark.skipif(bool(lacking), reason=f"no program can run here: {lacking}")

OWN = '''
import asyncio, time
from treewise.env.tools import Unavailable

def capital(country: str) -> str:
    """
    The capital of a country.

    Args:
        country: Its name.
    """
    return {"France": "Paris"}[country]

async def later(number: int = 2) -> dict:
    """
    Twice a number, later.

    Args:
        number: The number.
    """
    await asyncio.sleep(0.01)
    return {"é": 2 * number}

def half() -> list:
    """Says half of a surrogate pair."""
    return ["\\ud83d!"]

def broken() -> str:
    """A tool whose server is away."""
    raise Unavailable("no server")

def hangs() -> str:
    """A tool that never returns."""
    time.sleep(60)

def leaves() -> str:
    """A tool that ends the program."""
    raise SystemExit(1)

def untyped(country):
    """
    The capital of a country.

    Args:
        country: Its name.
    """

def undescribed(country: str) -> str:
    return country
'''


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(OWN)
    return path


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def told(environment: Tools, reply: str) -> list[str]:
    """The tools' responses to a reply."""
    messages = environment.step(reply)
    if not messages:
        return []
    (message,) = messages
    assert message["role"] == "user"
    found = re.findall(r"<tool_response>\n(.*?)\n</tool_response>", message["content"], flags=re.DOTALL)
    whole = "\n".join(f"<tool_response>\n{text}\n</tool_response>" for text in found)
    assert whole == message["content"], "templates know a tool's response by its tags, so nothing may be around them"
    return found


# The calculator


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2 * (3 + 4) ** 2", "98"),
        (" -7 // 2 % 5 ", "1"),
        ("10 / 4", "2.5"),
        ("2 ** -2 + 2 ** 0.5", "1.6642135623730951"),
        ("sqrt(2) + max(1, 2, pi) - abs(-1) + floor(e)", "5.555806215962888"),
        ("round(2.567, 1) + round(2.5) + gcd(4, 6) + lcm(4, 6)", "18.6"),
        ("10 ** 1000 % 7", "4"),
        ("1 ** 99999999999", "1"),
    ],
)
def test_the_calculator_calculates(expression: str, value: str) -> None:
    assert calculator(expression) == value


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("9**9**9", "the result is too large"),
        ("(10**1000)**1000", "the result is too large"),
        ("10**1200 * 10**1200", "the result is too large"),
        ("round(5, -10**9)", "round can't take -1000000000 digits"),
        ("1 / 0", "division by zero"),
        ("exp(10**6)", "math range error"),
        ("(-8) ** 0.5", "no real number"),
        ("sqrt(-1)", "math domain error|expected a nonnegative input"),
        ("__import__('os').getpid()", "this is no arithmetic: __import__"),
        ("(1).__class__", "this is no arithmetic"),
        ("x + 1", "this is no arithmetic: x"),
        ("True + 1", "this is no arithmetic: True"),
        ("'a' * 9", "this is no arithmetic: 'a'"),
        ("[1] * 9", "this is no arithmetic"),
        ("lambda: 1", "this is no arithmetic"),
        ("sqrt(x=2)", "this is no arithmetic"),
        ("2 +", "this is no arithmetic expression: invalid syntax"),
        ("1; 2", "this is no arithmetic expression"),
        ("(" * 300 + "1" + ")" * 300, "more than 500 characters"),
        ("(" * 240 + "1" + ")" * 240, "this is no arithmetic expression"),
        ("", "this is no arithmetic expression"),
        ("\x00", "this is no arithmetic expression"),
    ],
)
def test_the_calculator_says_what_is_wrong(expression: str, message: str) -> None:
    started = time.monotonic()
    with pytest.raises((ValueError, ArithmeticError), match=message):
        calculator(expression)
    assert time.monotonic() - started < 1


# Calls and responses


def test_tools_are_described_in_the_system_message() -> None:
    plain = Tools(ASK, tools=["calculator"]).start()
    assert [message["role"] for message in plain] == ["system", "user"]  # type: ignore[index]
    (schema,) = re.findall(r"<tools>\n(.*)\n</tools>", plain[0]["content"])  # type: ignore[index]
    described = json.loads(schema)
    assert described["type"] == "function"
    assert described["function"]["name"] == "calculator"
    assert described["function"]["parameters"]["required"] == ["expression"]
    given = Problem("0", ({"role": "system", "content": "Be brief."}, user("7 * 8?")))
    added = Tools(given, tools=["calculator"]).start()
    assert added[0]["content"] == f"Be brief.\n\n{plain[0]['content']}"  # type: ignore[index]
    placed = Problem("0", ({"role": "system", "content": "Tools: {tools}."}, user("7 * 8?")))
    assert Tools(placed, tools=["calculator"]).start()[0]["content"] == f"Tools: {schema}."  # type: ignore[index]
    text = Tools(Problem("0", "7 * 8?"), tools=["calculator"]).start()
    assert text == f"{plain[0]['content']}\n\n7 * 8?"  # type: ignore[index]


@pytest.mark.parametrize(
    ("reply", "response"),
    [
        (call("calculator", expression="7 * 8"), ["56"]),
        (f"Let me see. {call('calculator', expression='1+1')} {call('calculator', expression='2+2')}", ["2", "4"]),
        (f"<think>{call('calculator', expression='1+1')}</think>{call('calculator', expression='3')}", ["3"]),
        ('<tool_call>{"name": "calculator", "arguments": {"expression": "6"}}', ["6"]),
        (call("calculator", expression="1/0"), ["Error: ZeroDivisionError: division by zero"]),
        (call("calculator", expression=3), ["Error: ValueError: the expression must be text"]),
        (call("calculator"), ["Error: the arguments of calculator are expression: expression?"]),
        (call("calculator", expression="1", base=2), ["Error: the arguments of calculator are expression: base?"]),
        (call("calculater"), ["Error: there is no tool calculater; there are calculator"]),
        (
            '<tool_call>{"name": "calculator", "arguments": "7*8"}</tool_call>',
            ['Error: "arguments" must be an object'],
        ),
        (
            "<tool_call>calculator(7*8)</tool_call>",
            ["Error: the tool call is no JSON: Expecting value: line 1 column 1 (char 0)"],
        ),
        (
            "<tool_call>[1]</tool_call>",
            ['Error: a tool call must be an object with "name" and "arguments"'],
        ),
        (f"<tool_call>{'[' * 100_000}</tool_call>", None),
    ],
)
def test_calls_are_answered(reply: str, response: list[str] | None) -> None:
    environment = Tools(ASK, tools=["calculator"])
    found = told(environment, reply)
    errors = float(sum(text.startswith("Error: ") for text in found))
    assert environment.scores() == {"calls": float(len(found)), "errors": errors}
    if response is None:
        assert found[0].startswith("Error: the tool call is no JSON: ")
    else:
        assert found == response


def test_a_reply_without_a_call_ends_the_episode() -> None:
    environment = Tools(ASK, tools=["calculator"])
    for reply in ("It is 56.", "<think>" + call("calculator", expression="1") + "</think> 56", ""):
        assert told(environment, reply) == []
    assert environment.scores() == {"calls": 0.0, "errors": 0.0}


def test_turns_and_calls_have_a_limit() -> None:
    environment = Tools(ASK, tools=["calculator"], turns=2)
    one = call("calculator", expression="1")
    assert told(environment, one * 6) == ["1"] * 4 + ["Error: only the first 4 tool calls of a reply are made."]
    assert told(environment, one) == ["1"]
    assert told(environment, one) == []
    assert environment.scores()["calls"] == 5.0


def test_long_results_lose_their_middle(own: Path) -> None:
    environment = Tools(ASK, tools=["calculator"], result_chars=20)
    assert told(environment, call("calculator", expression="10**100")) == [
        "1000000000\n… 81 characters left out …\n0000000000"
    ]


# Own tools


def test_own_tools_are_called(own: Path) -> None:
    environment = Tools(ASK, tools=[f"{own}:capital", f"{own}:later", f"{own}:leaves", f"{own}:half"])
    assert told(environment, call("capital", country="France") + call("later", number=3) + call("later")) == [
        "Paris",
        '{"é": 6}',
        '{"é": 4}',
    ]
    assert told(environment, call("capital", country="Atlantis") + call("leaves") + call("half")) == [
        "Error: KeyError: 'Atlantis'",
        "Error: SystemExit: 1",
        '["?!"]',
    ]
    assert environment.scores() == {"calls": 6.0, "errors": 2.0}


def test_a_tools_file_is_run_once_and_again_when_it_changes(own: Path) -> None:
    first = load_tool(f"{own}:capital")
    assert load_tool(f"{own}:capital") is first
    time.sleep(0.02)
    own.write_text(OWN.replace("Paris", "Lyon"))
    assert load_tool(f"{own}:capital").function("France") == "Lyon"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": []}, r"tools is \[\]: it must be a list with a tool in it"),
        ({"tools": "calculator"}, "tools is 'calculator': it must be a list"),
        ({"tools": ["calculater"]}, "'calculater' is not a tool; the nearest built-in one is 'calculator'"),
        ({"tools": ["calculator", "calculator"]}, "two of the tools calculator, calculator have the same name"),
        ({"tools": ["none.py:f"]}, "there is no file none.py to take a tool from"),
        ({"tools": ["calculator"], "seconds": 1.0}, "seconds has no effect without the tool python"),
        ({"tools": ["calculator"], "packages": False}, "packages has no effect without the tool python"),
        ({"turns": 0}, "turns is 0"),
        ({"result_chars": 1}, "result_chars is 1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tools(ASK, **options)


@pytest.mark.parametrize("name", ["untyped", "undescribed"])
def test_a_tool_that_can_not_be_described_is_refused(own: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} can't be described to the model: .*needs a type for each argument"):
        Tools(ASK, tools=[f"{own}:{name}"])


# Programs


@runs_programs
@pytest.mark.parametrize(
    ("code", "response"),
    [
        ("print(7 * 8)", "56"),
        ("7 * 8", "(it printed nothing)"),
        ("import os\nprint(os.listdir())\nopen('a', 'w')", "[]"),
        (
            "print(1)\n1 / 0",
            'Error: exit code 1\n1\nTraceback (most recent call last):\n  File "program.py", line 2, in <module>\n'
            "    1 / 0\n    ~~^~~\nZeroDivisionError: division by zero",
        ),
        ("while True: pass", "Error: it took longer than 0.3 s"),
        ("x = bytearray(10**9)", None),
        ("while True: print('x' * 1000)", None),
        (3, "Error: code must be text"),
    ],
)
def test_programs_run_in_the_sandbox(code: Any, response: str | None) -> None:
    environment = Tools(ASK, tools=["python"], seconds=0.3, memory_mb=256, result_chars=300)
    (found,) = told(environment, call("python", code=code))
    if response is None:
        assert re.match(r"Error: it took more than 256 MB of memory|Error: it was stopped: too much output", found)
        assert len(found) < 400
    else:
        assert found == response


# Whole episodes


def playing(script: Script, tokenizer: Any, size: int, *, rewards: Sequence[Reward] = (), **how: Any) -> Any:
    env = {"retries": 0, **how.pop("env", {})}
    loaded = load_environment("tools", options=how)
    (group,) = collect(
        [ASK],
        group_size=size,
        sampler=script,
        sampling=Sampling(400),
        chat=Chat(tokenizer),
        rewards=[*rewards, *(Reward(name, None, weight) for name, weight in loaded.weights.items())],
        seed=(0,),
        make=loaded.make,
        env=EnvSection(name="tools", **env),
    )
    return group.trajectories


def test_the_final_reply_is_judged_by_the_runs_rewards(chatml: Any) -> None:
    end = "<|im_end|>"
    script = Script(
        chatml,
        [(call("calculator", expression="7 * 8") + end, "eos"), ("It is 56." + end, "eos")],
        [(call("calculator", expression="56") + end, "eos"), ("It is 57." + end, "eos")],
        [("56" + end, "eos")],
        [("<tool_call>56" + end, "eos"), ("56" + end, "eos")],
    )
    trajectories: Sequence[Trajectory] = playing(
        script, chatml, 4, rewards=[load_reward("last_number")], tools=["calculator"]
    )
    assert [one.reward for one in trajectories] == [1.0, 0.0, 1.0, 1.0]
    assert [one.scores for one in trajectories] == [
        {"last_number": reward, "calls": calls, "errors": errors}
        for reward, calls, errors in ((1.0, 1.0, 0.0), (0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    ]
    first = trajectories[0]
    given = chatml.decode(first.tokens[~first.sampled])
    assert "<|im_start|>user\n<tool_response>\n56\n</tool_response><|im_end|>\n<|im_start|>assistant\n" in given
    assert chatml.decode(first.tokens[first.sampled]) == f"{call('calculator', expression='7 * 8')}{end}It is 56.{end}"


@pytest.mark.parametrize(
    ("name", "cause"),
    [("broken", r"step\(\): Unavailable: no server"), ("hangs", r"step\(\) took longer than 0.3 s")],
)
def test_a_tool_that_breaks_leaves_the_episode_without_a_verdict(chatml: Any, own: Path, name: str, cause: str) -> None:
    assert issubclass(Unavailable, Exception)
    script = Script(
        chatml,
        [(call(name) + "<|im_end|>", "eos"), ("56<|im_end|>", "eos")],
        [("56<|im_end|>", "eos")],
    )
    rewards = [load_reward("last_number")]
    broken, fine = playing(script, chatml, 2, rewards=rewards, tools=[f"{own}:{name}"], env={"step_seconds": 0.3})
    assert (broken.reward, fine.reward) == (None, 1.0)
    assert re.fullmatch(cause, str(broken.cause))


@pytest.fixture
def recipe(tmp_path: Path) -> dict[str, Any]:
    """The page's recipe and tool with a tiny model, for one step."""
    (text,) = re.findall(r"```toml\n([^`]*name = \"tools\".*?)```", PAGE, flags=re.DOTALL)
    (row,) = re.findall(r"questions.jsonl\" +# ({.*})", text)
    (code,) = re.findall(r"```python\n(# lookup.py.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "lookup.py").write_text(code)
    (tmp_path / "questions.jsonl").write_text((row + "\n") * 4)
    for name in ("questions.jsonl", "lookup.py"):
        text = text.replace(name, str(tmp_path / name))
    found = tomllib.loads(text)
    found["model"] = {
        "path": str(write_tiny_model(tmp_path / "model", max_position_embeddings=2048)),
        "dtype": "float32",
    }
    found["rollout"] = {"problems_per_step": 2, "group_size": 2, "max_new_tokens": 8}
    found["train"] = {"steps": 1, "output": str(tmp_path / "runs"), "name": "run"}
    return found


@runs_programs
def test_the_pages_recipe_is_trained_on(recipe: dict[str, Any]) -> None:
    pytest.importorskip("math_verify")
    run = train(make_recipe(recipe))
    rows = [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()]
    assert [set(row["scores"]) for row in rows] == [{"math", "calls", "errors"}] * 4
    assert all(row["reward"] == row["scores"]["math"] for row in rows)


@runs_programs
def test_tools_without_a_reward_teach_nothing_and_are_refused(recipe: dict[str, Any]) -> None:
    del recipe["reward"]
    with pytest.raises(ValueError, match=r"every reward has weight 0 \(calls, errors\), so nothing could be learned"):
        train(make_recipe(recipe))
