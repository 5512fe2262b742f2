"""Wordle: the marks, the game, and a solver that plays through the real rollout."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import test_chat
from treewise.chat import Chat
from treewise.env.load import load_environment
from treewise.env.wordle import Wordle, guess_of, marks, words
from treewise.reward import Reward
from treewise.rollout import collect
from treewise.sampler import Request
from treewise.sections import EnvSection
from treewise.tasks import generate
from treewise.types import Completion, Problem, Sampling

chatml = test_chat.chatml


@pytest.mark.parametrize(
    ("secret", "guess", "expected"),
    [
        ("crane", "crane", "GGGGG"),
        ("crane", "moult", "-----"),
        ("abbey", "kebab", "-YGYY"),
        ("abbey", "babes", "YYGG-"),
        ("abbey", "abbot", "GGG--"),
        ("speed", "erase", "Y--YY"),
        ("speed", "steal", "G-G--"),
        ("speed", "creep", "--GGY"),
        ("erase", "speed", "Y-YY-"),
        ("those", "geese", "---GG"),  # one e in the secret, at its place: the others are too many
        ("dread", "added", "YY-YG"),  # two d: one at its place, one elsewhere, the third is too many
        ("allay", "llama", "YGY-Y"),
        ("array", "rarer", "YYG--"),
        ("mamma", "maxim", "GG--Y"),
        ("level", "elver", "YYGG-"),
        ("aaaaa", "abaca", "G-G-G"),
        ("abcde", "eabcd", "YYYYY"),
    ],
)
def test_marks_of_tricky_words(secret: str, guess: str, expected: str) -> None:
    assert marks(secret, guess) == expected


def by_crossing_out(secret: str, guess: str) -> str:
    """The rule as one does it with a pencil: cross out what is used."""
    rest: list[str | None] = list(secret)
    found = ["-"] * 5
    for place in range(5):
        if guess[place] == secret[place]:
            found[place], rest[place] = "G", None
    for place in range(5):
        if found[place] == "-" and guess[place] in rest:
            found[place] = "Y"
            rest[rest.index(guess[place])] = None
    return "".join(found)


FEW = st.text(alphabet="abc", min_size=5, max_size=5)


@given(secret=FEW, guess=FEW)
def test_marks_are_those_of_crossing_out(secret: str, guess: str) -> None:
    assert marks(secret, guess) == by_crossing_out(secret, guess)


@pytest.mark.parametrize(
    ("reply", "guess"),
    [
        ("<guess>Crane</guess>", "crane"),
        ("not <guess>crane</guess> but <guess> abbey\n</guess>.", "abbey"),
        ("crane", None),
        ("<guess>crane", None),
        ("<GUESS></GUESS>", ""),
        ("<guess><guess>crane</guess>", "crane"),
    ],
)
def test_the_last_guess_of_a_reply_counts(reply: str, guess: str | None) -> None:
    assert guess_of(reply) == guess


def played(*guesses: str, secret: str = "abbey", turns: int = 6) -> tuple[list[str], dict[str, float]]:
    async def play() -> tuple[list[str], dict[str, float]]:
        game = Wordle(Problem("0", "Play.", secret), turns=turns)
        said = [str(await game.start())]
        for guess in guesses:
            assert said[-1], "the game is over"
            said.append("\n".join(message["content"] for message in await game.step(guess)))
        return said, await game.scores()

    return asyncio.run(play())


def test_a_game_is_told_and_scored() -> None:
    said, scores = played("<guess>kebab</guess>", "hm", "<guess>qwxyz</guess>", "<guess>abbey</guess>")
    assert said == [
        "Play.\nYou have 6 guesses left.",
        "k e b a b\n- Y G Y Y\nYou have 5 guesses left.",
        "There was no guess in your reply. End it with <guess>word</guess>.\nYou have 4 guesses left.",
        "'qwxyz' is not a word of five letters that I know.\nYou have 3 guesses left.",
        "",
    ]
    assert scores == {"solved": 1.0, "partial": 1.0, "valid": 0.5}


def test_the_turn_limit_ends_a_game_with_a_verdict() -> None:
    said, scores = played("<guess>kebab</guess>", "<guess>moult</guess>", turns=2)
    assert said[1:] == ["k e b a b\n- Y G Y Y\nYou have 1 guess left.", ""]
    assert scores == {"solved": 0.0, "partial": pytest.approx(0.5), "valid": 1.0}
    assert played()[1] == {"solved": 0.0, "partial": 0.0, "valid": 0.0}


def test_word_lists_and_splits() -> None:
    answers, allowed = words("answers"), words("allowed")
    assert (len(answers), len(allowed)) == (2315, 12972)
    assert set(answers) < set(allowed)
    assert all(re.fullmatch("[a-z]{5}", word) for word in allowed)
    train, test = (
        {row["answer"] for row in generate("wordle", split=split, options={})} for split in ("train", "test")
    )
    assert (len(train), len(test), train & test) == (500, 500, set())
    again = [row["answer"] for row in generate("wordle", split="train", options={"size": 10, "seed": 3})]
    assert again == [row["answer"] for row in generate("wordle", split="train", options={"size": 10, "seed": 3})]
    with pytest.raises(ValueError, match="the test split has 7[0-9]+ words"):
        generate("wordle", split="test", options={"size": 2000})


@pytest.mark.parametrize("secret", [None, "", "four", "sixsix", "ab-ey"])
def test_a_secret_that_is_no_word_is_refused(secret: str | None) -> None:
    with pytest.raises(ValueError, match="the secret word is"):
        Wordle(Problem("7", "Play.", secret))


class Solver:
    """A sampler that reads the transcript and guesses the first word that agrees with all marks."""

    version = 0
    max_length = None

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    def sample(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        return [self._reply(self._chat.decode(request.prefix)) for request in requests]

    def _reply(self, text: str) -> Completion:
        told = re.findall(r"((?:[a-z] ){4}[a-z])\n((?:[GY-] ){4}[GY-])", text)
        known = [(guess.replace(" ", ""), found.replace(" ", "")) for guess, found in told]
        fits = (word for word in words("answers") if all(by_crossing_out(word, g) == found for g, found in known))
        ids = self._chat.tokenizer.encode(f"<guess>{next(fits)}</guess><|im_end|>", add_special_tokens=False)
        return Completion(np.array(ids), np.zeros(len(ids)), "eos", 0)

    def sync(self, policy: Any, version: int) -> None: ...


def test_a_solver_plays_whole_games_through_the_rollout(chatml: Any) -> None:
    chat = Chat(chatml)
    rows = generate("wordle", split="test", options={"size": 12})
    problems = [Problem(row["id"], ({"role": "user", "content": row["problem"]},), row["answer"]) for row in rows]
    loaded = load_environment("wordle", options={"turns": 12})
    groups = collect(
        problems,
        group_size=2,
        sampler=Solver(chat),
        sampling=Sampling(64),
        chat=chat,
        rewards=[Reward(name, None, weight) for name, weight in loaded.weights.items()],
        seed=(0,),
        make=loaded.make,
        env=EnvSection(name="wordle"),
    )
    for group in groups:
        for game in group.trajectories:
            assert game.scores == {"solved": 1.0, "partial": 1.0, "valid": 1.0}
            assert game.reward == pytest.approx(1.3)
            guesses = re.findall("<guess>([a-z]{5})</guess>", chat.decode(game.tokens[game.sampled]))
            assert guesses[-1] == group.problem.answer
            assert len(set(guesses)) == len(guesses)
            told = chat.decode(game.tokens[~game.sampled])
            for guess in guesses[:-1]:  # what the environment said is in the transcript, and not marked as sampled
                assert f"{' '.join(guess)}\n{' '.join(marks(group.problem.answer, guess))}\n" in told


def test_options_and_weights_of_an_environment_are_checked() -> None:
    with pytest.raises(ValueError, match="its options are turns"):
        load_environment("wordle", options={"rounds": 3})
    with pytest.raises(ValueError, match="env.weights has 'won', but the scores of wordle are solved, partial, valid"):
        load_environment("wordle", weights={"won": 1.0})
    assert load_environment("wordle", weights={"solved": 2.0}).weights == {"solved": 2.0, "partial": 0.0, "valid": 0.0}
    with pytest.raises(ValueError, match="'wordel' is not an environment; the nearest built-in one is 'wordle'"):
        load_environment("wordel")
    with pytest.raises(ValueError, match="the environment builtins:dict has no start, no step, no scores"):
        load_environment("builtins:dict")
