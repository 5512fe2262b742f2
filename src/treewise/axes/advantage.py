"""Advantage: what a sampled token is worth before it is scaled, `[A]` over one group.

    answer   reward   group mean      tree_rloo, κ = 0   process         tempo
     A B       1      +.667  +.667    +1     +1          +.167  +.667    +.833  +1.167
     A C       0      −.333  −.333    −.5    −1          +.167  −.333    −.167   −.833
     D         0      −.333           −.5                −.333           −.667

Every rule is a small frozen object with its options, and a pure function of one group's outcomes. Rules that
compare with the group give exactly 0 when nothing differs; `treewise.credit` sees to that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from pydantic import Field

from treewise.tree import PrefixTree
from treewise.types import BoolArray, FloatArray, IntArray

STD_EPSILON = 1e-4  # added to a standard deviation, as TRL and the code of arXiv 2509.21154 do
SPREAD_TOLERANCE = 1e-6  # values closer than this are equal: their std would be rounding noise


class Outcomes(NamedTuple):
    """What the scored trajectories of one group brought in.

    Attributes:
        tree: their prefix tree.
        rewards: [G] each trajectory's whole reward.
        arrived: [A] what of it came with each sampled token: step rewards, or the outcome at the last token.
        step: [A] whether a step ends with the token (the last token, where there are no step rewards).
        scores: [G, K] each reward function's score, nan where it has none.
        weights: [K] of the reward functions.
        branched: whether some trajectories were continued from inside of others.
    """

    tree: PrefixTree
    rewards: FloatArray
    arrived: FloatArray
    step: BoolArray
    scores: FloatArray
    weights: FloatArray
    branched: bool = False

    @property
    def mean(self) -> float:
        """Mean reward; every rule is called with at least one scored trajectory."""
        return float(self.rewards.mean())

    def broadcast(self, values: FloatArray) -> FloatArray:
        """One value per trajectory, for each of its sampled tokens: [G] → [A]."""
        return values[self.tree.trajectory]


class Advantage(ABC):
    """A rule. `group_relative` ones compare with the group, so without any difference all is exactly 0;
    `per_token` ones give each sampled token its own advantage, the others one to each trajectory."""

    group_relative: ClassVar[bool] = True
    per_token: ClassVar[bool] = True

    @abstractmethod
    def __call__(self, outcomes: Outcomes) -> FloatArray:
        """[A] if `per_token`, else [G]: advantages, not scaled."""

    def compared(self, outcomes: Outcomes) -> FloatArray:
        """The values whose mean is the baseline, and whose standard deviation scales: whole rewards, [G]."""
        return outcomes.rewards


def _node_sums(tree: PrefixTree, values: FloatArray) -> FloatArray:
    """[T + 1] sum of a value [G] over the trajectories that pass through each token.

    The last entry stands for the root, in front of every first token: that is where `parent` = −1 points to.
    """
    return np.append(tree.sums(values), values.sum())


def _sizes(tree: PrefixTree) -> IntArray:
    """[T + 1] |λ| of each token, and of the root."""
    return np.append(tree.size, tree.count)


def prefix_values(tree: PrefixTree, rewards: FloatArray) -> FloatArray:
    """R̂ of every tree token, the mean reward of the trajectories that pass through it, and of the root: [T + 1].

    Source: arXiv 2509.21154, §3.
    """
    return _node_sums(tree, rewards) / np.maximum(_sizes(tree), 1)


@dataclass(frozen=True, slots=True)
class GroupMean(Advantage):
    """`r_i − mean r`, the same for every token of an answer. Source: GRPO, arXiv 2402.03300."""

    per_token: ClassVar[bool] = False

    def __call__(self, outcomes: Outcomes) -> FloatArray:
        return outcomes.rewards - outcomes.mean


@dataclass(frozen=True, slots=True)
class LeaveOneOut(Advantage):
    """`r_i − mean of the others' rewards`. Source: RLOO, arXiv 2402.14740."""

    per_token: ClassVar[bool] = False

    def __call__(self, outcomes: Outcomes) -> FloatArray:
        count = len(outcomes.rewards)
        return (outcomes.rewards - outcomes.mean) * (count / max(1, count - 1))


@dataclass(frozen=True, slots=True)
class ReturnToGo(Advantage):
    """`Σ_{s ≥ t} reward of token s`, without a baseline. Source: REINFORCE++, arXiv 2501.03262, eq. 4."""

    group_relative: ClassVar[bool] = False

    def __call__(self, outcomes: Outcomes) -> FloatArray:
        return _to_go(outcomes.arrived, outcomes.tree)


def _to_go(values: FloatArray, tree: PrefixTree) -> FloatArray:
    """[A] sum of a value over the rest of the trajectory, the token itself included."""
    ends = np.cumsum(tree.lengths)
    return np.concatenate([np.empty(0), *(np.cumsum(own[::-1])[::-1] for own in np.split(values, ends[:-1]))])


@dataclass(frozen=True, slots=True)
class StepRewards(Advantage):
    """`Σ (r_step − mean of all steps of the group)` over the steps that end at or after the token.

    Source: process supervision, DeepSeekMath, arXiv 2402.03300, §4.1.3.
    """

    def compared(self, outcomes: Outcomes) -> FloatArray:
        return np.concatenate([outcomes.arrived[outcomes.step], outcomes.rewards[outcomes.tree.lengths == 0]])

    def __call__(self, outcomes: Outcomes) -> FloatArray:
        steps = self.compared(outcomes)
        mean = steps.mean() if len(steps) else 0.0
        return _to_go(np.where(outcomes.step, outcomes.arrived - mean, 0.0), outcomes.tree)


@dataclass(frozen=True, slots=True)
class ProcessAdvantage(Advantage):
    """`R̂(λ(i,t)) − mean r`: the form in which GRPO is a process reward model. Source: arXiv 2509.21154."""

    def __call__(self, outcomes: Outcomes) -> FloatArray:
        tree = outcomes.tree
        return prefix_values(tree, outcomes.rewards)[tree.index] - outcomes.mean


@dataclass(frozen=True, slots=True)
class Tempo(Advantage):
    """`(r_i − mean r) + R̂(λ(i,t)) − R̂(prefix before t)`. Source: TEMPO, arXiv 2509.18314."""

    def __call__(self, outcomes: Outcomes) -> FloatArray:
        tree = outcomes.tree
        values = prefix_values(tree, outcomes.rewards)
        gained: FloatArray = values[tree.index] - values[tree.parent[tree.index]]
        return outcomes.broadcast(outcomes.rewards - outcomes.mean) + gained


@dataclass(frozen=True, slots=True)
class GlobalAndLocal(Advantage):
    """`[R̂(λ(i,t)) − mean r] + [R̂(λ(i,t)) − R̂(prefix before t)]`; TreeRL divides it by √|λ|, which is p = ½.

    Source: TreeRL, arXiv 2506.11902.
    """

    def __call__(self, outcomes: Outcomes) -> FloatArray:
        tree = outcomes.tree
        values = prefix_values(tree, outcomes.rewards)
        advantages: FloatArray = 2 * values[tree.index] - outcomes.mean - values[tree.parent[tree.index]]
        return advantages


@dataclass(frozen=True, slots=True)
class Segments(Advantage):
    """`R̂(end of the segment) − R̂(its start)`, segments of equally many sampled tokens; an answer's end is worth r_i.

    Source: SPO, arXiv 2505.23564. Its values come from answers branched on purpose; here from those that share the
    prefix, so a prefix that nobody shares is worth its own answer's reward.
    """

    segment_tokens: Annotated[int, Field(ge=1, strict=True, description="sampled tokens of a segment")] = 32

    def __call__(self, outcomes: Outcomes) -> FloatArray:
        tree, rewards = outcomes.tree, outcomes.rewards
        values = prefix_values(tree, rewards)[tree.index]
        advantages = [np.empty(0)]
        for own, reward in zip(np.split(values, np.cumsum(tree.lengths)[:-1]), rewards, strict=True):
            inner = own[self.segment_tokens - 1 : -1 : self.segment_tokens]
            bounds = np.concatenate([[outcomes.mean], inner, [reward]])
            advantages.append(np.repeat(np.diff(bounds), self.segment_tokens)[: len(own)])
        return np.concatenate(advantages)


@dataclass(frozen=True, slots=True)
class TreeRLOO(Advantage):
    """`r_i − b_it` with `b_it = n/(n+κ) · mean{r_k : k ≠ i shares i's prefix before t} + κ/(n+κ) · mean{r_k : k ≠ i}`.

    n counts those others, the ones that ended there included; n = 0 leaves the mean of all others. Given the prefix
    and the other answers, b_it is fixed before the token is drawn, so the gradient stays unbiased, which needs
    answers that were drawn independently. Source: treewise, docs/objectives.md.
    """

    kappa: Annotated[float, Field(ge=0, description="κ, how many answers the group's own mean weighs like")] = 1.0

    def __call__(self, outcomes: Outcomes) -> FloatArray:
        if outcomes.branched:
            raise ValueError(
                "advantage 'tree_rloo' needs answers that were drawn independently, and this group was sampled with "
                "branches; use 'tempo', 'treerl' or 'segments'"
            )
        tree, rewards = outcomes.tree, outcomes.rewards
        own, count = outcomes.broadcast(rewards), len(rewards)
        if count < 2:
            return np.zeros(len(own))
        before = tree.parent[tree.index]
        sharing = _sizes(tree)[before] - 1
        others = (rewards.sum() - own) / (count - 1)
        near = (_node_sums(tree, rewards)[before] - own) / np.maximum(sharing, 1)
        share = np.where(sharing > 0, sharing / np.maximum(sharing + self.kappa, 1e-300), 0.0)
        baseline: FloatArray = share * near + (1 - share) * others
        return own - baseline


@dataclass(frozen=True, slots=True)
class Decoupled(Advantage):
    """`Σ_k w_k · (s_ik − mean_k) / (std_k + ε)`: every reward function is normalised on its own, then summed.

    A score that is missing is left out of the sum. Source: GDPO, arXiv 2601.05242.
    """

    group_relative: ClassVar[bool] = False
    per_token: ClassVar[bool] = False

    def __call__(self, outcomes: Outcomes) -> FloatArray:
        total = np.zeros(len(outcomes.rewards))
        for weight, column in zip(outcomes.weights, outcomes.scores.T, strict=True):
            present = ~np.isnan(column)
            values = column[present]
            if weight and len(values) > 1 and np.ptp(values) > SPREAD_TOLERANCE:
                total[present] += weight * (values - values.mean()) / (values.std(ddof=1) + STD_EPSILON)
        return total


ADVANTAGES: Mapping[str, type[Advantage]] = MappingProxyType(
    {
        "group_mean": GroupMean,
        "leave_one_out": LeaveOneOut,
        "return_to_go": ReturnToGo,
        "steps": StepRewards,
        "process": ProcessAdvantage,
        "tempo": Tempo,
        "treerl": GlobalAndLocal,
        "segments": Segments,
        "tree_rloo": TreeRLOO,
        "decoupled": Decoupled,
    }
)
