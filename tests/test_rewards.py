"""Reward functions: how they are found, called and composed; numbers, formats, mathematics."""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from treewise.reward import NoVerdict, Reply, Reward, Verdict, compose, score
from treewise.reward.extract import gold_answer, last_boxed, stated_answer
from treewise.reward.format import think_answer_format, think_format
from treewise.reward.load import load_reward
from treewise.reward.math import MathVerifier
from treewise.reward.numeric import exact, last_number, numeric
from treewise.reward.worker import Worker, WorkerError
from treewise.types import Problem

TOWER = r"\boxed{\dfrac{5^{(5^{(5^{(5^5)})}-4)}-5}{16}}"


def replies(*texts: str, **columns: Any) -> list[Reply]:
    return [Reply(Problem(str(n), f"p{n}", f"a{n}", columns), text) for n, text in enumerate(texts)]


def judge(function: Callable[..., Any], given: Sequence[Reply], **options: Any) -> list[Verdict]:
    return asyncio.run(score([load_reward(function, name="it", **options)], given))


# --- calling ---------------------------------------------------------------------------------------------


def test_a_function_of_one_completion_gets_what_it_names() -> None:
    def one(*, completion: str, answer: str, level: int, prompt: str, missing: int = 7) -> float:
        assert (prompt, level, missing) == (f"p{answer[1:]}", 3, 7)
        return len(completion) + int(answer[1:])

    verdicts = judge(one, replies("", "xx", level=3, other="not asked for"))
    assert [v.reward for v in verdicts] == [0.0, 3.0]
    assert verdicts[1] == Verdict(3.0, {"it": 3.0})


def test_r07_a_batch_function_gets_all_columns_in_completion_order() -> None:
    seen: dict[str, Any] = {}

    def batch(completions: list[str], **columns: Any) -> list[float]:
        seen.update(columns, completions=completions)
        return [1.0] * len(completions)

    problems = [Problem(str(n), f"p{n}", f"a{n}", {"level": n}) for n in (1, 2)]
    given = [
        Reply(problem, f"c{i}", completion_ids=[i]) for i, problem in enumerate([problems[0]] * 2 + [problems[1]] * 2)
    ]
    judge(batch, given)
    assert seen == {
        "prompts": ["p1", "p1", "p2", "p2"],
        "completions": ["c0", "c1", "c2", "c3"],
        "answer": ["a1", "a1", "a2", "a2"],
        "level": [1, 1, 2, 2],
        "prefill": [""] * 4,
        "completion_ids": [[0], [1], [2], [3]],
    }


def test_columns_that_some_problems_lack_are_none_in_a_batch() -> None:
    def batch(completions: list[str], level: list[int | None]) -> list[float]:
        assert level == [1, None]
        return [0.0, 0.0]

    judge(batch, [Reply(Problem("0", "p", None, {"level": 1}), "a"), Reply(Problem("1", "p"), "b")])


def test_r07_what_a_function_does_to_its_arguments_reaches_no_other_reply() -> None:
    def one(completion: str, tests: list[int], cases: dict[str, list[int]], prompt: Any) -> float:
        prompt[0]["content"] += "!"
        return tests.pop() + cases["a"].pop() + len(prompt[0]["content"])

    def batch(completions: list[Any], tests: list[list[int]], prompts: list[Any], **rest: Any) -> list[float]:
        return [one("", own, cases, prompt) for own, cases, prompt in zip(tests, rest["cases"], prompts, strict=True)]

    problem = Problem("0", ({"role": "user", "content": "hi"},), info={"tests": [1, 2], "cases": {"a": [3, 4]}})
    for function in (one, batch, one):
        assert [v.reward for v in judge(function, [Reply(problem, "a"), Reply(problem, "b")])] == [9.0, 9.0]
    assert problem == Problem("0", ({"role": "user", "content": "hi"},), info={"tests": [1, 2], "cases": {"a": [3, 4]}})


def test_a_batch_function_sees_prompts_in_the_form_of_the_data() -> None:
    seen: list[Any] = []

    def batch(prompts: list[Any], completions: list[Any]) -> list[float]:
        seen.append((prompts, completions))
        return [1.0] * len(prompts)

    message = {"role": "user", "content": "hi"}
    judge(batch, [Reply(Problem("0", (message,)), "ho")])  # type: ignore[arg-type]
    judge(batch, [Reply(Problem("0", (message,), info={"prompt": "hi"}), "ho")])  # type: ignore[arg-type]
    assert seen == [([[message]], [[{"role": "assistant", "content": "ho"}]]), (["hi"], ["ho"])]


def test_async_functions_of_both_kinds_are_awaited_together() -> None:
    together = asyncio.Barrier(3)

    async def one(completion: str) -> float:
        await asyncio.wait_for(together.wait(), 5)
        return float(completion)

    async def batch(completions: list[str]) -> list[float]:
        return [float(c) for c in completions]

    assert [v.reward for v in judge(one, replies("1", "2", "3"))] == [1.0, 2.0, 3.0]
    assert [v.reward for v in judge(batch, replies("1", "2", "3"))] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("result", [[1.0], [1.0, 0.0], [1.0] * 4, 1.0, None, "abc", {1: 1, 2: 2, 3: 3}, []])
def test_r04_a_wrong_count_stops_with_names_and_numbers(result: Any) -> None:
    def counted(completions: list[str]) -> Any:
        return result

    got = len(result) if isinstance(result, list) else type(result).__name__
    with pytest.raises(ValueError, match=rf"counted .*expected 3, got {got}"):
        asyncio.run(score([load_reward(counted)], replies("a", "b", "c")))


@pytest.mark.parametrize("make", [np.array, torch.tensor, tuple])
def test_arrays_and_tensors_are_lists_of_values(make: Callable[[list[float]], Any]) -> None:
    def batch(completions: list[str]) -> Any:
        return make([1.0, 0.5])

    assert [v.reward for v in judge(batch, replies("a", "b"))] == [1.0, 0.5]


@pytest.mark.parametrize(
    "value", [1, True, np.float32(1), np.bool_(True), torch.tensor(1.0), np.array(1), Fraction(1), Decimal("1.0")]
)
def test_numbers_of_any_kind_are_rewards(value: Any) -> None:
    def one(completion: str) -> Any:
        return value

    [verdict] = judge(one, replies("a"))
    assert verdict.reward == 1.0
    assert type(verdict.reward) is float


@pytest.mark.parametrize(
    ("value", "cause"),
    [
        (None, "it: returned None"),
        (np.ma.masked, "it: returned None"),
        (float("nan"), "it: returned nan"),
        (float("-inf"), "it: returned -inf"),
        ("1.0", "it: returned '1.0', which is a str and not a number"),
        ([1.0], "it: returned [1.0], which is a list and not a number"),
        (1j, "it: returned 1j, which is a complex and not a number"),
    ],
)
@pytest.mark.parametrize("batched", [True, False])
def test_what_is_no_number_is_no_verdict_with_its_cause(value: Any, cause: str, batched: bool) -> None:
    def one(completion: str) -> Any:
        return value if completion == "bad" else 1.0

    def batch(completions: list[str]) -> list[Any]:
        return [one(c) for c in completions]

    good, bad = judge(batch if batched else one, replies("good", "bad"))
    assert good == Verdict(1.0, {"it": 1.0})
    assert bad == Verdict(None, {"it": None}, cause)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ZeroDivisionError("oh\x1b[31m no"), "it: ZeroDivisionError: oh\\x1b[31m no"),
        (SystemExit(3), "it: SystemExit: 3"),
        (NoVerdict("the judge sleeps"), "it: the judge sleeps"),
        (RuntimeError("x" * 1000), "it: RuntimeError: " + "x" * 136 + " … " + "x" * 150),
    ],
)
def test_a_function_that_raises_gives_no_verdict_with_its_cause(error: BaseException, cause: str) -> None:
    def one(completion: str) -> float:
        if completion == "bad":
            raise error
        return 1.0

    async def batch(completions: list[str]) -> list[float]:
        raise error

    assert judge(one, replies("good", "bad")) == [
        Verdict(1.0, {"it": 1.0}),
        Verdict(None, {"it": None}, cause),
    ]
    assert judge(batch, replies("a", "b")) == [Verdict(None, {"it": None}, cause)] * 2


def test_rewards_are_summed_by_weight_and_a_score_of_weight_0_is_only_recorded() -> None:
    def length(completion: str) -> float:
        return len(completion)

    def broken(completion: str) -> float:
        raise RuntimeError

    rewards = [
        load_reward(length, weight=0.5),
        load_reward(length, name="again", weight=-2.0),
        load_reward(broken, weight=0.0),
    ]
    [verdict] = asyncio.run(score(rewards, replies("abcd")))
    assert verdict == Verdict(-6.0, {"length": 4.0, "again": 4.0, "broken": None})
    [verdict] = asyncio.run(score([*rewards, load_reward(broken, name="needed")], replies("abcd")))
    assert verdict.reward is None
    assert verdict.cause == "needed: RuntimeError: "
    assert verdict.scores == {"length": 4.0, "again": 4.0, "broken": None, "needed": None}


def test_scores_of_an_environment_compose_in_the_same_way() -> None:
    assert compose({"solved": 1.0, "turns": None}, {"solved": 2.0, "turns": 0.0}).reward == 2.0
    missing = compose({"solved": None}, {"solved": 1.0, "valid": 1.0}, {"solved": "late"})
    assert missing == Verdict(None, {"solved": None}, "solved: late; valid: no verdict")
    assert compose({"a": 1e308}, {"a": 10.0}).cause == "the weighted sum is inf"


def test_rewards_that_can_not_work_are_errors_at_the_start() -> None:
    def one(completion: str) -> float:
        return 0.0

    def neither(answer: str) -> float:
        return 0.0

    def needy(completion: str, difficulty: int) -> float:
        return 0.0

    with pytest.raises(ValueError, match="neither must have a parameter `completion`"):
        load_reward(neither)
    with pytest.raises(ValueError, match="is nan"):
        load_reward(one, weight=float("nan"))
    with pytest.raises(
        ValueError, match=r"needy needs difficulty.* answer, completion, completion_ids, level, prefill, prompt"
    ):
        asyncio.run(score([load_reward(needy)], replies("a", level=1)))
    with pytest.raises(ValueError, match="same name"):
        asyncio.run(score([load_reward(one), load_reward(one)], replies("a")))
    with pytest.raises(ValueError, match="no reward has a weight"):
        asyncio.run(score([load_reward(one, weight=0.0)], replies("a")))
    assert asyncio.run(score([load_reward(one)], [])) == []


def test_m05_an_empty_reply_is_text_for_every_built_in_reward() -> None:
    names = ["exact", "numeric", "last_number", "choice", "math", "think_format", "think_answer_format", "repetition"]
    [verdict] = asyncio.run(score([load_reward(name) for name in names], [Reply(Problem("0", "p", "7"), "")]))
    assert verdict == Verdict(0.0, dict.fromkeys(names, 0.0))


# --- loading ---------------------------------------------------------------------------------------------


def test_a_users_own_function_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def shout(completion):\n    return float(completion.isupper())\n")
    reward = load_reward(f"{path}:shout", weight=2.0)
    assert (reward.name, reward.weight) == ("shout", 2.0)
    assert [v.reward for v in asyncio.run(score([reward], replies("A", "a")))] == [2.0, 0.0]
    with pytest.raises(ValueError, match=r"mine\.py has no function 'whisper'; it has shout"):
        load_reward(f"{path}:whisper")
    with pytest.raises(ValueError, match="no file"):
        load_reward(f"{tmp_path}/other.py:shout")
    path.write_text("import nonsense_that_is_missing\n")
    with pytest.raises(ValueError, match="fails to load: ModuleNotFoundError"):
        load_reward(f"{path}:shout")


def test_rewards_are_found_by_name_and_in_modules() -> None:
    assert load_reward("numeric") == Reward("numeric", numeric)
    assert load_reward("treewise.reward.numeric:exact", name="mine") == Reward("mine", exact)
    with pytest.raises(ValueError, match="'numerc' is not a reward function; the nearest built-in one is 'numeric'"):
        load_reward("numerc")
    with pytest.raises(ValueError, match=r"can't import 'no\.such'"):
        load_reward("no.such:function")


# --- extraction ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed{1} and then \boxed{", ""),
        (r"\boxed{1} and then \boxed{2", ""),
        (r"\boxed{1} and then \boxed 2", ""),
        (r"\boxed{}", ""),
        (r"\boxed{840}., ... \boxed{840}", "840"),
        (r"\boxed{5}\boxed{6}", "6"),
        (r"\boxed {\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{a \\{b} c}", r"a \\{b} c"),
        (r"\fbox{3} \boxedtimes{4}", "3"),
        ("none", None),
        ("\\boxed{" * 30_000, ""),
    ],
)
def test_r12_the_last_box_counts_and_its_braces_are_balanced(text: str, answer: str | None) -> None:
    assert last_boxed(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer: 12", "12"),
        ("so 3 + 4.\n**Final answer:** 7\nDone", "7"),
        ("answer: 1\nAnswer: 2", "2"),
        ("The answer is 5", None),
        ("My answer: 5", None),
        ("#### 12", "12"),
        ("<answer> 4 </answer>", "4"),
        ("<answer>3</answer><answer>4", ""),
        (r"Answer: \boxed{9}", "9"),
        (r"\boxed{9} Answer:" + "\n" + "Answer:", ""),
        (r"\boxed{9}" + "\nAnswer: 8", "8"),
        ("Answer: " + " " * 100_000 + "x", "x"),
        ("answer" * 20_000, None),
    ],
)
def test_a_stated_answer_is_the_last_one_in_an_explicit_format(text: str, answer: str | None) -> None:
    assert stated_answer(text) == answer


def test_the_gold_answer_is_read_from_the_answer_column() -> None:
    assert gold_answer("48/2 = 24\n24+48 = 72\n#### 72") == "72"
    assert gold_answer(r"We get \boxed{5} or rather $\boxed{\frac{1}{2}}$.") == r"\frac{1}{2}"
    assert gold_answer(" 17 ") == "17"


# --- numbers and texts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "gold"),
    [
        ("5", "5"),
        ("5.0", "5"),
        ("5.", "5"),
        ("$5", "5"),
        (r"\$5", "5"),
        ("$5$", "5"),
        ("5%", "5"),
        (r"5\%", "5"),
        ("1,234", "1234"),
        ("1{,}234,567", "1234567"),
        ("1234.50", "1,234.5"),
        ("-3", "-3"),
        ("\u22123", "-3"),
        ("-$3", "-3"),
        ("$-3", "-3"),
        ("+3", "3"),
        ("1/2", "0.5"),
        ("-1 / 2", "-.5"),
        (r"\frac{1}{2}", "1/2"),
        (r"\dfrac12", "0.5"),
        ("1e3", "1000"),
        ("2.5E-1", "1/4"),
        ("007", "7"),
        ("7", "3 + 4 = 7\n#### 7"),
        (str(2**300), str(2**300)),
    ],
)
def test_numbers_are_equal_by_value(written: str, gold: str) -> None:
    for answer in (rf"So \boxed{{{written}}}.", f"Answer: {written}", f"<answer>{written}</answer>"):
        assert numeric(completion=answer, answer=gold) == 1.0
    assert last_number(completion=f"First 99, then it is {written}", answer=gold) == 1.0
    assert last_number(completion=f"It is **{written}** apples.", answer=gold) == 1.0


@pytest.mark.parametrize(
    ("reply", "gold"),
    [
        ("5", "5"),
        ("The answer is 5", "5"),
        ("Answer: 5 apples", "5"),
        ("Answer: 5 or 6", "5"),
        ("Answer: 2 + 3", "5"),
        ("Answer: 6\nAnswer: 5\nAnswer: 4", "5"),
        ("Answer: 1/0", "0"),
        ("Answer:", "0"),
        (r"\boxed{5} and \boxed{", "5"),
        ("Answer: " + "9" * 100_000, "9"),
        ("Answer: 1e999999999", "1"),
        ("Answer: 12345,678", "12345678"),
        ("", "0"),
    ],
)
def test_numeric_wants_exactly_one_number_in_the_asked_format(reply: str, gold: str) -> None:
    assert numeric(completion=reply, answer=gold) == 0.0


@pytest.mark.parametrize(
    ("reply", "number"),
    [
        ("10-3", "3"),
        ("10 - 3", "3"),
        ("10 -3", "-3"),
        ("x=-3", "-3"),
        ("(4, 5)", "5"),
        ("12 / 4 = 3", "3"),
        ("5 + 6 = 11.\n\nSo it's 11!", "11"),
        ("3.14.", "3.14"),
        ("it costs $1,234.56, thanks", "1234.56"),
        ("7 and 8,", "8"),
        ("5 apples, see step2", "5"),
        ("1,2,3", "3"),
        ("so...5", "5"),
        ("it is 1/2.", "1/2"),
        ("7.5/2.5 = 3", "3"),
    ],
)
def test_the_last_number_of_a_reply(reply: str, number: str) -> None:
    assert last_number(completion=reply, answer=number) == 1.0


def test_a_reply_without_a_number_has_no_last_number() -> None:
    for reply in ("", "none", "." * 1000, "-", "$", "9" * 100_000, "1/0"):
        assert last_number(completion=reply, answer="0") == 0.0


@pytest.mark.parametrize("written", ["\u200f-12", "-12\u200b", "\u2066-12\u2069", "\u00a0-12\u202f", "-1\u00ad2"])
def test_what_nobody_sees_is_no_part_of_an_answer(verifier: MathVerifier, written: str) -> None:
    for reply in (f"\ufeffAnswer: {written}", f"So it is \\boxed{{{written}}}.", f"<answer>{written}</answer>"):
        assert numeric(completion=reply, answer="-12") == 1.0
        assert exact(completion=reply, answer="-12") == 1.0
        assert verifier.verify(gold="-12", answer=reply).correct is True
    assert numeric(completion="Answer: -12", answer=f"#### {written}") == 1.0
    assert exact(completion=f"{written} ", answer="-12") == 1.0


def test_number_scans_take_linear_time() -> None:
    started = time.process_time()
    for unit in ("1", "1,", "1,234", "-", "$", "1/", "1e", ". ", "{", "\\frac{1}{", "Answer:", "#### "):
        last_number(completion=unit * 100_000, answer="7")
        numeric(completion="Answer: " + unit * 100_000, answer="7")
    assert time.process_time() - started < 10


@pytest.mark.parametrize("gold", [None, "", "  ", "seven", "7 or 8", "1/0", "9" * 1000])
@pytest.mark.parametrize("function", [numeric, last_number])
def test_a_gold_answer_that_is_no_number_gives_no_verdict(function: Callable[..., float], gold: str | None) -> None:
    with pytest.raises(NoVerdict):
        function(completion="Answer: 7", answer=gold)


def test_exact_compares_normalised_text() -> None:
    assert exact(completion="Answer: Paris.", answer="paris") == 1.0
    assert exact(completion=' "New   York" ', answer="new york") == 1.0
    assert exact(completion=r"Not Rome: \boxed{Paris}", answer="Paris") == 1.0
    assert exact(completion="ﬁve", answer="five") == 1.0
    assert exact(completion="It is Paris", answer="Paris") == 0.0
    assert exact(completion="Answer: Paris or Rome", answer="Paris") == 0.0
    assert exact(completion="Answer:", answer="Paris") == 0.0
    with pytest.raises(NoVerdict):
        exact(completion="", answer=None)


# --- formats ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "think", "both"),
    [
        ("<think>a</think>b", 1, 0),
        ("<think>a</think><answer>b</answer>", 1, 1),
        ("<think>a\nb</think>\n\n<answer>c\nd</answer>\n", 1, 1),
        ("<think>a</think><think>b</think><answer>c</answer>", 0, 0),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 1, 0),
        ("<think></think><answer>b</answer>", 0, 0),
        ("<think> \n</think>b", 0, 0),
        ("<think>a</think><answer></answer>", 1, 0),
        ("<think>a</think>", 0, 0),
        ("<think>a</think><answer>b</answer> and more", 1, 0),
        ("well, <think>a</think><answer>b</answer>", 0, 0),
        ("<think>a</think> so <answer>b</answer>", 1, 0),
        ("</think>a<think>b", 0, 0),
        ("<answer>b</answer><think>a</think>", 0, 0),
        ("<think>a <think> b</think>c", 0, 0),
        ("", 0, 0),
        ("<think>" * 50_000, 0, 0),
    ],
)
def test_r14_each_tag_stands_exactly_once_and_holds_something(reply: str, think: int, both: int) -> None:
    assert think_format(completion=reply) == think
    assert think_answer_format(completion=reply) == both


def test_t04_what_the_template_opened_belongs_to_the_reply() -> None:
    for opened in ({"prefill": "<think>\n"}, {"prompt": "What is 2+2?\n<think>\n"}):
        assert think_format(completion="First.</think>\n4", **opened) == 1.0
        assert think_format(completion="First. 4", **opened) == 0.0
        assert think_format(completion="<think>First.</think>4", **opened) == 0.0
    problem = Problem("0", ({"role": "user", "content": "2+2?"},))
    reply = Reply(problem, "First.</think>\n4", prefill="<think>\n")
    [verdict] = asyncio.run(score([load_reward("think_format")], [reply]))
    assert verdict.reward == 1.0


# --- mathematics -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def verifier() -> Iterator[MathVerifier]:
    made = MathVerifier(deadline=60.0)  # a busy machine is not an error here
    yield made
    made.close()


@pytest.mark.parametrize(
    ("gold", "answer", "correct"),
    [
        ("1/3", r"\boxed{\frac13}", True),
        ("1/3", r"The answer is $\frac{2}{6}$, which is less than 1.", True),
        ("1/2", "0.5", True),
        ("72", "Answer: 72", True),
        ("1 + 2 = 3\n#### 3", r"\boxed{3}", True),
        ("840", r"\boxed{840}., ... \boxed{840}", True),
        ("840840", r"\boxed{840}., ... \boxed{840}", False),
        ("4", r"\boxed{004} ... \boxed{004}", True),
        ("6", r"\boxed{5}\boxed{6}", True),
        ("5", r"\boxed{5}\boxed{6}", False),
        ("1", r"\boxed{1} and then \boxed{", False),
        ("0", r"\boxed{}", False),
        ("7", "the answer is 7 or 8", False),
        ("7", r"\boxed{7 \text{ or } 8}", False),
        ("7", r"\boxed{7} or \boxed{8}", False),
        ("7", r"\boxed{7, 8}", False),
        ("1/2", r"\boxed{1/2 or 0.5}", True),
        ("x=7 or x=8", r"\boxed{x=8 or x=7}", True),
        (r"\frac{1}{2}", "I can't say", False),
    ],
)
def test_r09_r12_r14_mathematical_answers(verifier: MathVerifier, gold: str, answer: str, correct: bool) -> None:
    compared = verifier.verify(gold=gold, answer=answer)
    assert compared.correct is correct
    assert (compared.cause is None) == correct


def test_wrong_answers_say_why(verifier: MathVerifier) -> None:
    assert verifier.verify(gold="7", answer=r"\boxed{8}") == (False, "not equal")
    assert verifier.verify(gold="7", answer="no idea").cause == "the answer can't be parsed"
    assert verifier.verify(gold="7", answer="").cause == "no answer found"
    assert verifier.verify(gold="7", answer=r"\boxed{}").cause == "no answer found"


def test_a_gold_answer_that_can_not_be_parsed_gives_no_verdict(verifier: MathVerifier) -> None:
    for answer in (r"\boxed{(}", r"\boxed{4}"):
        assert verifier.verify(gold="(", answer=answer) == (None, "the gold answer can't be parsed")
    assert verifier.verify(gold=" ", answer="4") == (None, "no gold answer")
    with pytest.raises(NoVerdict, match="no gold answer"):
        verifier(completion="4", answer=None)


def test_r11_gold_and_answer_have_names_and_an_order(verifier: MathVerifier) -> None:
    condition, interval = r"-2 \le x \le 7", "[-2,7]"
    assert verifier.verify(gold=condition, answer=rf"\boxed{{{interval}}}").correct is True
    assert verifier.verify(gold=interval, answer=rf"\boxed{{{condition}}}").correct is False
    with pytest.raises(TypeError):
        verifier.verify("1", "1")  # type: ignore[misc]


def test_r01_it_works_in_threads_and_in_asyncio(verifier: MathVerifier) -> None:
    def check(_: int = 0) -> bool | None:
        return verifier.verify(gold="1/3", answer=r"\boxed{\frac13}").correct

    results: list[bool | None] = []
    thread = threading.Thread(target=lambda: results.append(check()))
    thread.start()
    thread.join()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        results += pool.map(check, range(8))

    async def inside() -> bool | None:
        return await asyncio.to_thread(check)

    results.append(asyncio.run(inside()))
    assert results == [True] * 10


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_r01_it_works_in_process_pools(verifier: MathVerifier, method: str) -> None:
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        jobs = [
            pool.submit(verifier.verify, gold="1/3", answer=r"\boxed{\frac13}"),
            pool.submit(verifier.verify, gold="1/3", answer=r"\boxed{3}"),
        ]
        assert [job.result(60).correct for job in jobs] == [True, False]


def test_r02_a_hang_is_a_timeout_and_the_next_item_is_scored() -> None:
    verifier = MathVerifier(deadline=1.0)
    assert verifier.verify(gold="3", answer="3").correct is True
    started = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:  # R01: no alarm reaches a thread
        hung = pool.submit(verifier.verify, gold="3", answer=TOWER).result()
    assert hung == (None, "timeout: no result within 1 s")
    assert time.perf_counter() - started < 4
    problem = Problem("0", "p", "3")
    given = [Reply(problem, text) for text in ("9**9**9**9", "3", "4")]
    hang, right, wrong = asyncio.run(score([Reward("math", verifier)], given))
    assert (hang.reward, hang.cause) == (None, "math: timeout: no result within 1 s")
    assert (right.reward, wrong.reward) == (1.0, 0.0)
    verifier.close()


TARGETS = """
import os, time

def slow(seconds):
    time.sleep(seconds)
    return "woke"

def crash():
    os._exit(1)

def fill_memory():
    return len(bytearray(2**40))

def broken_grader(**arguments):
    raise RuntimeError("the grader is broken")
"""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Worker]]:
    """Makes workers whose functions stand in a small module of their own, which is quick to import."""
    (tmp_path / "worker_targets.py").write_text(TARGETS)
    monkeypatch.syspath_prepend(tmp_path)
    made: list[Worker] = []

    def make(function: str) -> Worker:
        made.append(Worker(f"worker_targets:{function}"))
        return made[-1]

    yield make
    for one in made:
        one.close()


def test_r03_a_short_deadline_is_kept(worker: Callable[[str], Worker]) -> None:
    slow = worker("slow")
    assert slow.call(deadline=20.0, seconds=0) == "woke"
    started = time.perf_counter()
    with pytest.raises(TimeoutError, match=r"within 0\.5 s"):
        slow.call(deadline=0.5, seconds=5)
    assert time.perf_counter() - started < 1.5
    assert slow.call(deadline=20.0, seconds=0) == "woke"


def test_what_a_worker_can_not_do_is_an_error(worker: Callable[[str], Worker]) -> None:
    with pytest.raises(WorkerError, match="TypeError"):
        worker("slow").call(deadline=20.0, minutes=5)
    with pytest.raises(WorkerError, match="MemoryError"):
        worker("fill_memory").call(deadline=20.0)
    crash = worker("crash")
    for _ in range(2):
        with pytest.raises(WorkerError, match="died"):
            crash.call(deadline=20.0)
    with pytest.raises(WorkerError, match="AttributeError"):
        worker("missing").call(deadline=20.0)


def test_r03_a_broken_grader_is_never_a_wrong_answer(worker: Callable[[str], Worker]) -> None:
    verifier = MathVerifier()
    verifier._worker = worker("broken_grader")
    assert verifier.verify(gold="3", answer="3") == (None, "error: RuntimeError: the grader is broken")


def test_the_process_of_a_worker_ends_with_it(worker: Callable[[str], Worker]) -> None:
    slow = Worker("worker_targets:slow")
    assert slow.call(deadline=20.0, seconds=0) == "woke"
    process = slow._stop.peek()[2][0]  # type: ignore[union-attr]
    assert process.poll() is None
    del slow
    assert process.poll() is not None


@pytest.mark.parametrize("returned", [1.0, {"score": 1.0, "acc": True}])
def test_a_reward_function_of_verl_works_as_it_is(returned: Any) -> None:
    seen = []

    def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> Any:
        seen.append((data_source, solution_str, ground_truth, extra_info))
        return returned

    problem = Problem("0", "2 + 2?", "4", {"data_source": "gsm8k", "extra_info": {"index": 0}})
    (verdict,) = asyncio.run(score([load_reward(compute_score)], [Reply(problem, "it is 4")]))
    assert verdict.reward == 1.0
    assert seen == [("gsm8k", "it is 4", "4", {"index": 0})]


def test_a_dict_without_a_score_is_no_verdict() -> None:
    def compute_score(solution_str: str) -> dict[str, float]:
        return {"acc": 1.0}

    (verdict,) = asyncio.run(score([load_reward(compute_score)], [Reply(Problem("0", "", "4"), "4")]))
    assert (verdict.reward, verdict.cause) == (None, "compute_score: returned None")
