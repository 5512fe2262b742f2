"""What a group of recorded rollouts is worth: its process sets, and the loss token by token.

    row  tokens   reward        sets            members   span   R̂     advantage
    0    A B C    1             root            0 1 2     0–1    .67    0
    1    A B D    0             └ A B ·         0 1       1–2    .5    −.29
    2    A E      1               ├ C           0         2–3    1     +.58  …

A process set is a run of tree tokens with the same |λ|, so everything is read off the tree's vectors.
Sets stand in positions of `tokens`; depth and proportions count sampled tokens only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from treewise.credit import (
    credit_group,
    denominator,
    group_advantages,
    process_advantages,
    process_rewards,
    reward_statistics,
    token_weights,
)
from treewise.presets import Objective
from treewise.records import RecordedGroup, RecordedTrajectory
from treewise.tree import PrefixTree, build_tree
from treewise.types import BoolArray, FloatArray, Group, IntArray, Problem, Trajectory


class ProcessSet(TypedDict):
    """The rows `members` agree up to and including every token of [`start`, `end`); `reward` is their mean."""

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


class TrajectoryReport(TypedDict):
    """One entry per token. Where the model did not sample, `terms` and `grad` are 0 and the rest is None."""

    advantages: list[float | None]
    sizes: list[int | None]
    weights: list[float | None]
    ratios: list[float | None]
    kl: list[float | None]
    terms: list[float]
    grad: list[float]


class LossReport(TypedDict):
    """What `treewise explain --json` prints: trajectories in file order, None where there is no verdict."""

    loss: float
    denominator: float
    trajectories: list[TrajectoryReport | None]


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
    """[T] whether a process set begins at the token: |λ| differs from the parent's."""
    return (tree.parent < 0) | (tree.size != tree.size[tree.parent])


def _along_path(tree: PrefixTree, values: BoolArray) -> FloatArray:
    """[T] how many of the tokens from the root to each token, itself included, have a true value.

    A token counts for the tokens `k <= q < end[k]`: add it at k, take it away at end[k], and sum up.
    """
    leaving = np.bincount(tree.end, weights=values, minlength=len(tree) + 1)[: len(tree)]
    return np.cumsum(values - leaving)


def tree_statistics(tree: PrefixTree) -> TreeStatistics:
    """Depth and proportions of one group's tree; with or without the prompt, as it isn't sampled."""
    if tree.count == 0:
        return TreeStatistics(None, None, None, flat=True)
    children = tree.parent >= 0
    going_on = np.bincount(tree.parent[children], weights=tree.size[children], minlength=len(tree))
    copies = (tree.size - going_on).astype(np.int64)  # identical trajectories that end at each token
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
        return float(copies @ values) / tree.count

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
    tree = build_tree(marked, [np.ones(len(ids), dtype=bool) for ids in marked])
    begins = set_starts(tree)
    begins[:1] &= tree.size[:1] < tree.count  # a first token that all share belongs to the root
    number = np.cumsum(begins)  # the set of each token, 0 is the root
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(tree)) - 1
    above = np.where(tree.parent[first] < 0, 0, number[tree.parent[first]])

    entries = np.flatnonzero(begins[tree.index])  # one for every pair of a set and a member
    entries = entries[np.argsort(number[tree.index[entries]], kind="stable")]
    bounds = np.searchsorted(number[tree.index[entries]], np.arange(1, len(first) + 1))
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
            start=int(tree.position[a]),
            end=int(tree.position[b]) + 1,
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
    for n in sorted(range(1, len(sets)), key=lambda n: -sets[n]["members"][0]):
        children[above[n - 1]].append(n)
    ordered, stack = [], [0]
    while stack:
        n = stack.pop()
        ordered.append(sets[n])
        stack.extend(children[n])
    return ordered


def inspect_group(group: RecordedGroup) -> GroupReport:
    """The process sets, process rewards and advantages of one group.

    A group without a verdict has the root as its only set, without members.

    Raises:
        ValueError: if the rewards are so large that their mean or deviation overflows.
    """
    places = [place for place, row in enumerate(group.trajectories) if row.scored]
    scored = [group.trajectories[place] for place in places]
    rewards = [row.reward if row.scored else None for row in group.trajectories]
    with np.errstate(over="ignore", invalid="ignore"):
        mean, std = reward_statistics(rewards)
    if not (np.isfinite(mean or 0.0) and np.isfinite(std or 0.0)):
        raise ValueError(f"group {group.id!r}: mean or spread of its rewards is too large for a float; scale them")
    sets = process_sets(scored, np.array([row.reward for row in scored], dtype=np.float64))
    for found in sets:
        found["members"] = [places[member] for member in found["members"]]
    statistics = tree_statistics(build_tree([row.tokens for row in scored], [row.sampled for row in scored]))
    return GroupReport(
        group=group.id,
        mean=mean,
        std=std,
        advantages=[None if np.isnan(a) else float(a) for a in group_advantages(rewards)],
        sets=sets,
        path_depth=statistics.path_depth,
        intermediate_proportion=statistics.intermediate_proportion,
        shared_proportion=statistics.shared_proportion,
        flat=statistics.flat,
    )


def explain_groups(groups: Sequence[RecordedGroup], objective: Objective) -> LossReport:
    """The loss of one optimizer step on all groups, token by token, through the functions that training uses.

    Without `logprobs` or `old_logprobs` the ratio is 1 (its gradient is not 0). `terms` hold the minus
    sign, |λ|^(−p) and 1/length: their sum is loss · D. `kl` is None without `ref_logprobs`.

    Raises:
        ValueError: if log-probs are missing that the objective needs, or the loss overflows.
    """
    import torch

    from treewise.objective import k3, loss, token_terms

    credited = [credit_group(_as_group(group), objective) for group in groups]
    total = denominator(
        [length for group in credited for length in group.lengths],
        aggregation=objective.aggregation,
        max_completion_tokens=objective.max_completion_tokens,
    )
    scored = [row for group in groups for row in group.trajectories if row.scored]
    logprobs, old_logprobs, ref_logprobs = map(torch.tensor, _logprob_columns(scored, objective))
    advantages = np.concatenate([group.advantages for group in credited])
    coefficients = np.concatenate([group.coefficients for group in credited])

    logprobs.requires_grad_()
    terms = token_terms(
        logprobs,
        advantages=torch.tensor(advantages),
        old_logprobs=old_logprobs,
        ref_logprobs=ref_logprobs,
        objective=objective,
    )
    value = loss(terms, torch.tensor(coefficients / total if total else np.zeros_like(coefficients)))
    (gradient,) = torch.autograd.grad(value, logprobs)
    if not (torch.isfinite(value) and torch.isfinite(gradient).all()):
        raise ValueError(f"the loss is {value.item()}: rewards or log-probs are too large for a float")

    columns = {
        "advantages": advantages,
        "sizes": np.concatenate([group.tree.size[group.tree.index] for group in credited]),
        "weights": np.concatenate(
            [token_weights(group.tree, exponent=objective.weight_exponent) for group in credited]
        ),
        "ratios": terms.ratios.detach().numpy(),
        "kl": k3(logprobs.detach(), ref_logprobs).numpy(),
        "terms": -coefficients * terms.objective.detach().numpy(),
        "grad": gradient.numpy(),
    }
    return LossReport(
        loss=value.item() + 0.0,  # + 0.0 turns -0.0 into 0.0
        denominator=total,
        trajectories=_in_file_order([row for group in groups for row in group.trajectories], columns),
    )


def _as_group(group: RecordedGroup) -> Group:
    """The same group as training has it; what doesn't count has no reward."""
    trajectories = tuple(
        Trajectory(
            tokens=row.tokens,
            sampled=row.sampled,
            logprobs=np.zeros(len(row.tokens)) if row.logprobs is None else row.logprobs,
            text=row.text or "",
            reward=row.reward if row.scored else None,
            stop_reason="eos",
        )
        for row in group.trajectories
    )
    return Group(Problem(id=str(group.id), prompt=""), trajectories)


def _logprob_columns(
    rows: Sequence[RecordedTrajectory], objective: Objective
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """log π, log π_old and log π_ref (nan where unknown) of the sampled tokens of all rows, each [A]."""
    empty = np.empty(0)
    logprobs, old, ref = [empty], [empty], [empty]
    for row in rows:
        length = int(row.sampled.sum())
        if row.logprobs is None and row.old_logprobs is not None:
            raise ValueError(f'{row.where}: "old_logprobs" without "logprobs"; give both for a ratio, or neither')
        known = row.logprobs is not None and row.ref_logprobs is not None
        if objective.kl_coef != 0.0 and length and not known:
            raise ValueError(
                f"{row.where}: objective.kl_coef = {objective.kl_coef} needs "
                '"logprobs" and "ref_logprobs"; add them, or set kl_coef to 0'
            )
        now = np.zeros(length) if row.logprobs is None else row.logprobs[row.sampled]
        logprobs.append(now)
        old.append(now if row.old_logprobs is None else row.old_logprobs[row.sampled])
        ref.append(row.ref_logprobs[row.sampled] if known and row.ref_logprobs is not None else now * np.nan)
    return np.concatenate(logprobs), np.concatenate(old), np.concatenate(ref)


def _in_file_order(
    rows: Sequence[RecordedTrajectory], columns: Mapping[str, FloatArray | IntArray]
) -> list[TrajectoryReport | None]:
    """Cut columns [A] over the scored rows into one report per row, a list entry for every token."""
    reports: list[TrajectoryReport | None] = [None] * len(rows)
    start = 0
    for row in rows:
        if not row.scored:
            continue
        own = slice(start, start := start + int(row.sampled.sum()))
        report: dict[str, list[float | None]] = {}
        for name, values in columns.items():
            entries = np.full(len(row.tokens), 0.0 if name in ("terms", "grad") else None, dtype=object)
            entries[row.sampled] = [None if np.isnan(x) else x + 0 for x in values[own].tolist()]
            report[name] = entries.tolist()
        reports[row.number] = TrajectoryReport(**report)  # type: ignore[typeddict-item]
    return reports
