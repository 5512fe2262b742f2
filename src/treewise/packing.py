"""Credited groups into micro-batches that fit a token budget.

    group 1  ▣▣▣▣▣▣▣            micro-batch 1  ▣▣▣▣▣▣▣□□□
    group 2  □□□          ──▶    micro-batch 2  ▤▤▤▤▤▤▤▤▤▤      ▤ is cut between trajectories; the part
    group 3  ▤▤▤▤▤▤▤▤▤▤▤▤▤▤      micro-batch 3  ▤▤▤▤▤▤▤         behind the cut computes its ancestors again

Micro-batches only sum: every coefficient already holds the step's 1/D, so a loss does not depend on
how it is cut. A tree over the budget is cut between whole trajectories, so each token's loss stands
in exactly one part, sequence-level terms stay whole, and recomputed ancestors carry gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from treewise.credit import CreditedGroup
from treewise.tree import PrefixTree, build_tree, sort_rows
from treewise.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Several trees in one row: `T` unique tokens, `A` sampled tokens in trajectory space.

    Attributes:
        tokens, parent, position, end: [T] the trees one after the other, see `treewise.tree`.
        index: [A] tree token of every sampled token.
        trajectory: [A] which of `transcripts` it belongs to.
        advantages, coefficients: [A] as in the loss; coefficients are divided by D.
        sampler_logprobs: [A] log-probs that the sampler reported.
        transcripts, sampled: every trajectory's tokens and mask, for the path without a tree.
        origin: (group number, trajectory number among the scored ones) of every transcript.
    """

    tokens: IntArray
    parent: IntArray
    position: IntArray
    end: IntArray
    index: IntArray
    trajectory: IntArray
    advantages: FloatArray
    coefficients: FloatArray
    sampler_logprobs: FloatArray
    transcripts: tuple[IntArray, ...]
    sampled: tuple[BoolArray, ...]
    origin: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some trajectories of one group, and what they cost: unique tokens, and rows × longest row."""

    group: int
    members: tuple[int, ...]
    unique: int
    longest: int


def _cut(number: int, group: CreditedGroup, budget: int, flat: bool) -> Iterator[_Piece]:
    """Split a group between trajectories, in sorted order so that neighbours share the most.

    An empty answer has no token to compute; it only counts in D.
    """
    answered = [n for n, t in enumerate(group.trajectories) if t.sampled.any()]
    transcripts = [group.trajectories[n].tokens * 2 + group.trajectories[n].sampled for n in answered]
    order = sort_rows(transcripts)
    members: list[int] = []
    unique = longest = 0
    for row, shared in zip(order.rows.tolist(), order.shared.tolist(), strict=True):
        length = len(transcripts[row])
        added = length - shared if members else length
        wider = max(longest, length)
        cost = (len(members) + 1) * wider if flat else unique + added
        if members and cost > budget:
            yield _Piece(number, tuple(sorted(members)), unique, longest)
            members, unique, longest, added, wider = [], 0, 0, length, length
        members.append(answered[row])
        unique, longest = unique + added, wider
    if members:
        yield _Piece(number, tuple(sorted(members)), unique, longest)


def _bins(pieces: Sequence[_Piece], budget: int, flat: bool) -> list[list[_Piece]]:
    """First fit, largest piece first, so that few micro-batches are needed."""

    def cost(bin_: Sequence[_Piece]) -> int:
        if flat:
            return sum(len(p.members) for p in bin_) * max(p.longest for p in bin_)
        return sum(p.unique for p in bin_)

    bins: list[list[_Piece]] = []
    for piece in sorted(pieces, key=lambda p: -cost([p])):
        for candidate in bins:
            if cost([*candidate, piece]) <= budget:
                candidate.append(piece)
                break
        else:
            bins.append([piece])
    return bins


def _concatenate(groups: Sequence[CreditedGroup], pieces: Sequence[_Piece], denominator: float) -> MicroBatch:
    trees: list[PrefixTree] = []
    advantages: list[FloatArray] = []
    coefficients: list[FloatArray] = []
    sampler: list[FloatArray] = []
    transcripts: list[IntArray] = []
    masks: list[BoolArray] = []
    origin: list[tuple[int, int]] = []
    for piece in sorted(pieces, key=lambda p: (p.group, p.members)):
        group = groups[piece.group]
        chosen = [group.trajectories[member] for member in piece.members]
        whole = len(chosen) == len(group.trajectories)
        trees.append(group.tree if whole else build_tree([t.tokens for t in chosen], [t.sampled for t in chosen]))
        entries = np.flatnonzero(np.isin(group.tree.trajectory, piece.members))
        advantages.append(group.advantages[entries])
        coefficients.append(group.coefficients[entries] / denominator)
        sampler.extend(t.logprobs[t.sampled] for t in chosen)
        transcripts.extend(t.tokens for t in chosen)
        masks.extend(t.sampled for t in chosen)
        origin.extend((piece.group, member) for member in piece.members)
    starts = np.cumsum([0, *(len(tree) for tree in trees)])
    rows = np.cumsum([0, *(tree.count for tree in trees)])
    return MicroBatch(
        tokens=np.concatenate([tree.tokens for tree in trees]),
        parent=np.concatenate(
            [np.where(tree.parent < 0, -1, tree.parent + s) for tree, s in zip(trees, starts, strict=False)]
        ),
        position=np.concatenate([tree.position for tree in trees]),
        end=np.concatenate([tree.end + s for tree, s in zip(trees, starts, strict=False)]),
        index=np.concatenate([tree.index + s for tree, s in zip(trees, starts, strict=False)]),
        trajectory=np.concatenate([tree.trajectory + r for tree, r in zip(trees, rows, strict=False)]),
        advantages=np.concatenate(advantages),
        coefficients=np.concatenate(coefficients),
        sampler_logprobs=np.concatenate(sampler),
        transcripts=tuple(transcripts),
        sampled=tuple(masks),
        origin=tuple(origin),
    )


def pack(groups: Sequence[CreditedGroup], *, denominator: float, budget: int, flat: bool = False) -> list[MicroBatch]:
    """Pack groups into micro-batches of at most `budget` tokens.

    Args:
        groups: the groups to compute. Groups without any signal may be left out by the caller, because
            `denominator` was fixed before, over all groups of the optimizer step.
        denominator: D of the optimizer step.
        budget: unique tokens a micro-batch may hold; with `flat`, rows × longest row. A single
            trajectory that is longer stands alone in its micro-batch.
        flat: count padded rows instead of unique tokens.

    Raises:
        ValueError: if a sampled token has nothing before it (the model can't have predicted it).
    """
    if budget < 1:
        raise ValueError(f"the token budget must be positive, got {budget}")
    for group in groups:
        for number, trajectory in enumerate(group.trajectories):
            if len(trajectory.sampled) and trajectory.sampled[0]:
                raise ValueError(
                    f"problem {group.group.problem.id!r}, trajectory {number}: the first token is marked "
                    "as sampled, but there is no token before it; the prompt must not be empty"
                )
    pieces = [piece for number, group in enumerate(groups) for piece in _cut(number, group, budget, flat)]
    return [_concatenate(groups, chosen, denominator) for chosen in _bins(pieces, budget, flat)]
