"""A batch to learn from: sample, drop groups without spread, sample others in their place, shape rewards.

    draw ─▶ groups ─▶ spread? ─▶ enough? ─▶ overlong penalty ─▶ kept
      ▲                             │ no, and refills are left
      └─────────────────────────────┘

The filter asks the objective's own advantage rule, on the rewards as they were given, before any penalty: a group of
right answers of different lengths has nothing to say. Groups beyond the wanted number are dropped, too, so that no
answer is of an older policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from treewise.axes import Objective
from treewise.axes.advantage import GroupMean, ReturnToGo
from treewise.credit import credit, has_signal
from treewise.reward.length import overlong
from treewise.types import PENALTY, Group, Trajectory


@dataclass(frozen=True, slots=True)
class Batch:
    """`kept` groups are learned from; `dropped` ones were sampled, too. `draws` counts the batches of problems."""

    kept: list[Group]
    dropped: list[Group]
    draws: int

    @property
    def sampled(self) -> list[Group]:
        """Every group that was sampled."""
        return [*self.kept, *self.dropped]


def gather(
    draw: Callable[[int], list[Group]],
    objective: Objective,
    *,
    wanted: int,
    max_new_tokens: int,
    weights: Mapping[str, float] | None = None,
) -> Batch:
    """Sample until `wanted` groups pass the objective's filter, or its refills are used up.

    Args:
        draw: samples the n-th batch of problems of this step.
        wanted: groups to learn from.
        weights: of the reward functions, by name.
        max_new_tokens: the sampler's limit, L_max of the overlong penalty.

    Source: dynamic sampling and soft overlong punishment of DAPO, arXiv 2503.14476, §3.2 and §3.4.
    """
    kept: list[Group] = []
    dropped: list[Group] = []
    draws = 0
    while draws == 0 or (objective.group_filter == "spread" and len(kept) < wanted and draws <= objective.max_refills):
        for group in draw(draws):
            passed = objective.group_filter == "none" or has_spread(group, objective, weights)
            (kept if passed and len(kept) < wanted else dropped).append(group)
        draws += 1
    if objective.overlong_penalty:
        kept, dropped = (
            [penalise(group, share=objective.overlong_penalty, limit=max_new_tokens) for group in groups]
            for groups in (kept, dropped)
        )
    return Batch(kept, dropped, draws)


def has_spread(group: Group, objective: Objective, weights: Mapping[str, float] | None = None) -> bool:
    """Whether the objective's advantage rule sees a difference of more than 1e-6 in the group.

    A rule without a baseline sees every reward that is not 0, so rewards are compared in its place.
    """
    rule = GroupMean() if isinstance(objective.advantage, ReturnToGo) else objective.advantage
    (credited,) = credit([group], replace(objective, advantage=rule, scale="none"), weights=weights)
    return has_signal(credited)


def penalise(group: Group, *, share: float, limit: int) -> Group:
    """The group with the overlong penalty in every reward, and among the scores as `overlong_penalty`."""

    def shaped(trajectory: Trajectory) -> Trajectory:
        penalty = overlong(int(trajectory.sampled.sum()), limit=limit, buffer=share * limit)
        scores: Mapping[str, float | None] = {**trajectory.scores, PENALTY: penalty}
        if trajectory.reward is None:
            return replace(trajectory, scores=scores)
        steps = trajectory.steps
        if steps:
            steps = (*steps[:-1], (steps[-1][0], steps[-1][1] + penalty))
        return replace(trajectory, reward=trajectory.reward + penalty, scores=scores, steps=steps)

    return replace(group, trajectories=tuple(shaped(trajectory) for trajectory in group.trajectories))
