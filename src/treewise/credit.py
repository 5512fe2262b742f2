"""From rewards to per-token coefficients: who counts, advantages, token weights, the denominator.

    reward    trajectory      outcome advantage      process advantage      λ-GRPO weight
      1       A B             a = (r − mean)/std     A: mean of its set     A: 1/2   B: 1
      0       A C                                    B, C: their own        A: 1/2   C: 1

GRPO gives every token of a trajectory the trajectory's own advantage. Summed over the trajectories
that share a token, that is |λ| times the *process advantage* of the shared prefix: GRPO rewards
prefixes, and popular ones more (arXiv 2509.21154). The weight |λ|^(−p) takes the popularity out.
What an objective puts in the place of the outcome advantage stands in `treewise.axes.advantage`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from treewise.axes import Objective
from treewise.axes.advantage import SPREAD_TOLERANCE, STD_EPSILON, Decoupled, Outcomes, prefix_values
from treewise.axes.aggregation import coefficients, denominator
from treewise.axes.scale import SCALES
from treewise.tree import PrefixTree, build_tree
from treewise.types import BoolArray, FloatArray, Group, Trajectory

LARGEST_REWARD = 1e100  # beyond it the variance overflows


def scored_rewards(rewards: Sequence[float | None]) -> tuple[FloatArray, BoolArray]:
    """The rewards as float64 `[G]` (nan without a verdict) and which trajectories are scored `[G]`.

    Raises:
        ValueError: if a reward is nan, infinite or so large that its square overflows. No verdict is `None`.
    """
    values = np.array([np.nan if reward is None else float(reward) for reward in rewards], dtype=np.float64)
    scored = np.array([reward is not None for reward in rewards], dtype=bool)
    for number in np.flatnonzero(scored & ~(np.abs(values) < LARGEST_REWARD)):
        raise ValueError(
            f"reward {number} of the group is {values[number]}: it must be finite and below {LARGEST_REWARD:g}, "
            "and a missing verdict must be None"
        )
    return values, scored


def reward_statistics(rewards: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation (ddof 1) of the scored rewards.

    Both are `None` without a verdict; the deviation is 0 with one, and exactly 0 for equal rewards.
    """
    values, scored = scored_rewards(rewards)
    verdicts = values[scored]
    if not len(verdicts):
        return None, None
    if np.ptp(verdicts) <= SPREAD_TOLERANCE:
        return float(verdicts.mean()), 0.0
    return float(verdicts.mean()), float(verdicts.std(ddof=1))


def group_advantages(
    rewards: Sequence[float | None], *, scale: Literal["std", "none"] = "std", epsilon: float = STD_EPSILON
) -> FloatArray:
    """Outcome advantages of one group, `a_i = (r_i − mean r) / (std r + ε)`.

    Args:
        rewards: G outcome rewards, `None` without a verdict.
        scale: `std` divides by the sample standard deviation; `none` centres only (Dr. GRPO, arXiv 2503.20783).
        epsilon: added to the standard deviation.

    Returns:
        [G] float64; nan where there is no verdict (such a trajectory leaves the group), and exactly 0
        for every scored trajectory when their rewards don't differ by more than 1e-6.

    Source: DeepSeekMath, arXiv 2402.03300, eq. 3 and §4.1.
    """
    values, scored = scored_rewards(rewards)
    mean, std = reward_statistics(rewards)
    if mean is None or std is None:
        return values
    if std == 0.0:
        return np.where(scored, 0.0, np.nan)
    return (values - mean) / (std + epsilon if scale == "std" else 1.0)


def process_rewards(tree: PrefixTree, rewards: FloatArray) -> FloatArray:
    """R̂(λ) of every sampled token's process set: the mean outcome reward of the set's members.

    Args:
        tree: prefix tree of the scored trajectories.
        rewards: [G] outcome rewards of the same trajectories, in the tree's order.

    Returns:
        [A] float64, one value per sampled token of each trajectory.

    Source: arXiv 2509.21154, §3.
    """
    return prefix_values(tree, rewards)[tree.index]


def process_advantages(
    tree: PrefixTree, rewards: FloatArray, *, scale: Literal["std", "none"] = "std", epsilon: float = STD_EPSILON
) -> FloatArray:
    """Process advantages `A_it = (R̂(λ(i,t)) − mean r) / (std r + ε)`, [A] float64.

    Put in the place of the outcome advantages they leave GRPO's loss and gradient unchanged wherever
    the members of a set share their coefficient and their ratio (Theorem 1 of arXiv 2509.21154).
    """
    mean, std = reward_statistics(list(rewards))
    if mean is None or not std:
        return np.zeros(len(tree.index))
    return (process_rewards(tree, rewards) - mean) / (std + epsilon if scale == "std" else 1.0)


@dataclass(frozen=True, slots=True)
class CreditedGroup:
    """The scored trajectories of a group, their prefix tree, and what each sampled token is worth.

    Attributes:
        group: where they come from; trajectories without a verdict are only in here.
        members: [G] which of the group's trajectories are scored.
        trajectories: the scored ones.
        tree: their prefix tree.
        trained: [G] false for a trajectory that counts in the group's statistics only (overlong = mask).
        advantages: [A] advantage of every sampled token.
        coefficients: [A] weight of every sampled token's term, before the division by D.
    """

    group: Group
    members: tuple[int, ...]
    trajectories: tuple[Trajectory, ...]
    tree: PrefixTree
    trained: BoolArray
    advantages: FloatArray
    coefficients: FloatArray

    @property
    def lengths(self) -> list[int]:
        """Sampled tokens of each scored trajectory."""
        return [int(length) for length in self.tree.lengths]

    @property
    def counted_lengths(self) -> list[int]:
        """Sampled tokens of each trajectory that the loss and D count."""
        return [length for length, trained in zip(self.lengths, self.trained, strict=True) if trained]


def has_signal(group: CreditedGroup) -> bool:
    """Whether the group can move the policy without a KL term."""
    return bool(np.any(group.advantages[group.trained[group.tree.trajectory]]))


def denominator_of(groups: Sequence[CreditedGroup], objective: Objective) -> float:
    """D of the optimizer step on these groups."""
    return denominator(
        [length for group in groups for length in group.counted_lengths],
        aggregation=objective.aggregation,
        max_completion_tokens=objective.max_completion_tokens,
    )


def no_verdict(trajectory: Trajectory, objective: Objective, weights: Mapping[str, float] | None = None) -> bool:
    """Whether nothing is known of a trajectory; a rule that looks at single scores needs only one with a weight."""
    if isinstance(objective.advantage, Decoupled):
        scores = trajectory.scores.items()
        return all(score is None or not (weights is None or weights.get(name)) for name, score in scores)
    return trajectory.reward is None


def _counts(trajectory: Trajectory, objective: Objective, weights: Mapping[str, float] | None) -> bool:
    """Whether a trajectory is scored: it has a verdict, and does not leave for being cut."""
    left = objective.overlong == "leave" and trajectory.stop_reason == "length"
    return not left and not no_verdict(trajectory, objective, weights)


def _outcomes(
    group: Group,
    rows: Sequence[Trajectory],
    tree: PrefixTree,
    weights: Mapping[str, float] | None,
    penalties: FloatArray | None,
) -> Outcomes:
    names = list(weights) if weights is not None else list(dict.fromkeys(name for t in rows for name in t.scores))
    factors = np.array([1.0 if weights is None else weights[name] for name in names])
    scores = np.array([[_number(t.scores.get(name)) for name in names] for t in rows]).reshape(len(rows), len(names))
    # A rule that looks at the scores alone takes answers without a whole reward, too.
    rewards, _ = scored_rewards([0.0 if t.reward is None else t.reward for t in rows])
    arrived, step = np.zeros(len(tree.index)), np.zeros(len(tree.index), dtype=bool)
    lengths = tree.lengths
    for trajectory, reward, start, length in zip(rows, rewards, np.cumsum(lengths) - lengths, lengths, strict=True):
        upto = np.cumsum(trajectory.sampled)
        for position, value in trajectory.steps or (((len(upto) - 1, float(reward)),) if length else ()):
            if not upto[position]:
                raise ValueError(
                    f"problem {group.problem.id!r}: a step ends at position {position}, in front of everything that "
                    "the model sampled; its reward belongs to no token"
                )
            entry = start + upto[position] - 1  # the last sampled token that is not behind the step's end
            arrived[entry] += value
            step[entry] = True
    if penalties is not None:
        arrived = arrived - penalties
        rewards = rewards - np.bincount(tree.trajectory, weights=penalties, minlength=tree.count)
    return Outcomes(tree, rewards, arrived, step, scores, factors, group.branched)


def _number(score: float | None) -> float:
    return np.nan if score is None else float(score)


def credit(
    groups: Sequence[Group],
    objective: Objective,
    *,
    weights: Mapping[str, float] | None = None,
    penalties: Sequence[FloatArray] | None = None,
) -> list[CreditedGroup]:
    """Give every sampled token of a batch its credit: drop what has no verdict, build the trees, compare, scale.

    Args:
        groups: all groups of the batch; some scales look at all of them.
        weights: of the reward functions by name, for rules that look at single scores; default 1 each.
        penalties: per group what to take off the reward at every sampled token, [A] (the KL in the reward).

    Raises:
        ValueError: if the objective is not defined for these rewards or groups.
    """
    members = [tuple(n for n, t in enumerate(group.trajectories) if _counts(t, objective, weights)) for group in groups]
    scored = [tuple(group.trajectories[n] for n in own) for group, own in zip(groups, members, strict=True)]
    if objective.whole_answers and any(t.starts for rows in scored for t in rows):
        raise ValueError(
            "the chat template changed earlier turns, so an episode is trained as several transcripts, and "
            f"{objective.whole_answers} looks at whole episodes; choose one of single tokens, or a template that keeps "
            "earlier turns"
        )
    trees = [
        build_tree([t.tokens for t in rows], [t.sampled for t in rows], [t.starts for t in rows]) for rows in scored
    ]
    outcomes = [
        _outcomes(group, rows, tree, weights, None if penalties is None else penalties[number])
        for number, (group, rows, tree) in enumerate(zip(groups, scored, trees, strict=True))
    ]
    rule = objective.advantage
    compared = [rule.compared(outcome) for outcome in outcomes]
    alike = [rule.group_relative and (len(v) < 2 or bool(np.ptp(v) <= SPREAD_TOLERANCE)) for v in compared]
    values = []
    for group, outcome, same in zip(groups, outcomes, alike, strict=True):
        try:
            zeros = np.zeros(len(outcome.tree.index) if rule.per_token else outcome.tree.count)
            values.append(zeros if same else rule(outcome))
        except ValueError as error:
            raise ValueError(f"problem {group.problem.id!r}: {error}") from error
    tokens = [
        np.ones(len(outcome.tree.index)) if rule.per_token else outcome.tree.lengths.astype(np.float64)
        for outcome in outcomes
    ]
    scaled = SCALES[objective.scale](values, tokens, compared)
    credited = []
    for group, own, rows, outcome, value, same in zip(groups, members, scored, outcomes, scaled, alike, strict=True):
        tree = outcome.tree
        advantages = value if rule.per_token else outcome.broadcast(value)
        trained = np.array([objective.overlong != "mask" or t.stop_reason != "length" for t in rows], dtype=bool)
        weight = coefficients(tree, exponent=objective.weight_exponent, aggregation=objective.aggregation)
        credited.append(
            CreditedGroup(
                group=group,
                members=own,
                trajectories=rows,
                tree=tree,
                trained=trained,
                advantages=np.zeros(len(tree.index)) if same else advantages,
                coefficients=np.where(trained[tree.trajectory], weight, 0.0),
            )
        )
    return credited
