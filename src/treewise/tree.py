"""The prefix tree of a group, as flat vectors.

    trajectories            the tree, one column per unique token, depth first
    p q A B                 token     p  q  A  B  C  D
    p q A C                 parent   -1  0  1  2  2  1
    p q D                   position  0  1  2  3  3  2
                            end       6  6  5  4  5  6
                            size      3  3  2  1  1  1   (|λ|: trajectories that pass through)

Two transcripts share a token when they agree in every token id *and* every sampled/environment mark
up to and including it. Token `q` may attend to `k` exactly when `k <= q < end[k]`: that one line is
the attention mask, and it also isolates trees that are packed one after the other.

The tree is read off the sorted transcripts: a row adds the tokens behind the longest prefix that it
shares with its predecessor, so no node objects and no recursion are needed, in O(total tokens).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from treewise.types import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class PrefixTree:
    """`T` unique tokens in preorder, and the map from trajectory space (`A` sampled tokens) to them.

    Attributes:
        tokens: [T] token ids.
        parent: [T] index of the preceding token, -1 for the first token of a transcript.
        position: [T] depth, the position that the token has in its transcript.
        end: [T] one past the last descendant.
        sampled: [T] whether the model sampled the token.
        size: [T] |λ|, how many of the trajectories pass through the token.
        index: [A] the tree token of every sampled token, trajectories in the given order.
        trajectory: [A] which trajectory each sampled token belongs to.
        last: [G] the tree token that each trajectory ends with, -1 for an empty transcript.
        count: G, the number of trajectories.
    """

    tokens: IntArray
    parent: IntArray
    position: IntArray
    end: IntArray
    sampled: BoolArray
    size: IntArray
    index: IntArray
    trajectory: IntArray
    last: IntArray
    count: int

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> IntArray:
        """[G] sampled tokens of each trajectory."""
        return np.bincount(self.trajectory, minlength=self.count)


@dataclass(frozen=True, slots=True)
class SortedRows:
    """Transcripts in lexicographic order: `rows[j]` is the j-th row's number, and it shares its first
    `shared[j]` tokens with the row sorted before it (0 for the first)."""

    rows: IntArray
    shared: IntArray


def sort_rows(transcripts: Sequence[IntArray]) -> SortedRows:
    """Sort transcripts and measure the longest common prefix of neighbours, in O(total tokens)."""
    # Big-endian bytes of numbers that are not negative compare like the numbers do, and a prefix comes first.
    keys = [np.asarray(row, dtype=">i8").tobytes() for row in transcripts]
    rows = np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)
    shared = np.zeros(len(rows), dtype=np.int64)
    for j in range(1, len(rows)):
        before, here = transcripts[rows[j - 1]], transcripts[rows[j]]
        overlap = min(len(before), len(here))
        differs = np.flatnonzero(before[:overlap] != here[:overlap])
        shared[j] = differs[0] if len(differs) else overlap
    return SortedRows(rows, shared)


def _marked(tokens: Sequence[ArrayLike], sampled: Sequence[ArrayLike]) -> list[NDArray[np.int64]]:
    """One number per token that tells both its id and its sampled/environment mark."""
    if len(tokens) != len(sampled):
        raise ValueError(f"{len(tokens)} transcripts but {len(sampled)} sampled masks")
    marked = []
    for number, (row, mask) in enumerate(zip(tokens, sampled, strict=True)):
        ids, marks = np.asarray(row, dtype=np.int64), np.asarray(mask, dtype=bool)
        if ids.ndim != 1 or ids.shape != marks.shape:
            raise ValueError(f"transcript {number}: tokens {ids.shape} and sampled mask {marks.shape} differ")
        if len(ids) and ids.min() < 0:
            raise ValueError(f"transcript {number}: negative token id {ids.min()}")
        marked.append(ids * 2 + marks)
    return marked


def build_tree(tokens: Sequence[ArrayLike], sampled: Sequence[ArrayLike]) -> PrefixTree:
    """Build the prefix tree of one group.

    Args:
        tokens: G transcripts of token ids, prompt included, of any lengths.
        sampled: G masks of the same lengths, True where the model sampled the token.

    Raises:
        ValueError: if shapes differ or a token id is negative.
    """
    marked = _marked(tokens, sampled)
    order = sort_rows(marked)
    lengths = np.array([len(row) for row in marked], dtype=np.int64)
    fresh = lengths[order.rows] - order.shared  # tokens that each sorted row adds
    starts = np.cumsum(fresh) - fresh
    total = int(fresh.sum())

    flat = np.empty(total, dtype=np.int64)
    parent = np.arange(-1, total - 1, dtype=np.int64)
    position = np.empty(total, dtype=np.int64)
    end = np.empty(total, dtype=np.int64)
    size = np.zeros(total, dtype=np.int64)
    paths: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)] * len(marked)

    path = np.empty(0, dtype=np.int64)
    for row, shared, start, added in zip(order.rows, order.shared, starts, fresh, strict=True):
        new = slice(start, start + added)
        flat[new] = marked[row][shared:]
        position[new] = np.arange(shared, shared + added)
        if added:
            parent[start] = path[shared - 1] if shared else -1
        path = np.concatenate([path[:shared], np.arange(start, start + added)])
        size[path] += 1
        paths[row] = path

    # A token at depth d ends where the next row begins that shares at most d tokens.
    ends_at = np.full(int(lengths.max(initial=0)) + 1, total, dtype=np.int64)
    for j in range(len(order.rows) - 1, -1, -1):
        shared, start, added = order.shared[j], starts[j], fresh[j]
        end[start : start + added] = ends_at[shared : shared + added]
        ends_at[shared:] = start

    is_sampled = (flat & 1).astype(bool)
    entries = [path[is_sampled[path]] for path in paths]
    return PrefixTree(
        tokens=flat >> 1,
        parent=parent,
        position=position,
        end=end,
        sampled=is_sampled,
        size=size,
        index=np.concatenate([np.empty(0, dtype=np.int64), *entries]),
        trajectory=np.repeat(np.arange(len(marked)), [len(entry) for entry in entries]),
        last=np.array([path[-1] if len(path) else -1 for path in paths], dtype=np.int64),
        count=len(marked),
    )
