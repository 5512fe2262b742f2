"""The problems of a run, in the order in which it takes them.

    source ─▶ block of problems ─▶ shuffled deck ─┐
    source ─▶ block of problems ─▶ shuffled deck ─┴─ by shares ─▶ problems of a step ─▶ groups
                                         ▲                                                │
                                         └──── without what was too easy or too hard ◀────┘

A source that is read as a whole is one block, which comes again and again: its epochs. One that is read as a stream
has another block each time. All of it follows from the seed and from what was observed, so a run that goes on from a
saved state takes the problems that it would have taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from treewise.curriculum import Curriculum
from treewise.types import Group, Problem


class Block(NamedTuple):
    """Problems, and the row at which the next block begins: 0 again behind the last one."""

    problems: Sequence[Problem]
    following: int


class Deck:
    """One source's problems, dealt block after block, each in a new order.

    A deal may span two blocks; the later one then begins with problems that the deal doesn't hold yet. So each epoch
    deals each problem once, and no deal holds a problem twice.
    """

    def __init__(self, name: str, read: Callable[[int], Block], *, seed: int, number: int = 0) -> None:
        """
        Args:
            read: the block that begins at a row.
            number: of the source in a mix, so that equally large ones have different orders.
        """
        self.name, self.first = name, read(0)
        self.epoch = 0  # blocks that were opened
        self._read, self._seed, self._number = read, seed, number
        self._block, self._start, self._cards = Block((), 0), 0, list[int]()

    @property
    def whole(self) -> bool:
        """Whether the first block is all of the source."""
        return self.first.following == 0

    def deal(self, count: int, curriculum: Curriculum) -> list[tuple[Problem, int]]:
        """`count` different problems, each with the epoch that it is of.

        Raises ValueError if the source doesn't have that many.
        """
        # One that an earlier epoch's last problems were observed with may rest by now.
        cards = [card for card in self._cards if not curriculum.rests(self._block.problems[card].id, self.epoch)]
        taken = [(self._block.problems[card], self.epoch) for card in cards[:count]]
        self._cards = cards[count:]
        passes = 0
        while len(taken) < count:
            if passes > curriculum.rest + 2:  # by then all that rested have come back
                raise ValueError(too_few(count, len(taken), self.name))
            order = [card for card in self._open() if not curriculum.rests(self._block.problems[card].id, self.epoch)]
            held = {problem.id for problem, _ in taken}
            fresh = [card for card in order if self._block.problems[card].id not in held][: count - len(taken)]
            taken += [(self._block.problems[card], self.epoch) for card in fresh]
            first = set(fresh)
            self._cards = [card for card in order if card not in first]
            passes += self._block.following == 0
        return taken

    def _open(self) -> list[int]:
        """The order of the next block, a function of the seed and of how many came before it."""
        self._start = self._block.following
        self._block = self._read(self._start)
        order = np.random.default_rng([self._seed, self.epoch, self._number]).permutation(len(self._block.problems))
        self.epoch += 1
        return [int(card) for card in order]

    def position(self) -> dict[str, Any]:
        """Where it stands."""
        return {"epoch": self.epoch, "start": self._start, "cards": self._cards}

    def go_to(self, position: Mapping[str, Any]) -> None:
        """Stand there."""
        self.epoch, self._start, self._cards = position["epoch"], position["start"], position["cards"]
        self._block = self._read(self._start) if self.epoch else Block((), 0)


def too_few(count: int, there: int, name: str) -> str:
    """The message where a step can't be filled."""
    return (
        f"{name} has too few problems for rollout.problems_per_step: a step takes {count} different ones of it, and "
        f"there are {there}"
    )


class Supply:
    """Where a run gets its problems: one deck, or several in fixed shares."""

    def __init__(self, decks: Sequence[Deck], curriculum: Curriculum, *, shares: Sequence[float] = (1.0,)) -> None:
        """
        Args:
            shares: of each deck in the problems of the run; their sum is 1.
        """
        self.decks, self.curriculum, self.shares = decks, curriculum, shares
        self._dealt = [0] * len(decks)
        self._drawn: dict[str, int] = {}  # the epochs
        self._done = self._position()

    @property
    def problems(self) -> list[Problem]:
        """The first block of every source, which is all of it unless it is a stream."""
        return [problem for deck in self.decks for problem in deck.first.problems]

    def draw(self, count: int) -> list[Problem]:
        """The problems of a step. Each deck has then dealt its share of all so far, to within one problem.

        Raises ValueError if a source has fewer than its share of the step.
        """
        before = list(self._dealt)
        for _ in range(count):
            behind = [share * (sum(self._dealt) + 1) - own for share, own in zip(self.shares, self._dealt, strict=True)]
            self._dealt[behind.index(max(behind))] += 1
        problems = []
        for deck, own, earlier in zip(self.decks, self._dealt, before, strict=True):
            part = deck.deal(own - earlier, self.curriculum)
            self._drawn |= {problem.id: epoch for problem, epoch in part}
            problems += [problem for problem, _ in part]
        return problems

    def observe(self, groups: Sequence[Group], *, step: int) -> None:
        """End a step: note how many of the answers to what was drawn were right."""
        for group in groups:
            self.curriculum.observe(group, step=step, epoch=self._drawn[group.problem.id])
        self._drawn.clear()
        self._done = self._position()

    def resting(self) -> int:
        """Problems that the next epoch of their source would do without."""
        return sum(self.curriculum.rests(p.id, deck.epoch + 1) for deck in self.decks for p in deck.first.problems)

    def _position(self) -> dict[str, Any]:
        return {"decks": [deck.position() for deck in self.decks], "dealt": list(self._dealt)}

    def state_dict(self) -> dict[str, Any]:
        """Where it stood at the end of the last step; what was drawn since then will be drawn again."""
        return {"position": self._done, "seen": self.curriculum.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        for deck, position in zip(self.decks, state["position"]["decks"], strict=True):
            deck.go_to(position)
        self._dealt = list(state["position"]["dealt"])
        self._drawn.clear()
        self._done = self._position()
        self.curriculum.load_state_dict(state["seen"])
