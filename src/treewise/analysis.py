"""The process sets of recorded rollouts: who shares which tokens, and what that prefix is worth.

    row  tokens   reward        set      members   span    reward   advantage
    0    A B C    1             root     0 1 2     0..1    .667      0
    1    A B D    0             ├ B      0 1       1..2    .5       -.289
    2    A E      1             │ ├ C    0         2..3    1        +.577
                                │ └ D    1         2..3    0       -1.155
                                └ E      2         1..2    1        +.577

A process set is a run of tree tokens with the same |λ|, so everything is read off the tree's vectors.
Spans are positions in `tokens`, of the first member; depth and proportions count sampled tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from treewise.credit import group_advantages, process_advantages, process_rewards, reward_statistics
from treewise.records import RecordedGroup, RecordedTrajectory
from treewise.tree import PrefixTree, build_tree
from treewise.types import BoolArray, FloatArray, IntArray


class ProcessSet(TypedDict):
    """The rows `members` agree up to and including the tokens [`start`, `end`); `reward` is their mean. In a row with
    several transcripts that is meant within one of them."""

    start: int
    end: int
    members: list[int]
    size: int
    reward: float | None
    advantage: float | None


class GroupReport(TypedDict):
    """What `treewise inspect --json` prints of a group; None stands for "no verdict to take it from"."""

    group: str | int
    mean: float | None
    std: float | None
    advantages: list[float | None]
    sets: list[ProcessSet]
    path_depth: float | None
    intermediate_proportion: float | None
    shared_proportion: float | None
    flat: bool


@dataclass(frozen=True, slots=True)
class TreeStatistics:
    """How much a group shares; the means are over scored trajectories and None without one.

    Attributes:
        path_depth: sets on the path root → leaf that span at least one sampled token.
        intermediate_proportion: share of the sampled tokens that lie in the longest prefix shared with a
            trajectory that is not identical; 0 for an empty answer (arXiv 2509.21154, §4).
        shared_proportion: share of the sampled tokens in sets of more than one member.
        flat: no sampled token is shared.
    """

    path_depth: float | None
    intermediate_proportion: float | None
    shared_proportion: float | None
    flat: bool


def set_starts(tree: PrefixTree) -> BoolArray:
    """[T] whether a process set begins at the token: |λ| differs from the parent's, or it is another branch."""
    smaller = (tree.parent < 0) | (tree.size != tree.size[tree.parent])
    # Where transcripts of the same trajectories part, both sides have all of them.
    starts: BoolArray = smaller | (tree.parent != np.arange(len(tree)) - 1)
    return starts


def _along_path(tree: PrefixTree, values: BoolArray) -> FloatArray:
    """[T] how many of the tokens from the root to each token, itself included, have a true value.

    A token counts for the tokens `k <= q < end[k]`: add it at k, take it away at end[k], and sum up.
    """
    leaving = np.bincount(tree.end, weights=values, minlength=len(tree) + 1)[: len(tree)]
    return np.cumsum(values - leaving)


def tree_statistics(tree: PrefixTree) -> TreeStatistics:
    """Depth and proportions of one group's tree; with or without the prompt, as it isn't sampled.

    A trajectory with several transcripts counts as so many.
    """
    if tree.count == 0:
        return TreeStatistics(None, None, None, flat=True)
    ends = tree.sign > 0
    copies = np.bincount(tree.leaf[ends], minlength=len(tree))  # identical transcripts that end at each token
    transcripts = tree.count + int(ends.sum()) - len(np.unique(tree.owner))
    sampled = np.flatnonzero(tree.sampled)
    _, firsts = np.unique(np.cumsum(set_starts(tree))[sampled], return_index=True)
    counts_for_depth = np.zeros(len(tree), dtype=bool)
    counts_for_depth[sampled[firsts]] = True

    shared = tree.sampled & (tree.size > 1)
    length = _along_path(tree, tree.sampled)
    others = np.zeros(len(tree))  # sampled tokens shared with somebody else than a copy
    for number in np.unique(copies[copies > 0]):
        at = copies == number
        others[at] = _along_path(tree, tree.sampled & (tree.size > number))[at]

    def mean(values: FloatArray) -> float:
        return float(copies @ values) / transcripts

    nonzero = np.maximum(length, 1.0)
    return TreeStatistics(
        path_depth=mean(_along_path(tree, counts_for_depth)),
        intermediate_proportion=mean(others / nonzero),
        shared_proportion=mean(_along_path(tree, shared) / nonzero),
        flat=not shared.any(),
    )


def process_sets(trajectories: Sequence[RecordedTrajectory], rewards: FloatArray) -> list[ProcessSet]:
    """The process sets of scored trajectories, `members` being places in `trajectories`: the root first,
    then depth-first, children by first member. Only the root may span no token, or have no member."""
    # With marks moved into the ids every token is an entry of trajectory space, environment tokens too.
    marked = [2 * t.tokens + t.sampled for t in trajectories]
    tree = build_tree(marked, [np.ones(len(ids), dtype=bool) for ids in marked], [t.starts for t in trajectories])
    begins = set_starts(tree)
    several = any(t.starts for t in trajectories)
    begins[:1] &= several | (tree.size[:1] < tree.count)  # a first token that all share belongs to the root
    number = np.cumsum(begins)  # the set of each token, 0 is the root
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(tree))[: len(first)] - 1
    above = np.where(tree.parent[first] < 0, 0, number[tree.parent[first]])

    # One entry for every pair of a set and a member: where the member is given the set's last token.
    closes = np.zeros(len(tree), dtype=bool)
    closes[last] = True
    entries = np.flatnonzero(closes[tree.index])
    pairs = number[tree.index[entries]] * tree.count + tree.trajectory[entries]
    entries = entries[np.unique(pairs, return_index=True)[1]]
    bounds = np.searchsorted(number[tree.index[entries]], np.arange(1, len(first) + 1))
    position = np.arange(len(tree.index)) - np.searchsorted(tree.trajectory, tree.trajectory)
    values, advantages = process_rewards(tree, rewards), process_advantages(tree, rewards)
    mean, _ = reward_statistics(list(rewards))
    root = ProcessSet(
        start=0,
        end=int((number == 0).sum()),
        members=list(range(tree.count)),
        size=tree.count,
        reward=mean,
        advantage=None if mean is None else 0.0,
    )
    others = [
        ProcessSet(
            start=int(position[entry] - b + a),
            end=int(position[entry]) + 1,
            members=members.tolist(),
            size=len(members),
            reward=float(values[entry]),
            advantage=float(advantages[entry]),
        )
        for a, b, entry, members in zip(
            first, last, entries[bounds], np.split(tree.trajectory[entries], bounds[1:]), strict=False
        )
    ]
    return _depth_first([root, *others], above)


def _depth_first(sets: list[ProcessSet], above: IntArray) -> list[ProcessSet]:
    """Order sets by their first member below each parent; `above[n - 1]` is set n's parent, 0 the root."""
    children: list[list[int]] = [[] for _ in sets]
    for n in sorted(range(1, len(sets)), key=lambda n: (-sets[n]["members"][0], -sets[n]["start"])):
        children[above[n - 1]].append(n)
    ordered, stack = [], [0]
    while stack:
        n = stack.pop()
        ordered.append(sets[n])
        stack.extend(children[n])
    return ordered


def inspect_group(group: RecordedGroup) -> GroupReport:
    """The process sets, process rewards and advantages of one group; what has no verdict is in no set.

    A group without any verdict has one set, the root, and it has no members.
    """
    places = [place for place, row in enumerate(group.trajectories) if row.scored]
    scored = [group.trajectories[place] for place in places]
    rewards = [row.reward if row.scored else None for row in group.trajectories]
    mean, std = reward_statistics(rewards)
    sets = process_sets(scored, np.array([row.reward for row in scored], dtype=np.float64))
    for found in sets:
        found["members"] = [places[member] for member in found["members"]]
    tree = build_tree([row.tokens for row in scored], [row.sampled for row in scored], [row.starts for row in scored])
    statistics = tree_statistics(tree)
    return GroupReport(
        group=group.id,
        mean=mean,
        std=std,
        advantages=[None if np.isnan(a) else float(a) for a in group_advantages(rewards)],
        sets=sets,
        path_depth=statistics.path_depth,
        intermediate_proportion=statistics.intermediate_proportion,
        shared_proportion=statistics.shared_proportion,
        flat=not any(found["size"] > 1 and found["end"] > found["start"] for found in sets),
    )
