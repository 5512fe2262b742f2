"""What is known of each problem, and which ones rest because they are too easy or too hard for now.

    groups ─▶ pass rate of each problem ─┬─▶ problems.jsonl of the run
                                         └─▶ ≤ low or ≥ high: it is left out of the next `rest` epochs

A group in which all answers are right, or all wrong, teaches nothing. The policy changes, so nothing is left out for
good: behind its rest a problem is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from treewise.types import Group


class Seen(NamedTuple):
    """What was observed of one problem.

    Attributes:
        visits: groups of answers with a verdict.
        answers: answers with a verdict.
        mean: of all their scores.
        pass_rate: mean score of the last group.
        step: of the last group.
        rests_until: the last epoch that does without it.
    """

    visits: int
    answers: int
    mean: float
    pass_rate: float
    step: int
    rests_until: int


class Curriculum:
    """The statistics of a run's problems, by id, and the bounds between which they are worth asking."""

    def __init__(
        self, *, low: float | None = None, high: float | None = None, rest: int = 0, score: str | None = None
    ) -> None:
        """
        Args:
            low, high: a problem rests whose pass rate is at most `low`, or at least `high`.
            rest: epochs.
            score: name of the score whose mean is the pass rate; by default it is the reward.
        """
        self.rest, self._low, self._high, self._score = rest, low, high, score
        self.seen: dict[str, Seen] = {}

    def rests(self, identity: str, epoch: int) -> bool:
        """Whether an epoch does without a problem."""
        seen = self.seen.get(identity)
        return seen is not None and epoch <= seen.rests_until

    def observe(self, group: Group, *, step: int, epoch: int) -> None:
        """Note the verdicts of a group that was drawn in an epoch. One without any says nothing of its problem."""
        given = [t.reward if self._score is None else t.scores.get(self._score) for t in group.trajectories]
        scores = [score for score in given if score is not None]
        if not scores:
            return
        rate = fmean(scores)
        outside = (self._low is not None and rate <= self._low) or (self._high is not None and rate >= self._high)
        before = self.seen.get(group.problem.id, Seen(0, 0, 0.0, 0.0, 0, 0))
        answers = before.answers + len(scores)
        self.seen[group.problem.id] = Seen(
            before.visits + 1,
            answers,
            before.mean + (rate - before.mean) * len(scores) / answers,
            rate,
            step,
            epoch + self.rest if outside else 0,
        )

    def rows(self) -> list[dict[str, Any]]:
        """One for each problem that was seen, in the order of their first visits."""
        return [{"id": identity, **seen._asdict()} for identity, seen in self.seen.items()]

    def state_dict(self) -> dict[str, tuple[Any, ...]]:
        """All that was observed."""
        return {identity: tuple(seen) for identity, seen in self.seen.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[Any]]) -> None:
        """Go on from there."""
        self.seen = {identity: Seen(*values) for identity, values in state.items()}
