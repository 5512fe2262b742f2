"""The synthetic tree: its rewards, its credit against a softmax that is a table, and its tables against arithmetic."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from treewise.credit import credit
from treewise.reproduce.engine import run
from treewise.reproduce.options import SyntheticTree
from treewise.reproduce.synthetic_report import PAPER, report
from treewise.reproduce.synthetic_tree import (
    DEPTH,
    cells,
    learn,
    make_optimizer,
    make_policy,
    measure,
    objectives,
    probability,
    reward_of,
    target_of,
    trajectory_of,
)
from treewise.types import Completion, Group, Problem

PATHS = list(itertools.product((0, 1), repeat=DEPTH))
TARGET = (0, 0, 1, 0)  # LLRL, the example of the authors' blog
# Sixteen draws of which four are the target, with prefixes of many sizes, some of one member.
DRAWN = ["LLRL"] * 4 + ["LLRR", "LLRR", "LLLL", "LLLR", "LRRR", "LRRR", "RLLL", "RLLL", "RLRL", "RRRR", "RRRR", "RRLL"]


def drawn_group(rows: Sequence[str], *, shared: int = 1, trap: float = -1.0) -> Group:
    paths = [["LR".index(letter) for letter in row] for row in rows]
    answers = [
        trajectory_of(
            Completion(np.array(path), np.zeros(DEPTH), "length", 0),
            reward_of(path, TARGET, shared=shared, trap=trap),
        )
        for path in paths
    ]
    return Group(Problem("tree", "<bos>"), tuple(answers))


def credit_by_prefix(method: str, rows: Sequence[str], rewards: Sequence[float]) -> list[list[float]]:
    """w · a of every token, counted by string prefixes: R(prefix) is the mean reward of the rows that begin with it."""
    values = list(rewards)
    mean = sum(values) / len(values)
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))

    def members(prefix: str) -> list[float]:
        return [value for row, value in zip(rows, values, strict=True) if row.startswith(prefix)]

    found = []
    for row, own in zip(rows, values, strict=True):
        tokens = []
        for depth in range(1, DEPTH + 1):
            here, before = members(row[:depth]), members(row[: depth - 1])
            size, value, parent = len(here), sum(here) / len(here), sum(before) / len(before)
            others = (sum(values) - own) / (len(values) - 1)
            near = (sum(before) - own + others) / len(before)  # κ = 1: the mean of all others counts like one more
            tokens.append(
                {
                    "grpo": own - mean,
                    "half": (own - mean) / math.sqrt(size),
                    "lambda_grpo": (own - mean) / size,
                    "parent": value - parent,
                    "treerl": (value - mean + value - parent) / math.sqrt(size),
                    "tempo": own - mean + value - parent,
                    "tree_rloo": own - near,
                }[method]
                / (std + 1e-4)
            )
        found.append(tokens)
    return found


def small(**changes: Any) -> SyntheticTree:
    given = {"seeds": 2, "methods": ("grpo", "lambda_grpo"), "rates": ("adamw:0.01",), "steps": 10, "device": "cpu"}
    return SyntheticTree.model_validate(given | {"shared": (1,), "traps": (-1.0,), "group_size": 8} | changes)


@pytest.mark.parametrize(
    ("shared", "trap", "expected"),
    [
        (1, -1.0, [-1, -1, 1, -1, -1, -1, -1, -1, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7]),
        (2, -1.5, [-1.5, -1.5, 1, -1.5, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7]),
    ],
)
def test_every_path_has_the_reward_of_the_paper(shared: int, trap: float, expected: list[float]) -> None:
    assert [reward_of(path, TARGET, shared=shared, trap=trap) for path in PATHS] == expected


def test_targets_differ_between_seeds_and_go_both_ways() -> None:
    targets = [target_of(seed) for seed in range(20)]
    assert len(set(targets)) > 8
    assert all({target[depth] for target in targets} == {0, 1} for depth in range(DEPTH))


@pytest.mark.parametrize("method", objectives())
def test_credit_of_every_method_is_that_of_counted_prefixes(method: str) -> None:
    group = drawn_group(DRAWN)
    (credited,) = credit([group], objectives()[method])
    rewards = [float(answer.reward or 0.0) for answer in group.trajectories]
    found = (credited.coefficients * credited.advantages).reshape(len(DRAWN), DEPTH)
    assert found == pytest.approx(np.array(credit_by_prefix(method, DRAWN, rewards)), abs=1e-12)


@pytest.mark.parametrize("method", objectives())
def test_a_step_is_that_of_a_softmax_in_a_table_carried_through_the_model(method: str) -> None:
    """∂loss/∂logits of a prefix is −1/D · Σ w·a · (chosen − π) over the answers that pass through it."""
    policy, plain = make_policy("tiny", 3), make_policy("tiny", 3)
    plain.use_rows()  # transformers' own attention
    policy.model.double()
    plain.model.double()
    before = {name: p.detach().clone() for name, p in policy.model.named_parameters()}
    group = drawn_group(DRAWN)
    rewards = [float(answer.reward or 0.0) for answer in group.trajectories]

    surrogate = torch.zeros((), dtype=torch.float64)
    logits: dict[str, torch.Tensor] = {}
    table: dict[str, np.ndarray] = {}
    for row, worth in zip(DRAWN, credit_by_prefix(method, DRAWN, rewards), strict=True):
        for depth, weight in enumerate(worth):
            prefix = row[:depth]
            if prefix not in logits:
                ids = torch.tensor([[2, *("LR".index(letter) for letter in prefix)]])
                logits[prefix] = plain.model(input_ids=ids).logits[0, -1, :2]
                table[prefix] = np.zeros(2)
            odds = np.exp(logits[prefix].detach().numpy())
            chosen = np.eye(2)["LR".index(row[depth])]
            table[prefix] -= weight * (chosen - odds / odds.sum()) / (DEPTH * len(DRAWN))
    for prefix, gradient in table.items():
        surrogate = surrogate + (logits[prefix] * torch.tensor(gradient)).sum()
    surrogate.backward()
    expected = {name: p.grad for name, p in plain.model.named_parameters() if p.grad is not None}

    learn(group, policy, make_optimizer("sgd:0.5", list(policy.model.parameters())), objectives()[method])
    for name, parameter in policy.model.named_parameters():
        moved = (before[name] - parameter.detach()) / 0.5
        assert torch.allclose(moved, expected[name], rtol=1e-6, atol=1e-10), name


def test_moments_do_not_move_the_weights_when_all_paths_are_worth_the_same() -> None:
    policy = make_policy("tiny", 0)
    optimizer = make_optimizer("adamw:0.01", list(policy.model.parameters()))
    learn(drawn_group(DRAWN), policy, optimizer, objectives()["grpo"])
    before = probability(TARGET, policy)
    learn(drawn_group(["RRRR", "RLLL", "RLRL"]), policy, optimizer, objectives()["grpo"])
    assert probability(TARGET, policy) == before
    learn(drawn_group(DRAWN), policy, optimizer, objectives()["grpo"])
    assert probability(TARGET, policy) != before


def test_probabilities_of_all_paths_sum_to_one_and_follow_the_reward() -> None:
    policy = make_policy("tiny", 1)
    assert sum(probability(path, policy) for path in PATHS) == pytest.approx(1.0, abs=1e-6)
    before = probability(TARGET, policy)
    learn(
        drawn_group(DRAWN), policy, make_optimizer("sgd:0.001", list(policy.model.parameters())), objectives()["grpo"]
    )
    assert probability(TARGET, policy) > before


def test_a_run_measures_every_cell_as_measure_does_alone(tmp_path: Path) -> None:
    options = small(seeds=1, steps=30)
    found = run("synthetic-tree", options, folder=tmp_path / "run", jobs=1, command="treewise reproduce synthetic-tree")
    with (tmp_path / "run" / "results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["seed"], row["method"]) for row in rows] == [("0", "grpo"), ("0", "lambda_grpo")]
    cell = cells(options)[1]
    (alone,) = measure(options, cell, tmp_path)
    assert {name: str(value) for name, value in alone.items()} == rows[1]
    blocks = [float(rows[1]["to_25"]), float(rows[1]["to_30"])]
    assert float(rows[1]["share"]) == pytest.approx((25 * blocks[0] + 5 * blocks[1]) / 30)
    assert "paper: λ-GRPO" in found.tables[0].header
    assert (tmp_path / "run" / "figure.png").stat().st_size < 200_000


def test_a_target_that_is_learned_is_counted() -> None:
    """With n = 3 only one path is a trap, and the target is learned within the steps."""
    options = small(steps=75, group_size=16)
    cell = {"seed": 1, "rate": "adamw:0.001", "shared": 3, "trap": -0.5, "method": "lambda_grpo"}
    (row,) = measure(options, cell, Path())
    assert row["to_25"] < row["to_50"]
    assert row["probability"] > 0.9
    assert row["share"] == pytest.approx((row["to_50"] + row["to_75"]) / 2)
    trapped = 1 - row["share"] - row["safe"]
    assert row["reward"] == pytest.approx(row["share"] + 0.7 * row["safe"] - 0.5 * trapped)


def test_every_seed_starts_from_a_model_and_a_target_of_its_own() -> None:
    for seed in (0, 5):
        cell = {"seed": seed, "rate": "sgd:1e-20", "shared": 1, "trap": -1.0, "method": "grpo"}
        (row,) = measure(small(steps=1), cell, Path())
        assert row["probability"] == probability(target_of(seed), make_policy("tiny", seed))


def test_cells_are_unique_and_paired_by_seed() -> None:
    found = cells(SyntheticTree())
    options = SyntheticTree()
    assert len(found) == options.seeds * len(options.rates) * 2 * 3 * len(options.methods)
    assert len({tuple(cell.values()) for cell in found}) == len(found)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("grpo", "ppo")}, "there is no 'ppo'; there are grpo, half, lambda_grpo"),
        ({"rates": ("adam:0.1",)}, "'adam:0.1' must be sgd or adamw"),
        ({"rates": ("sgd:fast",)}, "'sgd:fast' must be sgd or adamw and a learning rate above 0"),
        ({"rates": ("sgd:0",)}, "learning rate above 0"),
        ({"rates": ("sgd:0.1", "adamw:0.1", "sgd:1e-1")}, "sgd:0.1, adamw:0.1, sgd:1e-1 holds one of them twice"),
        ({"shared": (4,)}, "4 leaves no trap"),
        ({"traps": (0.5,)}, "0.5 is no trap"),
    ],
)
def test_what_can_not_be_measured_is_refused_before_anything_is(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        cells(small(**changes))


def hand_made(options: SyntheticTree, shares: Mapping[tuple[str, str], Sequence[float]]) -> list[dict[str, Any]]:
    """A row per cell: the share by (rate, method) and seed, what is left over at the safe paths."""
    rows = []
    for cell in cells(options):
        share = float(shares[cell["rate"], cell["method"]][cell["seed"]])
        ends = {"share": share, "safe": 1 - share, "reward": share + 0.7 * (1 - share), "probability": share}
        rows.append({**cell, "target": "LLRL", **ends, "to_25": share / 2, "to_50": share})
    return rows


def test_the_tables_are_the_means_and_t_intervals_of_their_rows() -> None:
    options = small(seeds=6, rates=("sgd:0.1", "sgd:1"), steps=50)
    shares = {
        ("sgd:0.1", "grpo"): (0.0, 0.0, 0.0, 1.0, 1.0, 1.0),
        ("sgd:0.1", "lambda_grpo"): (1.0, 0.0, 0.0, 1.0, 1.0, 0.8),
        ("sgd:1", "grpo"): (0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        ("sgd:1", "lambda_grpo"): (0.2, 0.4, 0.2, 0.4, 0.2, 0.4),
    }
    slow, fast, seeds, rates = report(options, hand_made(options, shares)).tables
    papers = ("paper: GRPO", "paper: λ-GRPO")
    assert slow.header == ("n", "r_neg", *papers, "GRPO", "λ-GRPO", "λ-GRPO − GRPO", "p")
    # t(0.975, 5) = 2.57058, over √6 1.04944; standard deviations .54772, .49666 and of the differences .43205.
    # .5 ± .575 and .633 ± .521 are cut at what a share can be. Signs: ±1 ± .2 is never closer to 0 than 1 − .2.
    found = ("0.50 [0.00, 1.00]", "0.63 [0.11, 1.00]", "+0.13 [−0.32, +0.59]", "1")
    assert slow.rows == [("1", "−1", "0.0000", "0.7535", *found)]
    # .3 ± 1.04944 · .10954; all six above 0: p = 2/64.
    constant = ("0.00 (all equal)", "0.30 [0.19, 0.41]", "+0.30 [+0.19, +0.41]", "0.031")
    assert fast.rows[0][4:] == constant
    assert seeds.rows[0] == ("sgd:0.1", "1", "−1", "3 · 3 · 0 (0.85)", "4 · 2 · 0 (0.89)")
    assert rates.rows == [("sgd:0.1", *found), ("sgd:1", *constant)]
    assert "6 seeds can't give less than 0.031" in rates.note
    assert (slow.note, "cut where a share ends" in fast.note) == ("", True)


def test_a_seed_counts_once_however_many_trees_and_few_seeds_are_shown_one_by_one() -> None:
    options = small(seeds=3, rates=("sgd:0.1", "sgd:1"), shared=(1, 2), methods=("tempo",), steps=50)
    shares = {(rate, "tempo"): (0.0, 0.5, 1.0) for rate in options.rates}
    trees, *_, rates = report(options, hand_made(options, shares)).tables
    assert trees.rows[-1] == ("all", "", "0.0244", "0.5574", "0.50 (0.00, 0.50, 1.00)")
    assert rates.rows[0] == ("sgd:0.1", "0.50 (0.00, 0.50, 1.00)")
    assert rates.header == ("rate", "TEMPO")
    assert rates.note.startswith("Mean (single seeds) over 3 seeds")


def test_the_papers_table_stands_as_it_was_printed() -> None:
    printed = {1: (".3995/.5663", ".0000/.7535", ".2000/.4463"), 2: (".1980/.4292", ".0488/.3612", ".0000/.3820")}
    for shared, entries in printed.items():
        for trap, entry in zip((-0.5, -1.0, -1.5), entries, strict=True):
            assert "/".join(f"{share:.4f}"[1:] for share in PAPER[shared, trap]) == entry


@pytest.mark.parametrize(
    ("rates", "panels"), [(("sgd:0.1",), 2), (("sgd:0.1", "sgd:1"), 2), (("sgd:0.1", "sgd:1", "adamw:1", "adamw:2"), 3)]
)
def test_the_picture_shows_a_sweep_for_each_optimizer_or_else_the_course(rates: tuple[str, ...], panels: int) -> None:
    pytest.importorskip("matplotlib")
    options = small(seeds=3, rates=rates, steps=50)
    figure = report(options, hand_made(options, {(r, m): (0, 0.5, 1) for r in rates for m in options.methods})).figure
    assert figure is not None
    assert len(figure.axes) == panels
    assert figure.axes[1].get_xlabel() == ("step" if len(rates) == 1 else "learning rate of SGD")
    lines = [line for line in figure.axes[1].get_lines() if len(line.get_xdata()) > 1]
    assert [line.get_ydata().tolist() for line in lines] == [[0.25, 0.5] if len(rates) == 1 else [0.5, 0.5]] * 2
    if len(rates) == 1:
        assert [line.get_xdata().tolist() for line in lines] == [[13.0, 38.0]] * 2  # of steps 1–25 and 26–50
        assert figure.axes[1].get_xlim()[0] == 0


def test_no_bar_leaves_the_picture() -> None:
    pytest.importorskip("matplotlib")
    options = small(seeds=6, rates=("sgd:0.1", "sgd:1"), steps=50)
    shares = {(rate, method): (0, 0, 0, 1, 1, 1) for rate in options.rates for method in options.methods}
    figure = report(options, hand_made(options, shares)).figure
    bars = [path for axes in figure.axes for bar in axes.collections for path in bar.get_paths()]
    assert len(bars) == 2 + 4
    assert all(path.vertices[:, 1].tolist() == [0.0, 1.0] for path in bars)
