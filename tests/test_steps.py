"""Rewards of single steps: splitting, the tokens that steps end with, judging, and a model that learns from them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import folders
from treewise import cli
from treewise.chat import Chat
from treewise.loop import train
from treewise.recipe import make_recipe
from treewise.reward import Reply, Reward, Verdict, score
from treewise.reward.load import check_steps, load_reward
from treewise.rollout import collect
from treewise.sampler import Request
from treewise.steps import last_tokens, split_steps
from treewise.types import Completion, Problem, Sampling, StopReason, Trajectory

# --- where a step ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "separator", "steps"),
    [
        ("one\ntwo\nthree", "\n", ["one\n", "two\n", "three"]),
        ("one\ntwo\n", "\n", ["one\n", "two\n"]),
        ("one", "\n", ["one"]),
        ("one\n\ntwo", "\n", ["one\n\n", "two"]),
        ("one\n \n\ntwo\n  ", "\n", ["one\n \n\n", "two\n  "]),
        ("\n\n one\ntwo", "\n", ["\n\n one\n", "two"]),
        ("one\ntwo\n\nthree\n\n\nfour", "\n\n", ["one\ntwo\n\n", "three\n\n", "\nfour"]),
        ("A. B... C", ".", ["A.", " B...", " C"]),
        ("Step 1: x Step 2: y", "Step", ["Step 1: x Step", " 2: y"]),
        ("a<|a<|b", "<|", ["a<|", "a<|", "b"]),
        ("", "\n", []),
        (" \n\n ", "\n", []),
    ],
)
def test_a_separator_belongs_to_the_step_that_it_ends(text: str, separator: str, steps: list[str]) -> None:
    assert split_steps(text, separator) == steps
    assert "".join(steps) in (text, "")


def _alphabet() -> list[str]:
    """The letter that byte-level tokenizers write for each byte: printable ones are themselves, others follow."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def _token(raw: bytes) -> str:
    return "".join(_alphabet()[byte] for byte in raw)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with tokens that hold a line break and a neighbour, the second half of a character included."""
    pairs = [(b"i", b"s"), (b"\n", b"\n"), (b".", b"\n"), (b"\xa9", b"\n"), (b"b", b".\n"), (b".\n", b"b.\n")]
    merges = [(_token(left), _token(right)) for left, right in pairs]
    words = ["<end>", *_alphabet(), *("".join(pair) for pair in merges)]
    backend = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<end>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")


def llama_tokenizer() -> PreTrainedTokenizerFast:
    """SentencePiece's way: ▁ for spaces, bytes for characters that it lacks, the first space is stripped."""
    words = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"aAB.:0123"]
    backend = Tokenizer(
        models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>")


def located(tokenizer: PreTrainedTokenizerFast, ids: Sequence[int], separator: str) -> list[tuple[str, int]]:
    chat = Chat(tokenizer)
    steps = split_steps(chat.decode(ids), separator)
    return list(zip(steps, last_tokens(steps, ids, chat.decode), strict=True))


@pytest.mark.parametrize("separator", ["\n", "\n\n", ".\n", "。", "é"])
def test_a_step_ends_with_the_token_that_holds_its_last_byte(separator: str) -> None:
    """Against a count of bytes, for tokens that are cut anywhere, also inside of characters."""
    tokenizer, dice = byte_tokenizer(), random.Random(0)
    byte_of = {letter: byte for byte, letter in enumerate(_alphabet())}
    vocabulary = {
        number: bytes(byte_of[letter] for letter in token)
        for token, number in sorted(tokenizer.get_vocab().items())
        if number
    }
    several = 0
    for _ in range(200):
        parts = dice.choices(["is", ".\n", "\n\n", "\n", "é", "漢字", "。", " ", "🙂", "a"], k=14)
        raw, ids = "".join(parts).encode(), []
        while raw:
            number = dice.choice([n for n, token in vocabulary.items() if raw.startswith(token)])
            ids.append(number)
            raw = raw.removeprefix(vocabulary[number])
        ends = np.cumsum([len(vocabulary[number]) for number in ids])
        upto = 0
        found = located(tokenizer, [*ids, 0], separator)
        for step, token in found[:-1]:
            upto += len(step.encode())
            assert token == np.searchsorted(ends, upto)
        assert found[-1][1] == len(ids)
        several += len(found) > 2
    assert several > 20


def test_spaces_and_missing_characters_of_a_sentencepiece_tokenizer_are_counted() -> None:
    tokenizer = llama_tokenizer()
    text = "A: 1 ≤ 2\n B 🙂🙂\n\na 漢\n0"
    ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
    breaks = [n for n, number in enumerate(ids) if tokenizer.convert_ids_to_tokens(number) == "<0x0A>"]
    assert located(tokenizer, ids, "\n") == [
        ("A: 1 ≤ 2\n", breaks[0]),
        (" B 🙂🙂\n\n", breaks[2]),
        ("a 漢\n", breaks[3]),
        ("0", len(ids) - 1),
    ]


def test_bytes_that_are_no_text_do_not_move_the_ends_of_steps() -> None:
    tokenizer = byte_tokenizer()
    ids = [tokenizer.convert_tokens_to_ids(_token(bytes([byte]))) for byte in b"a\xe6\xffb\nc\xf0\nd\n\xe6\x9c"]
    assert [token for _, token in located(tokenizer, ids, "\n")] == [4, 7, 9, 11]


# --- judging ---------------------------------------------------------------------------------------------


def judge(rewards: Sequence[Reward], *texts: str, **columns: Any) -> list[Verdict]:
    return asyncio.run(
        score(rewards, [Reply(Problem("0", "p", "7", columns), t, steps=split_steps(t, "\n")) for t in texts])
    )


def lengths(steps: list[str]) -> list[float]:
    return [float(len(step)) for step in steps]


def test_a_function_of_steps_gets_what_it_names() -> None:
    def one(steps: list[str], *, answer: str, prompt: str, level: int, **columns: Any) -> list[float]:
        assert (answer, prompt, level, columns["completion"]) == ("7", "p", 3, "".join(steps))
        return [len(step) for step in steps]

    async def another(steps: list[str]) -> Any:
        return torch.tensor(lengths(steps))

    for function in (one, another):
        [verdict] = judge([load_reward(function, name="it", weight=0.5)], "a\nbcd", level=3)
        assert verdict == Verdict(2.5, {"it": 5.0}, steps=(1.0, 1.5))


def test_steps_add_up_and_the_whole_replys_reward_comes_with_the_last_one() -> None:
    def negative(steps: list[str]) -> list[float]:
        return [-1.0, 0.0, -1.0]

    def outcome(completion: str) -> float:
        return 10.0

    def batch(completions: list[str]) -> list[float]:
        return [100.0] * len(completions)

    rewards = [
        load_reward(lengths),
        load_reward(negative, weight=2.0),
        load_reward(outcome),
        load_reward(batch, weight=0.5),
        load_reward(lengths, name="recorded", weight=0.0),
    ]
    [verdict] = judge(rewards, "a\nb\nccc")
    assert verdict.steps == (0.0, 2.0, 61.0)
    assert verdict.reward == 63.0
    assert verdict.scores == {"lengths": 7.0, "negative": -2.0, "outcome": 10.0, "batch": 100.0, "recorded": 7.0}
    [verdict] = judge(rewards[2:], "a\nb")
    assert (verdict.reward, verdict.steps) == (60.0, ())


def test_a_reply_without_steps_is_not_shown_and_keeps_what_the_whole_reply_gets() -> None:
    def careful(steps: list[str]) -> list[float]:
        assert steps
        return lengths(steps)

    rewards = [load_reward(careful), load_reward(lambda completion: 3.0, name="outcome")]
    for text in ("", " \n\n"):
        assert judge(rewards, text) == [Verdict(3.0, {"careful": 0.0, "outcome": 3.0})]
        assert judge(rewards[:1], text) == [Verdict(0.0, {"careful": 0.0})]


@pytest.mark.parametrize(
    ("returned", "cause"),
    [
        (None, "it: returned None"),
        ([1.0, None], "it: step 2 of 2: returned None"),
        ([float("nan"), 1.0], "it: step 1 of 2: returned nan"),
        (["1", 1.0], "it: step 1 of 2: returned '1', which is a str and not a number"),
        ([1e308, 1e308], "it: returned inf"),
        ([1e200, -1e200], "the weighted sums of the steps are [1e+200, -1e+200]"),
    ],
)
def test_a_step_without_verdict_leaves_the_reply_without_one(returned: Any, cause: str) -> None:
    rewards = [load_reward(lambda steps: returned, name="it"), load_reward(lambda completion: 1.0, name="other")]
    [verdict] = judge(rewards, "a\nb")
    assert (verdict.reward, verdict.steps, verdict.scores["other"]) == (None, (), 1.0)
    assert verdict.cause is not None
    assert verdict.cause.startswith(cause)


def test_a_function_that_raises_gives_no_verdict() -> None:
    [verdict] = judge([load_reward(lambda steps: 1 / 0, name="it")], "a\nb")
    assert verdict == Verdict(None, {"it": None}, "it: ZeroDivisionError: division by zero")


@pytest.mark.parametrize("returned", [[], [1.0], [1.0] * 3, 1.0, "ab"])
def test_a_wrong_count_of_steps_is_an_error_with_names_and_numbers(returned: Any) -> None:
    got = len(returned) if isinstance(returned, list) else type(returned).__name__
    with pytest.raises(ValueError, match=rf"it must return a list with one value per step: expected 2, got {got}"):
        judge([load_reward(lambda steps: returned, name="it")], "a\nb")


def test_beside_a_completion_a_parameter_steps_is_a_column() -> None:
    def outcome(completion: str, steps: int) -> float:
        return float(steps)

    def batch(completions: list[str], steps: list[int]) -> list[float]:
        return [float(n) for n in steps]

    for function in (outcome, batch):
        assert judge([load_reward(function, name="it")], "a\nb", steps=4) == [Verdict(4.0, {"it": 4.0})]
        with pytest.raises(ValueError, match="only a function without `completion` and `completions` judges `steps`"):
            judge([load_reward(function)], "a\nb")


def test_options_about_steps_that_have_no_effect_are_errors() -> None:
    steps, outcome = load_reward(lengths), load_reward("numeric")
    check_steps([outcome, steps], advantage="steps", separator="\n\n", played=False)
    check_steps([outcome, steps], advantage="group_mean", separator="\n", played=False)
    check_steps([outcome, load_reward(lengths, weight=0.0)], advantage="group_mean", separator="\n\n", played=False)
    for rewards in ([outcome], [outcome, load_reward(lengths, weight=0.0)]):
        with pytest.raises(
            ValueError, match=r"objective.advantage = 'steps' has no effect: .*numeric.*def judge\(steps"
        ):
            check_steps(rewards, advantage="steps", separator="\n", played=False)
    with pytest.raises(ValueError, match=r"rollout.step_separator = '\\n\\n' has no effect: .*numeric"):
        check_steps([outcome], advantage="group_mean", separator="\n\n", played=False)
    with pytest.raises(ValueError, match=r"in a shell write --rollout.step_separator \$'\\n\\n'"):
        make_recipe({}, {"rollout.step_separator": r"\n"})


# --- from answers to trajectories ------------------------------------------------------------------------


class Script:
    """A sampler that answers what it was told, once."""

    version = 0
    max_length = None

    def __init__(self, ids: Sequence[int], reason: StopReason) -> None:
        self.completion = Completion(np.array(ids, dtype=np.int64), np.zeros(len(ids)), reason, 0)

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        return [self.completion for _ in requests]

    def sync(self, policy: Any, version: int) -> None: ...


def answered(ids: Sequence[int], reason: StopReason, function: Callable[..., Any], **options: Any) -> Trajectory:
    (group,) = collect(
        [Problem("0", "is")],
        group_size=1,
        sampler=Script(ids, reason),
        sampling=Sampling(99, stop=options.pop("stop", ())),
        chat=Chat(byte_tokenizer()),
        rewards=[load_reward(function, name="it")],
        seed=(0,),
        **options,
    )
    return group.trajectories[0]


def test_rewards_stand_at_the_tokens_of_the_transcript_that_end_steps() -> None:
    tokenizer = byte_tokenizer()
    prompt = len(tokenizer.encode("is"))
    ids = [*tokenizer.encode("aé.\nb\n"), *tokenizer.encode("ccc")]
    ended = answered([*ids, tokenizer.eos_token_id], "eos", lengths)
    first = next(n for n, number in enumerate(ids) if tokenizer.decode([number]) == ".\n")
    second = len(ids) - 3 - 1
    assert ended.steps == ((prompt + first, 4.0), (prompt + second, 2.0), (prompt + len(ids), 3.0))
    assert ended.reward == 9.0
    assert len(ended.tokens) == prompt + len(ids) + 1
    stopped = answered(ids, "stop", lengths, stop=("ccc",))
    assert stopped.text == "aé.\nb\n"
    assert stopped.steps == ((prompt + first, 4.0), (prompt + len(ids) - 1, 2.0))


def test_steps_that_end_in_one_token_are_one() -> None:
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode("a.\nb.\nis")
    assert [tokenizer.decode([number]) for number in ids] == ["a", ".\nb.\n", "is"]
    one = answered(ids, "length", lambda steps: [1.0, 10.0, 100.0])
    assert one.steps == ((2, 11.0), (3, 100.0))
    assert one.reward == 111.0


def test_an_empty_answer_has_no_steps_and_no_reward_for_any() -> None:
    empty = answered([byte_tokenizer().eos_token_id], "eos", lengths)
    assert (empty.text, empty.steps, empty.reward) == ("", (), 0.0)
    assert answered([], "length", lengths).steps == ()


# --- training --------------------------------------------------------------------------------------------


def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **overrides: Any) -> Any:
    """A tiny model with few letters, so that its answers have several lines from the start."""
    monkeypatch.setattr(folders, "CHARACTERS", "ab\n+=?")
    return make_recipe(
        {},
        {
            "model.path": str(folders.write_tiny_model(tmp_path / "model")),
            "model.dtype": "float32",
            "data.source": str(folders.write_problems(tmp_path / "problems.jsonl", 10)),
            "rollout.problems_per_step": 4,
            "rollout.group_size": 8,
            "rollout.max_new_tokens": 12,
            "objective.preset": "grpo_process",
            "train.output": str(tmp_path / "runs"),
            "train.save_every": 0,
            **overrides,
        },
    )


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def lines_without_b(steps: list[str]) -> list[float]:
    """A finished line is good, one with a b is bad."""
    return [float(step.endswith("\n")) - 2.0 * ("b" in step) for step in steps]


def test_recorded_steps_give_the_advantages_of_process_supervision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(recipe(tmp_path, monkeypatch, **{"train.steps": 1}), reward=lines_without_b)
    recorded = rows(run / "rollouts.jsonl")
    assert max(len(row.get("steps", [])) for row in recorded) >= 3
    capsys.readouterr()
    command = ["explain", str(run / "rollouts.jsonl"), "--preset", "grpo_process", "--objective.kl_coef", "0", "--json"]
    assert cli.main(command) == 0
    explained = json.loads(capsys.readouterr().out)["trajectories"]
    for group in {row["group"] for row in recorded}:
        members = [(row, told) for row, told in zip(recorded, explained, strict=True) if row["group"] == group]
        # An answer without steps has its reward as one step.
        steps = [row.get("steps") or [[len(row["tokens"]) - 1, row["reward"]]] for row, _ in members]
        pool = np.array([value for own in steps for _, value in own])
        assert pool.std()
        for own, (row, told) in zip(steps, members, strict=True):
            assert row["reward"] == row["scores"]["lines_without_b"] == pytest.approx(sum(value for _, value in own))
            assert own[-1][0] == len(row["tokens"]) - 1
            expected = [
                sum(value - pool.mean() for end, value in own if end >= token) / (pool.std(ddof=1) + 1e-4)
                for token in range(len(row["tokens"]))
            ]
            assert told["advantages"] == pytest.approx(expected, abs=1e-9)
            assert np.sign(told["grad"]).tolist() == np.sign(np.negative(expected)).tolist()


def test_a_tiny_model_drops_the_steps_that_are_punished_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"train.steps": 40, "optimizer.learning_rate": 1e-2, "objective.kl_coef": 0}
    run = train(recipe(tmp_path, monkeypatch, **options), reward=lines_without_b)
    recorded = rows(run / "rollouts.jsonl")

    def lines(first: int, last: int) -> tuple[float, float]:
        """Lines per answer, and the share of them with a b."""
        answers = [split_steps(row["text"], "\n") for row in recorded if first <= row["step"] <= last]
        found = [step for answer in answers for step in answer]
        return len(found) / len(answers), sum("b" in step for step in found) / len(found)

    (count_before, share_before), (count_after, share_after) = lines(1, 5), lines(36, 40)
    assert share_before > 0.15
    assert share_after < 0.03
    assert count_after > count_before


def test_the_advantage_of_steps_needs_rewards_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="objective.advantage = 'steps' has no effect"):
        train(recipe(tmp_path, monkeypatch), reward=lambda completion: 0.0)
    assert not (tmp_path / "runs").exists()
