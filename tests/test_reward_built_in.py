"""The built-in rewards that look at letters, lengths, repetition, scripts, JSON and tags."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator, Sequence
from math import cos, pi
from pathlib import Path
from typing import Any

import pytest

from treewise.reward import NoVerdict, Reply, score
from treewise.reward.choice import choice
from treewise.reward.format import think_answer_format, think_format
from treewise.reward.language import Language
from treewise.reward.length import CosineLength, SoftOverlong
from treewise.reward.load import load_reward
from treewise.reward.repetition import Repetition
from treewise.reward.schema import JsonSchema
from treewise.types import Problem

CHOICES = ["a dog", "Paris", "vitamin C", "do not open"]


# Choices


@pytest.mark.parametrize(
    "reply",
    [
        "B",
        "(B)",
        "B)",
        "B.",
        "b",
        "**B**",
        "B) Paris",
        "(B) Paris",
        r"so \boxed{B}",
        r"\boxed{\text{(B)}}",
        r"Therefore, the answer is $\boxed{\textbf{(B)}}$.",
        "Answer: B",
        "Answer: **B. Paris**",
        "Final answer: (B) Paris.",
        "Answer: option B",
        "<answer>B</answer>",
        "#### B",
        "The answer is (B).",
        "The correct answer is B because C is wrong.",
        "Not A. The answer is B!",
        "The correct option is (B).",
        "First I thought of A.\nAnswer: A\nBut no.\nAnswer: B",
        r"\boxed{A}, or rather \boxed{B}",
        "A is too large, and so is C.\n\nB",
    ],
)
def test_the_last_stated_letter_is_the_answer(reply: str) -> None:
    for gold in ("B", "b", "(B)", "1", "so #### B"):
        assert choice(completion=reply, answer=gold) == 1.0
        assert choice(completion=reply, answer=gold, choices=CHOICES) == 1.0
    assert choice(completion=reply, answer="paris", choices=CHOICES) == 1.0
    assert choice(completion=reply, answer="A") == choice(completion=reply, answer="2", choices=CHOICES) == 0.0


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "Answer:",
        "Answer: B or C",
        "Answer: B/C",
        "Answer: A and B",
        "the answer is (B) or (C)",
        r"\boxed{B, C}",
        r"\boxed{B} or \boxed{C}",
        "Answer: AB",
        "Answer: Banana",
        "Answer: B-52",
        "Answer: B's",
        "Answer: \u0412",  # a Cyrillic letter
        "Answer: 1",
        "The answer is not B",
        "The answer is neither A nor B",
        "I think it may be B, who knows",
        r"\boxed{B} and then \boxed{",
        "B " * 50_000,
    ],
)
def test_no_letter_or_several_or_one_inside_of_a_word_is_wrong(reply: str) -> None:
    assert [choice(completion=reply, answer=gold, choices=CHOICES) for gold in "ABCD"] == [0.0] * 4


def test_what_a_letter_stands_for_may_follow_it_or_stand_alone_where_the_choices_are_known() -> None:
    for reply in ("Answer: C) Vitamin C", "C: vitamin c.", "Answer: vitamin C", r"\boxed{\text{vitamin C}}"):
        assert choice(completion=reply, answer="C", choices=CHOICES) == 1.0
    assert choice(completion="Answer: A dog", answer="A", choices=CHOICES) == 1.0
    assert choice(completion="Answer: A dog", answer="A") == 0.0  # an article
    assert choice(completion="Answer: D) Do not open", answer="D", choices=CHOICES) == 1.0
    assert choice(completion="Answer: B) Vitamin C", answer="C", choices=CHOICES) == 0.0
    assert choice(completion="Answer: x", answer="A", choices=["x", "x"]) == 0.0  # which of them?


@pytest.mark.parametrize(
    ("gold", "choices", "right"),
    [
        ("0", None, "A"),
        ("3", CHOICES, "D"),
        ("2", ["2", "4", "2.5"], None),  # the text of A, the index of C
        ("1", ["5", "1"], "B"),  # the same choice either way
        ("B", ["B", "A"], None),
        ("1", {"text": ["x", "y"], "label": ["1", "2"]}, "A"),
        ("B", {"text": ["x", "y"], "label": ["A", "B"]}, "B"),
        ("4", CHOICES, None),
        ("E", CHOICES, None),
        ("London", CHOICES, None),
        ("AC", CHOICES, None),
        ("", CHOICES, None),
        (None, CHOICES, None),
        ("A", "a dog, Paris", None),
    ],
)
def test_a_gold_answer_is_a_letter_an_index_or_a_text_and_never_guessed(gold: Any, choices: Any, right: Any) -> None:
    found = []
    for letter in "ABCD":
        try:
            found.append(choice(completion=letter, answer=gold, choices=choices))
        except NoVerdict:
            found.append(None)
    assert found == ([None] * 4 if right is None else [float(letter == right) for letter in "ABCD"])


# Lengths


@pytest.mark.parametrize(("length", "penalty"), [(0, 0.0), (60, 0.0), (70, -0.25), (100, -1.0), (1000, -1.0)])
def test_soft_overlong_is_dapos_equation_13(length: int, penalty: float) -> None:
    assert SoftOverlong(max_tokens=100, buffer=40)(completion="", completion_ids=[0] * length) == penalty


def lengths(reward: Any, *replies: tuple[str, int], answer: str = "7", **columns: Any) -> list[float | None]:
    given = [Reply(Problem("0", "p", answer, columns), text, completion_ids=[1] * count) for text, count in replies]
    return [verdict.reward for verdict in asyncio.run(score([reward], given))]


def test_a_right_reply_is_worth_less_and_a_wrong_one_punished_less_the_longer_it_is() -> None:
    options = {"function": "numeric", "max_tokens": 8, "right": [2.0, 1.0], "wrong": [-10.0, 0.0], "exceed": -3.0}
    reward = load_reward("cosine_length", options=options)
    right, wrong = "Answer: 7", "Answer: 8"
    found = lengths(reward, (right, 0), (right, 2), (right, 4), (right, 8), (wrong, 0), (wrong, 6), (wrong, 9))
    quarter = (1 + cos(pi / 4)) / 2
    expected = [2.0, 1 + quarter, 1.5, -3.0, -10.0, -10 * (1 - quarter), -3.0]
    assert found == pytest.approx(expected)
    assert lengths(reward, (right, 1), answer="no number") == [None]


def test_cosine_length_passes_on_what_its_reward_needs_and_misses_it_at_once(tmp_path: Path) -> None:
    inner = {"function": "choice", "max_tokens": 100, "options": {"choices": ["x", "y"]}}
    assert lengths(load_reward("cosine_length", options=inner), ("Answer: y", 0), answer="y") == [1.0]
    path = tmp_path / "mine.py"
    path.write_text(
        "async def level(completion, completion_ids, level):\n    return level + len(completion_ids)\n"
        "def all_of(completions):\n    return []\n"
    )
    own = load_reward("cosine_length", options={"function": f"{path}:level", "max_tokens": 8, "reaches": 4})
    assert lengths(own, ("", 4), ("", 0), level=0) == pytest.approx([0.75, -1.0])
    with pytest.raises(ValueError, match="cosine_length needs level, which is neither a column"):
        lengths(own, ("", 4))
    with pytest.raises(ValueError, match="a reward that judges one reply; .* judges completions"):
        CosineLength(function=f"{path}:all_of", max_tokens=8)


# Repetition


@pytest.mark.parametrize(
    ("reply", "penalty"),
    [
        ("", 0.0),
        ("a b", 0.0),
        ("a b c", 0.0),
        ("a b c d e", 0.0),
        ("a a a a a", -2 / 3),
        ("So it is. so IT is. so it is.", -4 / 7),
        ("我们我们我们", -0.5),
        ("これは水です", 0.0),
        ("กขกขกข", -0.5),
        ("word " * 20_000, -(1 - 1 / 19_998)),
    ],
)
def test_repetition_is_the_share_of_n_grams_that_were_there_before(reply: str, penalty: float) -> None:
    assert Repetition()(completion=reply, completion_ids=[]) == pytest.approx(penalty)
    assert Repetition(penalty=0.5)(completion=reply, completion_ids=[]) == pytest.approx(penalty / 2)


def test_tokens_show_repetition_inside_of_a_word() -> None:
    assert Repetition(size=2)(completion="hahahaha", completion_ids=[5, 5, 5, 5]) == 0.0
    assert Repetition(size=2, unit="tokens")(completion="hahahaha", completion_ids=[5, 5, 5, 5]) == pytest.approx(
        -2 / 3
    )


# Language


@pytest.mark.parametrize(
    ("script", "reply", "share"),
    [
        ("latin", "So we solve it.", 1.0),
        ("latin", "Größe, naïve, ﬁve, Ａｌｌ", 1.0),
        ("latin", "我们 solve 它", 5 / 8),
        ("han", "我们 solve 它", 3 / 8),
        ("han", "设x为未知数，则 $x+y = \\text{total}$，`code here` \\boxed{7}。", 1.0),
        ("han", "<think>我们</think>\n```python\nprint('hello')\n```\n好", 1.0),
        ("han", "好 ```python\nnever closed", 1.0),
        ("han", "好 \\(never closed", 1.0),
        ("han", "见 https://example.org/page", 1.0),
        (["han", "hiragana", "katakana"], "これは水でコーヒー", 1.0),
        ("han", "これは水", 0.25),
        ("cyrillic", "Ответ: семь", 1.0),
        ("hangul", "답은 일곱", 1.0),
        ("latin", "", 0.0),
        ("latin", "7 + 5 = 12", 0.0),
    ],
)
def test_the_share_of_letters_in_the_wanted_script(script: Any, reply: str, share: float) -> None:
    assert Language(script)(completion=reply) == pytest.approx(share)


# JSON


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "pattern": "^[a-z]+$"}, "n": {"type": "number", "multipleOf": 0.5}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def schema() -> Iterator[JsonSchema]:
    pytest.importorskip("jsonschema")
    made = JsonSchema(schema=SCHEMA, deadline=60.0)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("reply", "valid"),
    [
        ('{"name": "a"}', 1),
        (' {"name": "a", "n": 1.5}\n', 1),
        ('Here it is:\n```json\n{"name": "a"}\n```\nDone.', 1),
        ('```\n{"name": 1}\n```\nor rather\n```json\n{\n  "name": "a"\n}\n```', 1),
        ('```\n{"name": "a"}\n```\nor rather\n```json\n{"name": 1}\n```', 0),
        ('```json\n{"name": "a"}', 0),
        ('{"name": "a"} and more', 0),
        ("{'name': 'a'}", 0),
        ('{"name": "A"}', 0),
        ('{"name": "a", "m": 1}', 0),
        ('{"name": "a", "n": NaN}', 0),
        ('{"name": "a", "n": 1e999}', 0),
        ('{"name": "a", "n": ' + "9" * 5000 + "}", 0),
        ("[" * 100_000, 0),
        ("", 0),
        ('{"name": "' + "a" * 100_000 + '"}', 1),
    ],
)
def test_json_of_the_right_shape(schema: JsonSchema, reply: str, valid: int) -> None:
    assert schema(completion=reply) == valid


def test_a_schema_comes_from_an_option_a_file_or_a_column(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema")
    path = tmp_path / "schema.json"
    path.write_text('{"type": "integer"}')
    of_file = JsonSchema(schema=str(path), deadline=60.0)
    assert [of_file(completion=reply) for reply in ("3", '"3"')] == [1.0, 0.0]
    of_column = load_reward("json_schema", options={"deadline": 60.0})
    assert lengths(of_column, ("3", 1), ("x", 1), schema={"type": "integer"}) == [1.0, 0.0]
    assert lengths(of_column, ("3", 1), schema='{"type": "string"}') == [0.0]
    assert lengths(of_column, ("3", 1)) == lengths(of_column, ("3", 1), schema="{") == [None]
    with pytest.raises(ValueError, match="can't read the schema"):
        JsonSchema(schema=str(tmp_path / "other.json"))


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        ({"type": "objekt"}, "the schema is wrong: 'objekt' is not valid"),
        ({"$ref": "https://example.org/schema.json"}, "Unresolvable"),
        ({"$ref": "#/$defs/nothing"}, "PointerToNowhere"),
        ({"pattern": "("}, r"the schema is wrong: '\(' is not a 'regex'"),
    ],
)
def test_a_schema_that_can_not_be_used_is_no_verdict_and_fetches_nothing(
    schema: JsonSchema, bad: dict[str, Any], cause: str
) -> None:
    given = JsonSchema(schema=bad, deadline=60.0)
    with pytest.raises(NoVerdict, match=cause):
        given(completion='"x"')
    given.close()


def test_no_schema_is_fetched_from_the_network() -> None:
    pytest.importorskip("jsonschema")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/schema.json"
        given = JsonSchema(schema={"$ref": address}, deadline=60.0)
        with pytest.raises(NoVerdict, match="Unresolvable"):
            given(completion='"x"')
        given.close()
        listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            listening.accept()


def test_a_pattern_that_takes_for_ever_is_no_verdict_and_the_next_reply_is_judged() -> None:
    pytest.importorskip("jsonschema")
    hostile = JsonSchema(schema={"pattern": "^(a+)+$"}, deadline=1.5)
    assert hostile(completion='"aaa"') == 1.0
    with pytest.raises(NoVerdict, match=r"no result within 1\.5 s"):
        hostile(completion='"' + "a" * 60 + '!"')
    assert hostile(completion='"a!"') == 0.0
    hostile.close()


# Formats


@pytest.mark.parametrize(
    ("reply", "think", "both"),
    [
        ("<think>\u200b</think>b", 0, 0),  # nothing to be seen
        ("<think>...</think>b", 0, 0),
        ("<think>—</think><answer>b</answer>", 0, 0),
        ("<think>7</think><answer>+</answer>", 1, 1),
        ("<think>a</think>\u200b", 0, 0),
        ("<think>a</think><answer>\u200b</answer>", 1, 0),
        ("<think>a<answer>b</answer></think>", 0, 0),
        ("<think>a<think>b</think></think>c", 0, 0),
        ("<think>a</think></think>b", 0, 0),
        ("<think>a</think><answer>b<answer>c</answer></answer>", 1, 0),
        ("<think>a</think>b" * 2, 0, 0),
        ("<think>a</think>" * 30_000, 0, 0),
    ],
)
def test_r14_tags_that_are_nested_or_repeated_or_empty_earn_nothing(reply: str, think: int, both: int) -> None:
    assert think_format(completion=reply) == think
    assert think_answer_format(completion=reply) == both


@pytest.mark.parametrize(
    ("prefill", "reply", "expected"),
    [
        ("<think>\n", "First.</think>4", 1),
        ("<think>\n", "<think>First.</think>4", 0),
        ("<think>\n", "</think>4", 0),
        ("Sure. <think>", "First.</think>4", 1),
        ("<think>\n\n</think>\n\n", "4", 0),
        ("<think>\n\n</think>\n\n", "<think>First.</think>4", 0),
        ("Sure.", "<think>First.</think>4", 1),
    ],
)
def test_tags_that_the_template_wrote_count_once(prefill: str, reply: str, expected: int) -> None:
    assert think_format(completion=reply, prefill=prefill) == expected


# All of them


def test_hostile_replies_take_linear_time() -> None:
    units: Sequence[str] = (
        "A ", "(", "option is ", "not ", "```\n", "`", "$", "\\(", "<a", "</", "我", "<think>", "\\text{", "```a", "*",
    )  # fmt: skip
    started = time.process_time()
    for unit in units:
        text = unit * 30_000
        choice(completion=text, answer="A", choices=CHOICES)
        choice(completion=f"Answer: {text}", answer="A", choices=CHOICES)
        Language("han")(completion=text)
        Repetition()(completion=text, completion_ids=[])
        think_answer_format(completion=f"<think>{text}</think><answer>{text}</answer>")
    assert time.process_time() - started < 20
