"""Credited groups into micro-batches that fit a token budget.

    sorted transcripts   shots q1 a      one tree over all of them; tokens that several groups share (a system
                         shots q1 b      message, worked examples) are computed once, too
                         ───────────  ◀─ cut between trajectories, where the least is shared; the part behind
                         shots q2 c      the cut computes its ancestors again, with gradient
                         shots q2 d

Credit is fixed before, group by group; here only arithmetic is shared. Micro-batches only sum: every
coefficient already holds the step's 1/D, so a loss does not depend on how it is cut. Transcripts stay
whole, so each token's loss stands in exactly one part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from treewise.credit import CreditedGroup
from treewise.tree import build_tree, sort_rows
from treewise.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One tree of `T` unique tokens over some trajectories, with `A` sampled tokens in trajectory space.

    Attributes:
        tokens, parent, position, end: [T] the tree, see `treewise.tree`.
        index: [A] tree token of every sampled token.
        trajectory: [A] which of `transcripts` it belongs to; a trajectory that has several counts as so many.
        advantages, coefficients: [A] as in the loss; coefficients are divided by D.
        sampler_logprobs: [A] log-probs that the sampler reported, nan where it could not tell.
        transcripts, sampled: every transcript's tokens and mask, for the path without a tree.
        origin: (group number, trajectory number among the scored ones) of every transcript.
        spans: its entries in the group's trajectory space.
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
    spans: tuple[slice, ...]


class _Row(NamedTuple):
    """One transcript to compute: tokens and mask [L], log-probs of its sampled tokens, and where it comes from."""

    tokens: IntArray
    sampled: BoolArray
    logprobs: FloatArray
    origin: tuple[int, int]
    span: slice


def _tree_parts(transcripts: Sequence[IntArray], budget: int) -> Iterator[list[int]]:
    """Transcript numbers of each part: runs of the sorted order with at most `budget` unique tokens.

    A full part is cut at the boundary in its second half across which neighbours share the least.
    """
    order = sort_rows(transcripts)
    lengths = np.array([len(transcripts[row]) for row in order.rows])
    start = 0
    while start < len(lengths):
        unique = lengths[start] + np.concatenate([[0], np.cumsum((lengths - order.shared)[start + 1 :])])
        stop = start + max(1, int(np.searchsorted(unique, budget, side="right")))
        if stop < len(lengths):
            half = start + 1 + int(np.searchsorted(unique, unique[stop - start - 1] / 2))
            boundaries = np.arange(min(half, stop), stop + 1)
            stop = int(boundaries[np.lexsort((-boundaries, order.shared[boundaries]))[0]])
        yield order.rows[start:stop].tolist()
        start = stop


def _flat_parts(transcripts: Sequence[IntArray], budget: int) -> Iterator[list[int]]:
    """Transcript numbers of each part: rows of similar length, rows × longest row at most `budget`."""
    part: list[int] = []
    for number in sorted(range(len(transcripts)), key=lambda n: len(transcripts[n])):
        if part and (len(part) + 1) * len(transcripts[number]) > budget:
            yield part
            part = []
        part.append(number)
    if part:
        yield part


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
    rows: list[_Row] = []  # of every transcript that has something to compute
    for number, group in enumerate(groups):
        start = 0
        for member, trajectory in enumerate(group.trajectories):
            for own in trajectory.transcripts:
                sampled = trajectory.sampled[own]
                if len(sampled) and sampled[0]:
                    raise ValueError(
                        f"problem {group.group.problem.id!r}, trajectory {member}: the first token is marked "
                        "as sampled, but there is no token before it; the prompt must not be empty"
                    )
                span = slice(start, start := start + int(sampled.sum()))
                if span.start < span.stop and group.trained[member]:
                    logprobs = trajectory.logprobs[own][sampled]
                    rows.append(_Row(trajectory.tokens[own], sampled, logprobs, (number, member), span))
    parts = _flat_parts if flat else _tree_parts
    batches = []
    for part in parts([row.tokens * 2 + row.sampled for row in rows], budget):
        chosen = [rows[n] for n in sorted(part)]  # the order of the groups, whatever the tokens are
        tree = build_tree([row.tokens for row in chosen], [row.sampled for row in chosen])
        taken = [(groups[row.origin[0]], row.span) for row in chosen]
        batches.append(
            MicroBatch(
                tokens=tree.tokens,
                parent=tree.parent,
                position=tree.position,
                end=tree.end,
                index=tree.index,
                trajectory=tree.trajectory,
                advantages=np.concatenate([group.advantages[span] for group, span in taken]),
                coefficients=np.concatenate([group.coefficients[span] for group, span in taken]) / denominator,
                sampler_logprobs=np.concatenate([row.logprobs for row in chosen]),
                transcripts=tuple(row.tokens for row in chosen),
                sampled=tuple(row.sampled for row in chosen),
                origin=tuple(row.origin for row in chosen),
                spans=tuple(row.span for row in chosen),
            )
        )
    return batches
