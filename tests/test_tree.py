"""The prefix tree against a dictionary of prefixes, on every awkward shape."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treewise.tree import PrefixTree, build_tree, sort_rows

Marked = list[tuple[int, int]]  # one transcript as (token, sampled?) pairs

# Three ids and short rows, so that prefixes, duplicates and empty rows come up all the time.
transcripts = st.lists(st.lists(st.tuples(st.sampled_from([0, 1, 300]), st.integers(0, 1)), max_size=7), max_size=8)


def tree_of(rows: list[Marked]) -> PrefixTree:
    return build_tree([[token for token, _ in row] for row in rows], [[bool(mark) for _, mark in row] for row in rows])


def completions(*rows: list[int]) -> PrefixTree:
    return build_tree(rows, [np.ones(len(row), dtype=bool) for row in rows])


def path_to(tree: PrefixTree, node: int) -> list[int]:
    """Root … node, by following `parent`."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(tree.parent[node])
    return path[::-1]


def prefix_of(tree: PrefixTree, node: int) -> tuple[tuple[int, int], ...]:
    return tuple((int(tree.tokens[k]), int(tree.sampled[k])) for k in path_to(tree, node))


@given(transcripts)
def test_tree_holds_every_prefix_once_with_the_number_of_rows_through_it(rows: list[Marked]) -> None:
    oracle = Counter(tuple(row[: t + 1]) for row in rows for t in range(len(row)))
    tree = tree_of(rows)
    found = {prefix_of(tree, node): int(tree.size[node]) for node in range(len(tree))}
    assert found == oracle
    assert len(tree) == len(oracle)
    assert tree.count == len(rows)


@given(transcripts)
def test_every_trajectory_is_reproduced_from_its_index(rows: list[Marked]) -> None:
    tree = tree_of(rows)
    for number, row in enumerate(rows):
        entries = tree.index[tree.trajectory == number]
        assert [int(tree.tokens[k]) for k in entries] == [token for token, mark in row if mark]
        assert [int(tree.position[k]) for k in entries] == [t for t, (_, mark) in enumerate(row) if mark]
        for k in entries:
            assert prefix_of(tree, int(k)) == tuple(row[: tree.position[k] + 1])
    assert np.all(np.diff(tree.trajectory) >= 0)


@given(transcripts)
def test_attention_rule_says_ancestor_or_self(rows: list[Marked]) -> None:
    tree = tree_of(rows)
    for q in range(len(tree)):
        allowed = [k for k in range(len(tree)) if k <= q < tree.end[k]]
        assert allowed == path_to(tree, q)


@given(transcripts)
def test_parents_stand_before_their_children_one_position_up(rows: list[Marked]) -> None:
    tree = tree_of(rows)
    for node in range(len(tree)):
        parent = int(tree.parent[node])
        assert parent < node < tree.end[node]
        assert tree.position[node] == (0 if parent < 0 else tree.position[parent] + 1)
        if parent >= 0:
            assert tree.size[node] <= tree.size[parent]
            assert tree.end[node] <= tree.end[parent]


@given(transcripts)
def test_process_sets_are_nested_or_disjoint(rows: list[Marked]) -> None:
    tree = tree_of(rows)
    members = {
        frozenset(n for n, row in enumerate(rows) if tuple(row[: len(prefix)]) == prefix)
        for prefix in (prefix_of(tree, node) for node in range(len(tree)))
    }
    assert all(a <= b or b <= a or not a & b for a in members for b in members)


@given(transcripts)
def test_order_of_the_rows_does_not_change_the_tree(rows: list[Marked]) -> None:
    forward, backward = tree_of(rows), tree_of(rows[::-1])
    for name in ("tokens", "parent", "position", "end", "sampled", "size"):
        np.testing.assert_array_equal(getattr(forward, name), getattr(backward, name))


@given(transcripts)
def test_rows_are_sorted_as_lists_of_numbers_are(rows: list[Marked]) -> None:
    numbers = [np.array([2 * token + mark for token, mark in row], dtype=np.int64) for row in rows]
    order = sort_rows(numbers)
    ordered = [numbers[row].tolist() for row in order.rows]
    assert ordered == sorted(row.tolist() for row in numbers)
    for before, here, shared in zip(ordered, ordered[1:], order.shared[1:], strict=False):
        assert before[:shared] == here[:shared]
        assert before[: shared + 1] != here[: shared + 1] or before == here


def test_tree_of_the_drawing() -> None:
    p, q, a, b, c, d = range(10, 16)
    prompt = [False, False]
    tree = build_tree([[p, q, a, b], [p, q, a, c], [p, q, d]], [[*prompt, True, True]] * 2 + [[*prompt, True]])
    assert tree.tokens.tolist() == [p, q, a, b, c, d]
    assert tree.parent.tolist() == [-1, 0, 1, 2, 2, 1]
    assert tree.position.tolist() == [0, 1, 2, 3, 3, 2]
    assert tree.end.tolist() == [6, 6, 5, 4, 5, 6]
    assert tree.size.tolist() == [3, 3, 2, 1, 1, 1]
    assert tree.index.tolist() == [2, 3, 2, 4, 5]
    assert tree.trajectory.tolist() == [0, 0, 1, 1, 2]


def test_duplicates_stay_together_to_the_end() -> None:
    tree = completions([1, 2], [1, 2], [1, 2])
    assert tree.tokens.tolist() == [1, 2]
    assert tree.size.tolist() == [3, 3]
    assert tree.index.tolist() == [0, 1] * 3


def test_strict_prefix_ends_inside_the_longer_answer() -> None:
    tree = completions([1, 2, 3], [1, 2])
    assert tree.tokens.tolist() == [1, 2, 3]
    assert tree.size.tolist() == [2, 2, 1]
    assert tree.end.tolist() == [3, 3, 3]


def test_one_trajectory_is_one_chain() -> None:
    tree = completions([5, 5, 5])
    assert tree.parent.tolist() == [-1, 0, 1]
    assert tree.size.tolist() == [1, 1, 1]


def test_empty_answer_counts_as_a_trajectory_without_tokens() -> None:
    tree = completions([], [7], [])
    assert tree.count == 3
    assert tree.index.tolist() == [0]
    assert tree.trajectory.tolist() == [1]


def test_prompt_alone_gives_a_tree_without_sampled_tokens() -> None:
    tree = build_tree([[1, 2]] * 2, [[False, False]] * 2)
    assert tree.size.tolist() == [2, 2]
    assert len(tree.index) == 0


def test_no_rows_give_an_empty_tree() -> None:
    for rows in ([], [[]], [[], []]):
        tree = completions(*rows)
        assert (len(tree), len(tree.index), tree.count) == (0, 0, len(rows))


def test_different_first_tokens_give_a_forest() -> None:
    tree = completions([2, 3], [1, 3])
    assert tree.tokens.tolist() == [1, 3, 2, 3]
    assert tree.parent.tolist() == [-1, 0, -1, 2]
    assert tree.end.tolist() == [2, 2, 4, 4]
    assert tree.index.tolist() == [2, 3, 0, 1]


def test_same_token_with_another_mark_is_another_token() -> None:
    tree = build_tree([[1, 2, 3], [1, 2, 3]], [[True, True, True], [True, False, True]])
    assert tree.tokens.tolist() == [1, 2, 3, 2, 3]
    assert tree.size.tolist() == [2, 1, 1, 1, 1]


def test_64_trajectories_of_30_000_tokens_are_built_correctly() -> None:
    rng = np.random.default_rng(0)
    stem = rng.integers(0, 150_000, 30_000)
    branches = np.sort(rng.choice(30_000, size=64, replace=False))[::-1]
    rows = [np.concatenate([stem[:at], [150_000 + n], stem[at + 1 :]]) for n, at in enumerate(branches)]
    tree = build_tree(rows, [np.ones(30_000, dtype=bool)] * 64)
    # Row n leaves the stem at branches[n]; nobody follows it, and the rows before it go on along the stem.
    assert len(tree) == branches[0] + (30_000 - branches).sum()
    for n in (0, 1, 31, 63):
        path = tree.index[tree.trajectory == n]
        np.testing.assert_array_equal(tree.tokens[path], rows[n])
        np.testing.assert_array_equal(tree.position[path], np.arange(30_000))
        followers = np.array([(branches > t).sum() for t in range(branches[n])])
        np.testing.assert_array_equal(tree.size[path[: branches[n]]], followers)
        assert (tree.size[path[branches[n] :]] == 1).all()
        np.testing.assert_array_equal(tree.parent[path[1:]], path[:-1])


@pytest.mark.parametrize(
    ("tokens", "sampled", "message"),
    [
        ([[1, 2]], [[True]], "transcript 0"),
        ([[1], [2]], [[True]], "2 transcripts but 1"),
        ([[1], [3, -1]], [[True], [True, True]], "transcript 1: negative token id -1"),
        ([[[1]]], [[[True]]], "transcript 0"),
    ],
)
def test_wrong_shapes_and_negative_ids_are_refused(
    tokens: list[list[int]], sampled: list[list[bool]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build_tree(tokens, sampled)
