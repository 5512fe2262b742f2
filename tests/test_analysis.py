"""Recorded rollouts: reading them, their process sets, and the loss token by token."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from treewise.analysis import GroupReport, inspect_group, tree_statistics
from treewise.cli import main
from treewise.explain import LossReport, explain_groups
from treewise.presets import PRESETS, resolve
from treewise.records import RecordedGroup, RecordedTrajectory, read_groups
from treewise.tables import explain_command, inspect_command, render_inspect
from treewise.text import inert
from treewise.tree import build_tree

Row = dict[str, Any]


def write(path: Path, *rows: Row | str) -> Path:
    file = path / "rollouts.jsonl"
    file.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return file


def row(tokens: Sequence[int], reward: float | None, **more: Any) -> Row:
    return {"group": "g", "tokens": list(tokens), "reward": reward, **more}


def recorded(*rows: Row, id: str | int = "g", first: int = 0) -> RecordedGroup:
    """A group without a detour through a file."""
    trajectories = [
        RecordedTrajectory(
            where=f"rows:{number + 1}",
            number=first + number,
            tokens=np.array(r["tokens"], dtype=np.int64),
            sampled=np.array(r.get("mask", [1] * len(r["tokens"])), dtype=bool),
            reward=r["reward"],
            text=r.get("text"),
            **{key: np.array(r[key], dtype=np.float64) for key in r if key.endswith(("logprobs", "entropies"))},
            **{key: r[key] for key in r if key in ("steps", "scores")},
        )
        for number, r in enumerate(rows)
    ]
    return RecordedGroup(id, tuple(trajectories))


def sets_of(report: GroupReport) -> list[tuple[int, int, list[int]]]:
    return [(s["start"], s["end"], s["members"]) for s in report["sets"]]


# Reading


def test_rows_of_a_group_need_not_be_adjacent(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        row([1], 1.0),
        "",
        {"group": 7, "completion_ids": [4, 5], "reward": None, "mask": [1, 0], "text": "hé", "extra": {}},
        "   ",
        row([2], 0),
    )
    first, second = read_groups(file)
    assert (first.id, second.id) == ("g", 7)
    assert [r.number for r in first.trajectories] == [0, 2]
    assert [r.where for r in first.trajectories] == [f"{file}:1", f"{file}:5"]
    (only,) = second.trajectories
    assert only.tokens.tolist() == [4, 5]
    assert only.sampled.tolist() == [True, False]
    assert (only.reward, only.text, only.logprobs) == (None, "hé", None)


def test_line_of_a_run_folder_is_read(tmp_path: Path) -> None:
    line = {
        "group": "3:count-7",
        "step": 3,
        "problem": "count-7",
        "index": 0,
        "prompt": "How many?",
        "prompt_ids": [1, 2],
        "tokens": [5, 6],
        "mask": [1, 1],
        "logprobs": [-0.5, -0.25],
        "text": "so 7",
        "reward": 1.0,
        "scores": {"answer": 1.0},
        "stop_reason": "eos",
        "cause": None,
        "version": 3,
    }
    ((only,),) = (group.trajectories for group in read_groups(write(tmp_path, line)))
    assert only.logprobs is not None
    assert only.logprobs.tolist() == [-0.5, -0.25]


def test_what_stands_at_mask_0_is_ignored(tmp_path: Path) -> None:
    line = '{"group": 1, "tokens": [5, 6, 7], "mask": [1, 0, false], "logprobs": [-1, null, NaN], "reward": 1}'
    ((only,),) = (group.trajectories for group in read_groups(write(tmp_path, line)))
    assert only.logprobs is not None
    assert only.logprobs.tolist() == [-1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"group": 1, "tokens": [1', "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("\x00\x01", "not valid JSON"),
        ("[1, 2]", "is not an object"),
        ({"tokens": [1], "reward": 1}, 'no "group"'),
        (row([1], 1) | {"group": True}, '"group" is true'),
        (row([1], 1) | {"group": None}, '"group" is null'),
        ({"group": 1, "reward": 1}, 'no "tokens"'),
        (row([1], 1, completion_ids=[1]), 'both "tokens" and "completion_ids"'),
        (row([], 1) | {"tokens": "abc"}, '"tokens" is "abc"'),
        (row([1, -2], 1), '"tokens" has -2 at position 1'),
        (row([1, 2.0], 1), '"tokens" has 2.0 at position 1'),  # type: ignore[list-item]
        (row([True], 1), '"tokens" has true at position 0'),
        (row([2**70], 1), '"tokens" has 1180591620717411303424 at position 0'),
        ({"group": 1, "tokens": [1]}, 'no "reward"'),
        (row([1], math.nan), '"reward" is NaN'),
        (row([1], -math.inf), '"reward" is -Infinity'),
        (row([1], 10**400), '"reward" is 1000'),
        (row([1], 1) | {"reward": "1"}, '"reward" is "1"'),
        (row([1], 1) | {"reward": True}, '"reward" is true'),
        (row([1, 2], 1, mask=[1]), '"mask" has 1 entries for 2 tokens'),
        (row([1, 2], 1, mask=[1, 2]), '"mask" has 2 at position 1'),
        (row([1, 2], 1, mask=[1, None]), '"mask" has null at position 1'),
        (row([1, 2], 1, mask=1), '"mask" is 1'),
        (row([1, 2], 1, logprobs=[-1]), '"logprobs" has 1 entries for 2 tokens'),
        (row([1, 2], 1, old_logprobs=[-1, -math.inf]), '"old_logprobs" has -Infinity at position 1'),
        (row([1, 2], 1, ref_logprobs=[None, -1]), '"ref_logprobs" has null at position 0'),
        (row([1], 1, text=["a"]), '"text" is'),
    ],
)
def test_wrong_row_is_an_error_that_names_its_line_and_value(tmp_path: Path, line: Row | str, message: str) -> None:
    file = write(tmp_path, row([1], 1), line)
    with pytest.raises(ValueError) as error:
        read_groups(file)
    assert str(error.value).startswith(f"{file}:2: ")
    assert message in str(error.value)
    assert len(str(error.value)) < 400 + len(str(file))


def test_text_that_is_not_utf_8_is_an_error_that_names_its_line(tmp_path: Path) -> None:
    file = tmp_path / "latin.jsonl"
    file.write_bytes(b'{"group": "\xe9", "tokens": [], "reward": 1}\n')
    with pytest.raises(ValueError, match=r"latin\.jsonl:1: not valid JSON"):
        read_groups(file)


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_blank_file_is_an_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError, match="no trajectories"):
        read_groups(write(tmp_path, content))


def test_missing_file_and_folder_are_errors_that_name_them(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(ValueError, match=f"{path.name}.*give a JSONL file"):
            read_groups(path)


# Process sets


def test_report_of_shared_prefixes() -> None:
    report = inspect_group(recorded(row([1, 2, 3], 0), row([1, 2, 4, 5], 1), row([9], 0)))
    assert report["group"] == "g"
    assert report["mean"] == pytest.approx(1 / 3)
    assert report["std"] == pytest.approx(0.57735, abs=1e-5)
    assert report["advantages"] == pytest.approx([-0.57725, 1.15450, -0.57725], abs=1e-5)
    assert report["sets"] == [
        {"start": 0, "end": 0, "members": [0, 1, 2], "size": 3, "reward": report["mean"], "advantage": 0.0},
        {
            "start": 0,
            "end": 2,
            "members": [0, 1],
            "size": 2,
            "reward": 0.5,
            "advantage": pytest.approx(0.28863, abs=1e-5),
        },
        {
            "start": 2,
            "end": 3,
            "members": [0],
            "size": 1,
            "reward": 0.0,
            "advantage": pytest.approx(-0.57725, abs=1e-5),
        },
        {
            "start": 2,
            "end": 4,
            "members": [1],
            "size": 1,
            "reward": 1.0,
            "advantage": pytest.approx(1.15450, abs=1e-5),
        },
        {
            "start": 0,
            "end": 1,
            "members": [2],
            "size": 1,
            "reward": 0.0,
            "advantage": pytest.approx(-0.57725, abs=1e-5),
        },
    ]
    assert report["path_depth"] == pytest.approx(5 / 3)
    assert report["intermediate_proportion"] == pytest.approx((2 / 3 + 2 / 4 + 0) / 3)
    assert report["shared_proportion"] == pytest.approx((2 / 3 + 2 / 4 + 0) / 3)
    assert report["flat"] is False


def test_children_stand_in_the_order_of_their_first_member() -> None:
    # By token id {1, 2} would come first; by member it is {0, 3}, and its children stand before {1, 2}.
    report = inspect_group(recorded(row([9, 5], 0), row([1, 5], 1), row([1, 6], 1), row([9, 6], 0)))
    assert sets_of(report) == [
        (0, 0, [0, 1, 2, 3]),
        (0, 1, [0, 3]),
        (1, 2, [0]),
        (1, 2, [3]),
        (0, 1, [1, 2]),
        (1, 2, [1]),
        (1, 2, [2]),
    ]


def test_root_spans_what_all_share() -> None:
    report = inspect_group(recorded(row([1, 2, 3], 0), row([1, 2], 1)))
    assert sets_of(report) == [(0, 2, [0, 1]), (2, 3, [0])]
    assert report["path_depth"] == 1.5
    assert report["intermediate_proportion"] == pytest.approx((2 / 3 + 1) / 2)


def test_duplicates_share_everything_and_have_no_intermediate_prefix() -> None:
    report = inspect_group(recorded(row([1, 2], 0), row([1, 2], 1)))
    assert sets_of(report) == [(0, 2, [0, 1])]
    assert report["path_depth"] == 1.0
    assert report["intermediate_proportion"] == 0.0
    assert report["shared_proportion"] == 1.0
    assert report["flat"] is False


def test_empty_answers_are_in_the_root_only() -> None:
    report = inspect_group(recorded(row([], 0), row([4], 1), row([], 0)))
    assert sets_of(report) == [(0, 0, [0, 1, 2]), (0, 1, [1])]
    assert report["path_depth"] == pytest.approx(1 / 3)
    assert report["intermediate_proportion"] == 0.0
    assert report["shared_proportion"] == 0.0
    assert report["flat"] is True


def test_missing_verdict_is_in_no_set_and_keeps_its_row_number() -> None:
    report = inspect_group(recorded(row([1, 2], None), row([1, 3], 1), row([1, 4], 0)))
    assert report["advantages"][0] is None
    assert report["advantages"][1:] == pytest.approx([0.70701, -0.70701], abs=1e-5)
    assert sets_of(report) == [(0, 1, [1, 2]), (1, 2, [1]), (1, 2, [2])]


def test_single_verdict_has_advantage_zero_and_deviation_zero() -> None:
    report = inspect_group(recorded(row([1, 2], 0.7), row([1, 3], None)))
    assert (report["mean"], report["std"], report["advantages"]) == (0.7, 0.0, [0.0, None])
    assert report["sets"] == [{"start": 0, "end": 2, "members": [0], "size": 1, "reward": 0.7, "advantage": 0.0}]
    assert (report["path_depth"], report["shared_proportion"], report["flat"]) == (1.0, 0.0, True)


def test_group_without_verdict_has_an_empty_root_and_no_figures() -> None:
    report = inspect_group(recorded(row([1, 2], None), row([1, 3], None)))
    assert (report["mean"], report["std"], report["advantages"]) == (None, None, [None, None])
    assert report["sets"] == [{"start": 0, "end": 0, "members": [], "size": 0, "reward": None, "advantage": None}]
    assert report["path_depth"] is None
    assert report["intermediate_proportion"] is None
    assert report["shared_proportion"] is None
    assert report["flat"] is True


def test_equal_rewards_give_advantages_of_exactly_zero() -> None:
    report = inspect_group(recorded(*(row([1, n], 0.95) for n in range(7))))
    assert report["std"] == 0.0
    assert report["advantages"] == [0.0] * 7
    assert {found["advantage"] for found in report["sets"]} == {0.0}


def test_a08_trajectory_masked_from_end_to_end_leaves_its_group() -> None:
    rows = [row([1], 1), row([1, 2], 1, mask=[0, 0]), row([3], 0), row([4], 0)]
    report = inspect_group(recorded(*rows))
    assert report["advantages"] == inspect_group(recorded(rows[0], row([1, 2], None), *rows[2:]))["advantages"]
    assert report["advantages"][1] is None


def test_depth_and_proportions_count_sampled_tokens_and_spans_count_all() -> None:
    observation = [50, 51]
    rows = [
        row([1, *observation, 2], 1, mask=[1, 0, 0, 1]),
        row([1, *observation, 3], 0, mask=[1, 0, 0, 1]),
        row([1, 60, 61, 3], 0, mask=[1, 0, 0, 1]),
    ]
    report = inspect_group(recorded(*rows))
    assert sets_of(report) == [(0, 1, [0, 1, 2]), (1, 3, [0, 1]), (3, 4, [0]), (3, 4, [1]), (1, 4, [2])]
    assert report["path_depth"] == 2.0  # the set that spans the observation alone doesn't count
    assert report["intermediate_proportion"] == 0.5
    assert report["shared_proportion"] == 0.5


def test_a_set_that_spans_an_observation_only_is_a_set_but_counts_for_no_proportion() -> None:
    report = inspect_group(recorded(row([50, 1], 0, mask=[0, 1]), row([50, 2], 1, mask=[0, 1])))
    assert sets_of(report)[0] == (0, 1, [0, 1])
    assert report["shared_proportion"] == 0.0
    assert report["flat"] is False


ROWS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 1, 0])), max_size=6),
        st.sampled_from([None, 0.0, 0.25, 1.0, 1.0]),
    ),
    min_size=1,
    max_size=7,
)
Answers = list[tuple[list[tuple[int, int]], float | None]]


def naive_report(answers: Answers) -> dict[str, Any]:
    """The definitions, one trajectory and one position at a time."""
    counted = {
        n: pairs
        for n, (pairs, reward) in enumerate(answers)
        if reward is not None and (not pairs or any(mark for _, mark in pairs))
    }

    def members(n: int, t: int) -> list[int]:
        return [k for k, other in counted.items() if other[: t + 1] == counted[n][: t + 1]]

    spans: dict[tuple[int, ...], list[int]] = {}
    depth, intermediate, shared = [], [], []
    for n, pairs in counted.items():
        for t in range(len(pairs)):
            spans.setdefault(tuple(members(n, t)), []).append(t)
        at = [t for t, (_, mark) in enumerate(pairs) if mark]
        depth.append(len({tuple(members(n, t)) for t in at}))
        others = [t for t in at if any(counted[k] != pairs for k in members(n, t))]
        intermediate.append(len(others) / len(at) if at else 0.0)
        shared.append(sum(len(members(n, t)) > 1 for t in at) / len(at) if at else 0.0)
    everybody = tuple(counted)
    root = spans.pop(everybody, [-1])
    return {
        "root": (0, max(root) + 1, list(everybody)),
        "others": {(min(span), max(span) + 1, who) for who, span in spans.items()},
        "figures": [float(np.mean(x)) if counted else None for x in (depth, intermediate, shared)],
        "flat": not any(len(members(n, t)) > 1 for n, pairs in counted.items() for t in range(len(pairs))),
    }


def report_of(answers: Answers) -> GroupReport:
    return inspect_group(
        recorded(*(row([token for token, _ in p], reward, mask=[mark for _, mark in p]) for p, reward in answers))
    )


@given(ROWS)
def test_report_agrees_with_the_definitions(answers: Answers) -> None:
    expected, report = naive_report(answers), report_of(answers)
    root, *others = sets_of(report)
    assert root == expected["root"]
    assert {(start, end, tuple(who)) for start, end, who in others} == expected["others"]
    assert len(others) == len(expected["others"])
    figures = [report[k] for k in ("path_depth", "intermediate_proportion", "shared_proportion")]  # type: ignore[literal-required]
    assert figures == (expected["figures"] if figures[0] is None else pytest.approx(expected["figures"]))
    assert report["flat"] is expected["flat"]


@given(ROWS)
def test_sets_are_depth_first_and_hold_the_mean_reward_and_advantage(answers: Answers) -> None:
    report = report_of(answers)
    path: list[list[int]] = []
    left: list[list[int]] = []
    children: dict[tuple[int, ...], list[int]] = {}
    for found in report["sets"]:
        members = found["members"]
        assert members == sorted(set(members))
        assert found["size"] == len(members)
        if members:
            assert found["reward"] == pytest.approx(np.mean([answers[n][1] for n in members]))
            mean = np.mean([report["advantages"][n] for n in members])
            assert found["advantage"] == pytest.approx(mean, abs=1e-9)
        while path and not set(members) <= set(path[-1]):
            left.append(path.pop())
        assert not any(set(members) <= set(other) for other in left)
        if path:
            assert len(members) < len(path[-1])
            children.setdefault(tuple(path[-1]), []).append(members[0])
        path.append(members)
    assert all(firsts == sorted(firsts) for firsts in children.values())


@given(ROWS)
def test_statistics_are_the_same_with_and_without_the_prompt(answers: Answers) -> None:
    tokens = [[token for token, _ in pairs] for pairs, _ in answers]
    marks = [[bool(mark) for _, mark in pairs] for pairs, _ in answers]
    without = tree_statistics(build_tree(tokens, marks))
    with_prompt = tree_statistics(build_tree([[7, 8, *row] for row in tokens], [[False, False, *row] for row in marks]))
    assert with_prompt == without


def test_long_answers_are_inspected() -> None:
    rng = np.random.default_rng(1)
    stem = rng.integers(0, 1000, 30_000).tolist()
    rows = [row([*stem[: 400 * n], 1000 + n, *stem[400 * n + 1 :]], n % 2) for n in range(64)]
    report = inspect_group(recorded(*rows))
    # Row n leaves the stem at 400 n: an empty root, 62 inner sets along the stem, and a leaf for every row.
    shared = np.array([min(n, 62) for n in range(64)])
    assert len(report["sets"]) == 127
    assert report["path_depth"] == pytest.approx((shared + 1).mean())
    assert report["intermediate_proportion"] == pytest.approx(400 * shared.mean() / 30_000)
    assert report["shared_proportion"] == pytest.approx(400 * shared.mean() / 30_000)


# The loss, token by token


def total_of(report: LossReport) -> float:
    return math.fsum(sum(t["terms"]) for t in report["trajectories"] if t is not None)


def test_g01_loss_is_explained_token_by_token() -> None:
    group = recorded(row([1, 2, 3], 0), row([1, 2, 4, 5], 1), row([9], 0))
    report = explain_groups([group], resolve("lambda_grpo", {}))
    assert report["loss"] == pytest.approx(-0.21647, abs=1e-5)
    assert report["denominator"] == 8.0
    first = report["trajectories"][0]
    assert first is not None
    assert first["sizes"] == [2, 2, 1]
    assert first["weights"] == [0.5, 0.5, 1.0]
    assert first["ratios"] == [1.0, 1.0, 1.0]
    assert first["kl"] == [None, None, None]
    assert first["advantages"] == pytest.approx([-0.57725] * 3, abs=1e-5)
    assert first["terms"] == pytest.approx([0.28863, 0.28863, 0.57725], abs=1e-5)
    assert first["grad"] == pytest.approx([0.28863 / 8, 0.28863 / 8, 0.57725 / 8], abs=1e-5)


def test_sequence_terms_hold_one_over_length() -> None:
    report = explain_groups([recorded(row([1, 2], 0), row([3], 1))], resolve("grpo", {}))
    first = report["trajectories"][0]
    assert first is not None
    assert first["weights"] == [1.0, 1.0]
    assert first["terms"] == pytest.approx([0.70701 / 2] * 2, abs=1e-5)
    assert report["denominator"] == 2.0
    assert report["loss"] == 0.0


def test_clipping_and_kl_are_explained() -> None:
    ratio, advantage, beta = math.exp(0.5), 0.70701, 0.04
    group = recorded(
        row([1], 1, logprobs=[-0.5], old_logprobs=[-1.0], ref_logprobs=[-1.5]),
        row([2], 0, logprobs=[-0.5], old_logprobs=[-1.0], ref_logprobs=[-0.5]),
    )
    report = explain_groups([group], resolve("dapo", {"kl_coef": beta}))
    clipped, moved = report["trajectories"]
    assert clipped is not None
    assert moved is not None
    k3 = math.exp(-1) + 1 - 1
    assert clipped["ratios"] == pytest.approx([ratio])
    assert clipped["kl"] == pytest.approx([k3])
    assert clipped["terms"] == pytest.approx([-(1.28 * advantage - beta * k3)], abs=1e-5)
    assert clipped["grad"] == pytest.approx([beta * (1 - math.exp(-1)) / 2], abs=1e-5)
    assert moved["kl"] == [0.0]
    assert moved["terms"] == pytest.approx([ratio * advantage], abs=1e-4)
    assert moved["grad"] == pytest.approx([ratio * advantage / 2], abs=1e-4)


def test_missing_old_logprobs_mean_the_policy_itself() -> None:
    plain = explain_groups([recorded(row([1], 1), row([2], 0))], resolve("grpo", {}))
    recorded_now = recorded(row([1], 1, logprobs=[-3.0]), row([2], 0, logprobs=[-0.1]))
    assert explain_groups([recorded_now], resolve("grpo", {})) == plain
    assert all(t is not None and t["grad"][0] != 0.0 for t in plain["trajectories"])


def test_reference_is_shown_even_where_it_is_not_in_the_loss() -> None:
    group = recorded(row([1], 1, logprobs=[-1.0], ref_logprobs=[-0.5]), row([2], 0))
    first, second = explain_groups([group], resolve("grpo", {}))["trajectories"]
    assert first is not None
    assert second is not None
    assert first["kl"] == pytest.approx([0.14872], abs=1e-5)
    assert second["kl"] == [None]
    assert first["terms"] == pytest.approx([-0.70701], abs=1e-5)


def test_trajectories_stand_in_file_order_and_none_without_verdict(tmp_path: Path) -> None:
    rows = [
        row([1, 2], 1),
        row([5], 0) | {"group": "h"},
        row([1, 3], None),
        row([6, 7, 8], 1) | {"group": "h"},
        row([1, 4], 0),
    ]
    report = explain_groups(read_groups(write(tmp_path, *rows)), resolve("dapo", {}))
    lengths = [None if t is None else len(t["terms"]) for t in report["trajectories"]]
    assert lengths == [2, 1, None, 3, 2]
    signs = [None if t is None else np.sign(t["advantages"][0]) for t in report["trajectories"]]
    assert signs == [1, -1, None, 1, -1]
    assert report["denominator"] == 8.0


def test_unsampled_tokens_contribute_nothing_and_keep_their_place() -> None:
    group = recorded(row([1, 50, 2], 1, mask=[1, 0, 1], logprobs=[-1, 9, -1]), row([3], 0, logprobs=[-1]))
    report = explain_groups([group], resolve("lambda_grpo", {}))
    first = report["trajectories"][0]
    assert first is not None
    assert report["denominator"] == 3.0
    assert (first["terms"][1], first["grad"][1]) == (0.0, 0.0)
    for key in ("advantages", "sizes", "weights", "ratios", "kl"):
        assert len(first[key]) == 3
        assert first[key][1] is None


@pytest.mark.parametrize("preset", ["grpo", "dapo", "lambda_grpo"])
def test_denominator_of_zero_gives_loss_zero(preset: str) -> None:
    nothing = explain_groups([recorded(row([1], None), row([2], None))], resolve(preset, {}))
    assert nothing == {"loss": 0.0, "denominator": 0.0, "trajectories": [None, None]}
    empty = explain_groups([recorded(row([], 1), row([], 0))], resolve(preset, {}))
    assert empty["loss"] == 0.0
    assert all(t is not None and t["grad"] == [] for t in empty["trajectories"])


def test_missing_reference_is_an_error_that_names_the_line() -> None:
    objective = resolve("grpo", {"kl_coef": 0.04})
    for incomplete in ({}, {"logprobs": [-1.0]}, {"ref_logprobs": [-1.0]}):
        group = recorded(row([1], 1, logprobs=[-1.0], ref_logprobs=[-1.0]), row([2], 0, **incomplete))
        with pytest.raises(ValueError, match=r"rows:2: objective\.kl_coef = 0\.04 needs .*set kl_coef to 0"):
            explain_groups([group], objective)
    unscored = recorded(row([1], None), row([2], 0, logprobs=[-1.0], ref_logprobs=[-1.0]), row([], 1))
    assert explain_groups([unscored], objective)["denominator"] == 2.0


def test_old_logprobs_alone_are_an_error() -> None:
    with pytest.raises(ValueError, match='rows:1: "old_logprobs" without "logprobs"'):
        explain_groups([recorded(row([1], 1, old_logprobs=[-1.0]))], resolve("grpo", {}))


# Their gradient is not the derivative of their value: a weight in them is held fixed.
DETACHED = ("gspo_token", "cispo", "dppo", "dppo_kl", "vespo")


@pytest.mark.parametrize("kl_coef", [0.0, 0.04])
@pytest.mark.parametrize("preset", PRESETS)
def test_terms_sum_to_loss_times_denominator_and_grad_is_its_derivative(preset: str, kl_coef: float) -> None:
    objective = resolve(preset, {"kl_coef": kl_coef}, max_new_tokens=9)
    columns = ("logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "entropies")

    def rows(nudge: float = 0.0) -> list[RecordedGroup]:
        rng = np.random.default_rng(3)
        answers = [[1, 2, 3], [1, 2, 4, 5], [1, 2, 3], [], [1], [9, 9]]
        made = [
            row(
                a,
                r,
                **{k: rng.normal(-1, 0.3, len(a)).tolist() for k in columns},
                scores={"right": r},
                steps=((0, 0.3), (len(a) - 1, 0.1 * r)) if r and len(a) > 1 else (),
            )
            for a, r in zip(answers, [0, 1, 0.5, 1, None, 0], strict=True)
        ]
        made[1]["logprobs"][2] += nudge
        return [recorded(*made), recorded(*made[:3], id="h", first=len(made))]

    report = explain_groups(rows(), objective)
    assert total_of(report) == pytest.approx(report["loss"] * report["denominator"], abs=1e-12)
    if preset in DETACHED:
        return
    step = 1e-6
    slope = (explain_groups(rows(step), objective)["loss"] - explain_groups(rows(-step), objective)["loss"]) / (
        2 * step
    )
    copies = [report["trajectories"][n] for n in (1, 7)]  # the answer is in both groups
    assert sum(t["grad"][2] for t in copies if t is not None) == pytest.approx(slope, abs=1e-8)


# What is printed


def test_json_on_stdout_is_nothing_but_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(tmp_path, row([1, 2], 1), row([1, 3], 0), row([5], None) | {"group": 2})
    inspect_command(file, as_json=True)
    reports = json.loads(capsys.readouterr().out)
    assert [report["group"] for report in reports] == ["g", 2]
    explain_command(file, resolve("grpo", {}), as_json=True)
    report = json.loads(capsys.readouterr().out)
    assert set(report) == {"loss", "denominator", "trajectories"}
    assert report["trajectories"][2] is None


def test_tables_show_the_tree_and_the_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write(
        tmp_path,
        row([1, 2], 1, text="first answer"),
        row([1, 3], 0, text="second answer"),
        row([1], 0, text="third answer"),
        row([8], None),
        row([], 0) | {"group": "other"},
    )
    inspect_command(file, as_json=False)
    shown = capsys.readouterr().out
    for part in (
        "├ 0  first answer",
        "└ 1  second answer",
        "· 2 ends  third answer",
        "no verdict: 3",
        "+1.155",
    ):
        assert part in shown
    explain_command(file, resolve("lambda_grpo", {}), as_json=False)
    shown = capsys.readouterr().out
    for part in ("denominator 5", "answer 3, group g: no verdict", "answer 4, group other: empty", "0.3333"):
        assert part in shown


def test_hostile_text_is_inert(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    hostile = "\x1b[2J\x07\r\n[bold red]\u202e\u2028 ok \ud800" + "x" * 10_000
    file = write(tmp_path, row([1], 1, text=hostile) | {"group": hostile}, row([2], 0, text="") | {"group": hostile})
    for show in (
        lambda: inspect_command(file, as_json=False),
        lambda: explain_command(file, resolve("grpo", {}), as_json=False),
    ):
        show()
        shown = capsys.readouterr().out
        assert all(c.isprintable() or c == "\n" for c in shown)
        assert "\\x1b[2J\\x07\\r\\n[bold red]" in shown
        assert len(shown) < 4000


def test_long_text_loses_its_middle() -> None:
    assert inert("short") == "short"
    assert inert("a" * 50 + "b" * 50, limit=10) == "aaaaa … bbbbb"


def test_deep_trees_fit_the_window() -> None:
    deep = recorded(*(row([1] * n, n % 3) for n in range(40)))
    for width in (50, 80):
        output = io.StringIO()
        Console(width=width, file=output).print(render_inspect(deep, inspect_group(deep)))
        lines = output.getvalue().splitlines()
        assert max(map(len, lines)) <= width
    assert sum("ends" in line for line in lines) == 39


def test_long_answers_are_cut_in_the_table_of_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(range(500), n, logprobs=(-np.arange(500.0) - 1).tolist(), old_logprobs=[-1.0] * 500) for n in (0, 1)]
    explain_command(write(tmp_path, *rows), resolve("dapo", {}), as_json=False)
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) < 120
    assert "--json" in shown


@pytest.mark.parametrize("preset", PRESETS)
def test_the_command_explains_every_preset(preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    columns = ("logprobs", "old_logprobs", "ref_logprobs", "sampler_logprobs", "entropies")

    def full(answer: list[int], reward: float) -> Row:
        numbers = {
            name: [0.5 if name == "entropies" else -0.1 * n - 1 for n, _ in enumerate(answer)] for name in columns
        }
        return row(answer, reward, scores={"right": reward}, steps=[[len(answer) - 1, reward]], **numbers)

    file = write(tmp_path, full([1, 2, 3], 1.0), full([1, 2, 4, 5], 0.0), full([6], 0.5))
    constant = PRESETS[preset].options.get("aggregation") == "constant"
    limit = ["--objective.max_completion_tokens", "9"] if constant else []
    assert main(["explain", str(file), "--preset", preset, "--json", *limit]) == 0
    report = json.loads(capsys.readouterr().out)
    assert all(any(slope != 0 for slope in t["grad"]) for t in report["trajectories"][:2])
    assert main(["explain", str(file), "--preset", preset, *limit]) == 0
    assert f"objective: advantage {PRESETS[preset].options.get('advantage', 'group_mean')}" in capsys.readouterr().out
