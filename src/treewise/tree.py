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

A trajectory may have several transcripts (its chat template took the thinking out of earlier turns). Each is a row of
its own, and the trajectory passes through all of their tokens, through each of them once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
        leaf, owner, sign: [E] the token that a row ends with, the row's trajectory, and 1; also the token where two
            rows of one trajectory part, and −1, so that sums below a token count each trajectory once.
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
    leaf: IntArray
    owner: IntArray
    sign: IntArray
    count: int

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def lengths(self) -> IntArray:
        """[G] sampled tokens of each trajectory."""
        return np.bincount(self.trajectory, minlength=self.count)

    def sums(self, values: ArrayLike) -> NDArray[Any]:
        """[T] sum of a value [G] over the trajectories that pass through each token."""
        return _sums_below(self.end, self.leaf, self.sign * np.asarray(values)[self.owner])


def _sums_below(end: IntArray, leaf: IntArray, amounts: NDArray[Any]) -> NDArray[Any]:
    """[T] sum of the amounts at the tokens from each token to its last descendant."""
    there = np.zeros(len(end) + 1, dtype=amounts.dtype)
    np.add.at(there, leaf + 1, amounts)
    upto = np.cumsum(there)
    below: NDArray[Any] = upto[end] - upto[:-1]
    return below


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


def build_tree(
    tokens: Sequence[ArrayLike], sampled: Sequence[ArrayLike], starts: Sequence[Sequence[int]] | None = None
) -> PrefixTree:
    """Build the prefix tree of one group.

    Args:
        tokens: G transcripts of token ids, prompt included, of any lengths.
        sampled: G masks of the same lengths, True where the model sampled the token.
        starts: per trajectory the positions at which another transcript of its begins; default none.

    Raises:
        ValueError: if shapes differ or a token id is negative.
    """
    whole = _marked(tokens, sampled)
    parts = [np.split(row, own) for row, own in zip(whole, starts or [()] * len(whole), strict=True)]
    marked = [row for own in parts for row in own]
    owner = np.repeat(np.arange(len(whole)), [len(own) for own in parts])
    order = sort_rows(marked)
    lengths = np.array([len(row) for row in marked], dtype=np.int64)
    fresh = lengths[order.rows] - order.shared  # tokens that each sorted row adds
    starts = np.cumsum(fresh) - fresh
    total = int(fresh.sum())

    flat = np.empty(total, dtype=np.int64)
    parent = np.arange(-1, total - 1, dtype=np.int64)
    position = np.empty(total, dtype=np.int64)
    end = np.empty(total, dtype=np.int64)
    paths: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)] * len(marked)

    path = np.empty(0, dtype=np.int64)
    for row, shared, start, added in zip(order.rows, order.shared, starts, fresh, strict=True):
        new = slice(start, start + added)
        flat[new] = marked[row][shared:]
        position[new] = np.arange(shared, shared + added)
        if added:
            parent[start] = path[shared - 1] if shared else -1
        path = np.concatenate([path[:shared], np.arange(start, start + added)])
        paths[row] = path

    # A token at depth d ends where the next row begins that shares at most d tokens.
    ends_at = np.full(int(lengths.max(initial=0)) + 1, total, dtype=np.int64)
    for j in range(len(order.rows) - 1, -1, -1):
        shared, start, added = order.shared[j], starts[j], fresh[j]
        end[start : start + added] = ends_at[shared : shared + added]
        ends_at[shared:] = start

    is_sampled = (flat & 1).astype(bool)
    entries = [path[is_sampled[path]] for path in paths]
    leaf, leaf_row, sign = _ends(paths, owner)
    return PrefixTree(
        tokens=flat >> 1,
        parent=parent,
        position=position,
        end=end,
        sampled=is_sampled,
        size=_sums_below(end, leaf, sign),
        index=np.concatenate([np.empty(0, dtype=np.int64), *entries]),
        trajectory=np.repeat(owner, [len(entry) for entry in entries]),
        leaf=leaf,
        owner=owner[leaf_row],
        sign=sign,
        count=len(whole),
    )


def _ends(paths: Sequence[IntArray], owner: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """[E] tokens at which rows end (+1) or two rows of one trajectory part (−1), the row, and the sign."""
    found = []
    rows = sorted((row for row, path in enumerate(paths) if len(path)), key=lambda row: (owner[row], paths[row][-1]))
    for before, row in zip([None, *rows], rows, strict=False):
        found.append((paths[row][-1], row, 1))
        if before is not None and owner[before] == owner[row]:
            overlap = min(len(paths[before]), len(paths[row]))
            shared = np.count_nonzero(paths[before][:overlap] == paths[row][:overlap])
            if shared:
                found.append((paths[row][shared - 1], row, -1))
    leaf, leaf_row, sign = np.array(found, dtype=np.int64).reshape(-1, 3).T
    return leaf, leaf_row, sign
