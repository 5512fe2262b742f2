"""From rewards to per-token coefficients: advantages, process rewards, token weights.

    reward    trajectory      outcome advantage      process advantage      λ-GRPO weight
      1       A B             a = (r − mean)/std     A: mean of its set     A: 1/2   B: 1
      0       A C                                    B, C: their own        A: 1/2   C: 1

GRPO gives every token of a trajectory the trajectory's own advantage. Summed over the trajectories
that share a token, that is |λ| times the *process advantage* of the shared prefix: GRPO rewards
prefixes, and popular ones more (arXiv 2509.21154). The weight |λ|^(−p) takes the popularity out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from treewise.presets import Aggregation, Objective, Scale
from treewise.tree import PrefixTree, build_tree
from treewise.types import BoolArray, FloatArray, Group, Trajectory

STD_EPSILON = 1e-4  # added to the standard deviation, as TRL and the paper's code do
LARGEST_REWARD = 1e100  # beyond it the variance overflows
SPREAD_TOLERANCE = 1e-6  # rewards closer than this are equal: their std would be rounding noise


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
    rewards: Sequence[float | None], *, scale: Scale = "std", epsilon: float = STD_EPSILON
) -> FloatArray:
    """Outcome advantages of one group, `a_i = (r_i − mean r) / (std r + ε)`.

    Args:
        rewards: G outcome rewards, `None` without a verdict.
        scale: `std` divides by the sample standard deviation; `none` centres only (Dr. GRPO).
        epsilon: added to the standard deviation.

    Returns:
        [G] float64; nan where there is no verdict (such a trajectory leaves the group), and exactly 0
        for every scored trajectory when their rewards don't differ by more than 1e-6.

    Source: DeepSeekMath, arXiv 2402.03300, eq. 3 and §4.1; `none`: arXiv 2503.20783.
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
    sums = np.bincount(tree.index, weights=rewards[tree.trajectory], minlength=len(tree))
    return sums[tree.index] / tree.size[tree.index]


def process_advantages(
    tree: PrefixTree, rewards: FloatArray, *, scale: Scale = "std", epsilon: float = STD_EPSILON
) -> FloatArray:
    """Process advantages `A_it = (R̂(λ(i,t)) − mean r) / (std r + ε)`, [A] float64.

    Put in the place of the outcome advantages they leave GRPO's loss and gradient unchanged wherever
    the members of a set share their coefficient and their ratio (Theorem 1 of arXiv 2509.21154).
    """
    mean, std = reward_statistics(list(rewards))
    if mean is None or not std:
        return np.zeros(len(tree.index))
    return (process_rewards(tree, rewards) - mean) / (std + epsilon if scale == "std" else 1.0)


def token_weights(tree: PrefixTree, *, exponent: float) -> FloatArray:
    """|λ(i,t)|^(−p) for every sampled token, [A] float64.

    p = 0 is GRPO, p = 1 is λ-GRPO (arXiv 2509.21154), p = ½ is what TreeRL's code does (arXiv 2506.11902).
    """
    return tree.size[tree.index].astype(np.float64) ** -exponent


def denominator(lengths: Sequence[int], *, aggregation: Aggregation, max_completion_tokens: int | None = None) -> float:
    """D of one optimizer step: what the sum over tokens is divided by.

    Args:
        lengths: sampled tokens of every scored trajectory of **all** groups of the step, on every rank.
        aggregation: `token` Σ lengths, `sequence` their number, `constant` number × max tokens.
    """
    match aggregation:
        case "token":
            return float(sum(lengths))
        case "sequence":
            return float(len(lengths))
        case "constant":
            assert max_completion_tokens is not None, "constant aggregation needs max_completion_tokens"
            return float(len(lengths) * max_completion_tokens)


def coefficients(tree: PrefixTree, *, exponent: float, aggregation: Aggregation) -> FloatArray:
    """What each token's term counts before the division by D, [A] float64: |λ|^(−p), also divided by
    the trajectory's sampled length under `sequence` aggregation."""
    weights = token_weights(tree, exponent=exponent)
    if aggregation != "sequence":
        return weights
    lengths = np.bincount(tree.trajectory, minlength=tree.count)
    return weights / lengths[tree.trajectory]


@dataclass(frozen=True, slots=True)
class CreditedGroup:
    """The scored trajectories of a group, their prefix tree, and what each sampled token is worth.

    Attributes:
        group: where they come from; trajectories without a verdict are only in here.
        trajectories: the scored ones, in the group's order.
        tree: their prefix tree.
        advantages: [A] advantage of every sampled token.
        coefficients: [A] weight of every sampled token's term, before the division by D.
    """

    group: Group
    trajectories: tuple[Trajectory, ...]
    tree: PrefixTree
    advantages: FloatArray
    coefficients: FloatArray

    @property
    def lengths(self) -> list[int]:
        """Sampled tokens of each scored trajectory."""
        return [int(trajectory.sampled.sum()) for trajectory in self.trajectories]


def credit_group(group: Group, objective: Objective) -> CreditedGroup:
    """Score a group: drop what has no verdict, build the tree, and give every sampled token its credit."""
    trajectories = tuple(t for t in group.trajectories if t.reward is not None)
    tree = build_tree([t.tokens for t in trajectories], [t.sampled for t in trajectories])
    advantages = group_advantages([t.reward for t in trajectories], scale=objective.scale)
    return CreditedGroup(
        group=group,
        trajectories=trajectories,
        tree=tree,
        advantages=advantages[tree.trajectory],
        coefficients=coefficients(tree, exponent=objective.weight_exponent, aggregation=objective.aggregation),
    )
