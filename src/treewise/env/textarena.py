"""Games of TextArena for one player: `data.source = "textarena:Mastermind-v0"`, `env.name = "textarena"`.

    row {"prompt": what the game says first, "textarena": {"name": "Mastermind-v0", "seed": 3, "options": {}}}
    reply ─▶ game.step(reply) ─▶ what the game has said since ─▶ … ─▶ its reward

Games draw from the global random generators. Each episode has states of its own for them, so its seed decides it.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from treewise.types import Message, Problem

COLUMN = "textarena"
_generators = threading.Lock()


def rows(name: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Games as rows of columns: with the seeds from `seed` (0) on, `size` of them; other options are the game's.

    Raises ValueError for a game that isn't there, isn't for one player, or lacks its data.
    """
    own = {key: value for key, value in options.items() if key not in ("size", "seed")}
    first, size = options.get("seed", 0), options.get("size")
    if not (type(first) is int and first >= 0 and (size is None or (type(size) is int and size > 0))):
        raise ValueError(f"options of {COLUMN}:{name}: seed is {first!r} and size {size!r}, but they are whole numbers")
    for seed in itertools.count(first) if size is None else range(first, first + size):
        opening = _Game(name, seed=seed, options=own).said()
        yield {"id": str(seed), "prompt": opening, COLUMN: {"name": name, "seed": seed, "options": own}}


def endless(name: str, options: Mapping[str, Any]) -> bool:
    """Whether there is no last row."""
    return "size" not in options


class TextArena:
    """One game. Scores: the game's `reward`, 0 if it didn't come to its end; recorded only: `invalid`, 1 if a move that
    isn't allowed ended it."""

    weights: Mapping[str, float] = {"reward": 1.0, "invalid": 0.0}

    def __init__(self, problem: Problem) -> None:
        self.check(problem)
        self._problem, self._game = problem, _Game(**problem.info[COLUMN])
        self._game.said()  # the prompt has it

    @staticmethod
    def check(problem: Problem) -> None:
        """Raises ValueError for a problem that is no game."""
        if not isinstance(problem.info.get(COLUMN), Mapping):
            raise ValueError(f"problem {problem.id!r} is no game of TextArena: set data.source = 'textarena:NAME'")

    def start(self) -> str | Sequence[Message]:
        return self._problem.prompt

    def step(self, reply: str) -> Sequence[Message]:
        return [] if self._game.step(reply) else [{"role": "user", "content": self._game.said()}]

    def scores(self) -> dict[str, float]:
        rewards, info = self._game.env.close()
        return {"reward": float((rewards or {}).get(0, 0.0)), "invalid": float(bool(info[0].get("invalid_move")))}


class _Game:
    """Raises ValueError for a game that isn't there, or isn't for one player."""

    def __init__(self, name: str, *, seed: int, options: Mapping[str, Any]) -> None:
        try:
            import textarena
        except ImportError as error:
            raise ValueError(
                f"{COLUMN}:{name} needs the package textarena: pip install 'textarena>=0.7.4' ({error})"
            ) from error
        self._states = (random.Random(seed).getstate(), np.random.RandomState(seed).get_state())
        with self._random():
            try:
                self.env = textarena.make(name, **options)
                self.env.reset(num_players=1, seed=seed)
            except Exception as error:  # a game may refuse what it is given in any way
                if type(error) is LookupError:  # of NLTK
                    raise ValueError(
                        f"{COLUMN}:{name} lacks data of NLTK, which it tries to download: python -m nltk.downloader "
                        "words averaged_perceptron_tagger_eng"
                    ) from error
                raise ValueError(f"{COLUMN}:{name} can't be played: {type(error).__name__}: {error}") from error
        self._bare = self.env
        while isinstance(self._bare, textarena.Wrapper):  # they tell everything again at every turn
            self._bare = self._bare.env

    def step(self, reply: str) -> bool:
        """Whether the game is over."""
        with self._random():
            return bool(self.env.step(reply)[0])

    def said(self) -> str:
        """What the game has said since it was asked last."""
        with self._random():
            heard = self._bare.get_observation()[1]
        return "\n".join(text.strip() for speaker, text, _ in heard if speaker == -1)

    @contextmanager
    def _random(self) -> Iterator[None]:
        """With this game's states of the global generators."""
        with _generators:
            before = random.getstate(), np.random.get_state()
            random.setstate(self._states[0])
            np.random.set_state(self._states[1])
            try:
                yield
            finally:
                self._states = random.getstate(), np.random.get_state()
                random.setstate(before[0])
                np.random.set_state(before[1])
