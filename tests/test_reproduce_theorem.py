"""Theorem 1 as an experiment: it holds to rounding, it ends where it should, and its loss is that of the oracle."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oracle
from oracle import Row
from treewise.axes.advantage import GroupMean, ProcessAdvantage
from treewise.axes.conflicts import conflicts
from treewise.axes.trust_region import Clip
from treewise.plot.theorem import Line, draw_theorem
from treewise.policy import Policy
from treewise.reproduce import theorem
from treewise.reproduce.engine import run
from treewise.reproduce.options import Theorem
from treewise.reproduce.random_groups import LONGEST, PROMPT, policies, random_batch
from treewise.reproduce.theorem import SETTINGS, step, worked_example
from treewise.types import Group

ROUNDING, VISIBLE = 1e-10, 1e-4
BY_NAME = {setting.name: setting for setting in SETTINGS}
HOLDS = [setting.name for setting in SETTINGS if setting.without is None]
ENDS = [setting.name for setting in SETTINGS if setting.without is not None]
MOVED = [setting.name for setting in SETTINGS if setting.moved]
GSPO_ON_POLICY = "(d) GSPO, ρ = 1, sequence mean, equal lengths"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two batches, measured by the command's own engine."""
    found = tmp_path_factory.mktemp("theorem")
    run("theorem", Theorem(seeds=2, device="cpu"), folder=found, command="treewise reproduce theorem")
    return found


@pytest.fixture(scope="module")
def rows(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The rows of every setting."""
    found = defaultdict(list)
    for row in json.loads((folder / "results.json").read_text())["rows"]:
        found[row["setting"]].append(row)
    return found


@pytest.fixture(scope="module")
def small() -> tuple[Policy, Policy]:
    """π and π_old of seed 3, each trajectory in a row of its own, so that the oracle can use the models, too."""
    policy, old = policies(3, size="tiny", device="cpu")
    policy.use_rows()
    old.use_rows()
    return policy, old


def answers(group: Group) -> list[list[int]]:
    return [trajectory.tokens[trajectory.sampled].tolist() for trajectory in group.trajectories]


def test_the_settings_cover_every_exponent_on_and_off_policy_and_all_four_causes() -> None:
    holds = {(BY_NAME[name].options.get("weight_exponent"), BY_NAME[name].moved) for name in HOLDS}
    assert holds >= {(p, moved) for p in (0.0, 0.5, 1.0, 2.0) for moved in (False, True)}
    assert {name[:3] for name in ENDS} == {"(a)", "(b)", "(c)", "(d)"}
    assert len(BY_NAME) == len(SETTINGS)


@pytest.mark.parametrize("name", HOLDS)
def test_loss_and_gradients_agree_to_rounding_where_the_theorem_holds(rows: Any, name: str) -> None:
    assert [row["seed"] for row in rows[name]] == [0, 1]
    for row in rows[name]:
        assert row["loss_relative"] <= ROUNDING
        assert row["gradient_relative"] <= ROUNDING
        assert row["gradient_relative_worst"] <= ROUNDING
        assert row["clipped"] == 0
        assert row["largest_quotient"] == pytest.approx(1.0, abs=1e-12)
        assert row["loss_outcome"] != 0


@pytest.mark.parametrize("name", ENDS)
def test_the_gradient_is_another_where_it_ends_and_the_same_without_the_cause(rows: Any, name: str) -> None:
    setting = BY_NAME[name]
    assert setting.without in HOLDS
    for row, without in zip(rows[name], rows[setting.without], strict=True):
        assert row["gradient_relative"] >= VISIBLE
        assert without["gradient_relative"] <= ROUNDING
        if name == GSPO_ON_POLICY:
            assert row["loss_relative"] <= ROUNDING
        else:
            assert row["loss_relative"] >= VISIBLE / 10


@pytest.mark.parametrize("name", ENDS)
def test_taking_the_cause_away_changes_one_thing(name: str) -> None:
    with_cause = BY_NAME[name]
    without = BY_NAME[with_cause.without or ""]
    parts = [f.name for f in fields(theorem.Setting) if f.name not in ("name", "options", "without", "why")]
    changed = [part for part in parts if getattr(with_cause, part) != getattr(without, part)]
    here, there = dict(with_cause.options), dict(without.options)
    there.pop("weight_exponent", None)  # written out as its default, 0
    changed += [key for key in here.keys() | there.keys() if here.get(key) != there.get(key)]
    assert len(changed) == 1


def test_every_cause_is_there_and_has_its_size(rows: Any) -> None:
    lengths, clip, *_ = ENDS
    for row in rows[lengths]:
        assert 1 < row["largest_quotient"] <= row["longest"] / row["shortest"]
    assert all(row["clipped"] > 0.05 and row["largest_quotient"] == 1 for row in rows[clip])
    weights, ratio = (rows[name] for name in ENDS if name.startswith("(c)"))
    assert all(1.02 < row["largest_quotient"] < 1.3 for row in (*weights, *ratio))
    # Two experiments, not one: the weight differs beside a ratio that doesn't, or the ratio itself does.
    assert [row["gradient_relative"] for row in weights] != pytest.approx([row["gradient_relative"] for row in ratio])
    by_answer = [row for name in ENDS if name.startswith("(d)") and BY_NAME[name].moved for row in rows[name]]
    assert all(row["largest_quotient"] > 1.02 and row["clipped"] == 0 for row in by_answer)
    assert all(row["largest_quotient"] == 1 for row in rows[GSPO_ON_POLICY])


def test_off_policy_ratios_differ_from_one_and_on_policy_ones_do_not(rows: Any) -> None:
    for name, found in rows.items():
        on_policy = not BY_NAME[name].moved and "ratio_base" not in BY_NAME[name].options
        for row in found:
            assert (row["least_ratio"] == row["largest_ratio"] == 1) == on_policy
    for row in (row for name in MOVED for row in rows[name]):
        assert row["least_ratio"] < 1 < row["largest_ratio"]
        assert row["largest_ratio"] / row["least_ratio"] > 1.1


def test_batches_hold_copies_prefixes_unequal_lengths_and_a_group_without_spread() -> None:
    copies = prefixes = ragged = groups = 0
    for seed in range(20):
        batch = random_batch(seed)
        for group in batch:
            texts = ["".join(map(str, answer)) for answer in answers(group)]
            groups += 1
            copies += len(set(texts)) < len(texts)
            prefixes += any(b.startswith(a) and b != a for a in texts for b in texts)
            ragged += len({len(text) for text in texts}) > 1
            assert all(1 <= len(text) <= LONGEST for text in texts)
        rewards = [np.ptp([t.reward for t in group.trajectories if t.reward is not None]) for group in batch]
        assert rewards[-1] == 0
        assert min(rewards[:-1]) > 0.1
        assert len({int(group.trajectories[0].tokens[0]) for group in batch}) == len(batch)
        assert [answers(group) for group in random_batch(seed)] == [answers(group) for group in batch]
    assert (groups, ragged) == (80, 80)
    assert min(copies, prefixes) >= 60


def test_filled_up_answers_are_equally_long_and_their_copies_stay_copies() -> None:
    for ragged, even in zip(random_batch(0), random_batch(0, even=True), strict=True):
        before, after = answers(ragged), answers(even)
        assert {len(answer) for answer in after} == {LONGEST}
        for i, j in np.ndindex(len(before), len(before)):
            assert after[i][: len(before[i])] == before[i]
            if before[i] == before[j]:
                assert after[i] == after[j]


def test_the_report_counts_what_the_batches_hold(folder: Path, rows: Any) -> None:
    one = rows["p = 0, ρ = 1"]
    copies, prefixes = sum(row["with_copies"] for row in one), sum(row["with_prefixes"] for row in one)
    assert min(copies, prefixes) > 0
    text = (folder / "results.md").read_text()
    assert f"8 groups of 8 random answers of 1 to 12 tokens: {copies} hold equal answers, {prefixes} an answer" in text


def test_the_report_has_a_row_for_every_setting_and_what_the_rows_say(folder: Path, rows: Any) -> None:
    holds, ends, example = json.loads((folder / "results.json").read_text())["tables"]
    assert [row[0] for row in holds["rows"]] == HOLDS
    assert [row[0] for row in ends["rows"]] == ENDS
    assert float(holds["rows"][1][2]) == pytest.approx(max(row["gradient_relative"] for row in rows[HOLDS[1]]), rel=0.5)
    largest = max(row["gradient_relative"] for row in rows[ENDS[0]])
    assert ends["rows"][0][1].endswith(f"({largest:.2g})")
    assert "agree to rounding in 14 of 14 settings, in each of 2 batches" in holds["title"]
    medians = [np.median([row["gradient_relative"] for row in rows[name]]) for name in ENDS]
    assert f"differ by {100 * min(medians):.2g} % to {100 * max(medians):.2g} %" in ends["title"]
    ratios = [row[key] for row in rows[HOLDS[1]] for key in ("least_ratio", "largest_ratio")]
    assert [row[4] for row in holds["rows"][:2]] == ["1", f"{min(ratios):.2f} to {max(ratios):.2f}"]
    assert example["rows"] == [list(row) for row in worked_example().rows]
    assert not any("|" in name for table in (holds, ends, example) for name in table["header"])
    with (folder / "results.csv").open(encoding="utf-8") as file:
        assert len(list(csv.DictReader(file))) == 2 * len(SETTINGS)


def test_the_worked_example_has_the_numbers_computed_by_hand() -> None:
    found = {row[0]: row[1:] for row in worked_example().rows}
    numbers = {
        "AB": ("ABCD ABEFHI", 0.5, 0.2214, 0.443, 0.221),
        "CD": ("ABCD", 0.5, 0.2214, 0.221, 0.221),
        "EFHI": ("ABEFHI", 0.5, 0.2214, 0.221, 0.221),
        "JKL": ("JKLM JKLNQST JKLNQU", 1 / 3, -0.2214, -0.664, -0.221),
        "M": ("JKLM", 1.0, 1.5498, 1.550, 1.550),
        "NQ": ("JKLNQST JKLNQU", 0.0, -1.1070, -2.214, -1.107),
        "ST": ("JKLNQST", 0.0, -1.1070, -1.107, -1.107),
        "U": ("JKLNQU", 0.0, -1.1070, -1.107, -1.107),
        "VWYZ": ("VWYZ", 0.5, 0.2214, 0.221, 0.221),
    }
    assert list(found) == list(numbers)
    for text, (members, reward, advantage, grpo, lambda_grpo) in numbers.items():
        assert found[text][0] == members
        shown = [float(value) for value in found[text][1:]]
        assert shown[:2] == pytest.approx([reward, advantage], abs=6e-5)
        assert shown[2:] == pytest.approx([grpo, lambda_grpo], abs=6e-4)


def by_oracle(policy: Policy, old: Policy | None, groups: Sequence[Group], options: dict[str, Any]) -> torch.Tensor:
    """The loss of the naive implementation, which gets the log-probs of π_old and π_ref from the models alone."""

    def row(tokens: list[int], reward: float | None) -> Row:
        prompt, answer = tokens[:PROMPT], tokens[PROMPT:]
        bare = Row(prompt, answer, [1] * len(answer), reward)
        with torch.no_grad():
            before = None if old is None else [float(value) for value in oracle.logprobs(old.model, bare)]
            reference = [float(value) for value in oracle.logprobs(policy.reference, bare)]
        return Row(prompt, answer, [1] * len(answer), reward, before, reference)

    rows = [[row(t.tokens.tolist(), t.reward) for t in group.trajectories] for group in groups]
    return oracle.loss(policy.model, rows, options)


@pytest.mark.parametrize("name", ["p = ½, ρ ≠ 1", "(b) clip at 1 ± 0.2, active"])
def test_loss_and_gradient_with_outcome_advantages_are_those_of_the_oracle(small: Any, name: str) -> None:
    policy, old = small
    setting = BY_NAME[name]
    found = step(setting, GroupMean(), 3, policy, old)
    gradient = {key: value.clone() for key, value in found.gradient.items()}
    objective = setting.objective(GroupMean())
    assert isinstance(objective.trust_region, Clip)
    names = ("scale", "aggregation", "weight_exponent", "kl_coef", "max_completion_tokens")
    options = {key: getattr(objective, key) for key in names}
    options |= {key: getattr(objective.trust_region, key) for key in ("clip_low", "clip_high")}
    expected = by_oracle(policy, old if setting.moved else None, random_batch(3), options)
    policy.model.zero_grad(set_to_none=True)
    expected.backward()
    assert found.loss == pytest.approx(expected.item(), rel=1e-9, abs=1e-12)
    for key, parameter in policy.model.named_parameters():
        assert parameter.grad is not None
        assert float((gradient[key] - parameter.grad).norm() / parameter.grad.norm()) <= 1e-9


def test_rows_in_the_place_of_the_tree_show_the_same(small: Any) -> None:
    setting = BY_NAME["p = 1, ρ ≠ 1"]
    outcome, process = (step(setting, rule, 3, *small) for rule in (GroupMean(), ProcessAdvantage()))
    assert abs(outcome.loss - process.loss) <= ROUNDING
    size = sum(float(g.square().sum()) for g in outcome.gradient.values())
    error = sum(float((g - process.gradient[key]).square().sum()) for key, g in outcome.gradient.items())
    assert 0 < error <= ROUNDING**2 * size


def test_only_gspo_with_process_advantages_would_be_refused_by_the_presets() -> None:
    refused = [
        s.name
        for s in SETTINGS
        if any("averaged away" in text for text in conflicts(s.objective(ProcessAdvantage()), {}))
    ]
    assert refused == [name for name in ENDS if "GSPO," in name]
    allowed = [s for s in SETTINGS if s.name not in refused]
    assert not [text for s in allowed for text in conflicts(s.objective(ProcessAdvantage()), {})]
    assert not [text for s in SETTINGS for text in conflicts(s.objective(GroupMean()), {})]


def test_a_batch_is_measured_the_same_twice(rows: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(theorem, "SETTINGS", (BY_NAME["p = ½, ρ ≠ 1"],))
    (again,) = theorem.measure(Theorem(seeds=2, device="cpu"), {"seed": 1}, tmp_path)
    assert again == rows["p = ½, ρ ≠ 1"][1]


def test_the_picture_has_a_line_for_every_setting_and_draws_a_difference_of_zero(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    assert 0 < (folder / "figure.png").stat().st_size < 200_000
    figure = draw_theorem([Line("none", [0.0, 0.0]), Line("some", [0.1, 0.2], [0.0, 1e-16], "a cause")])
    labels = [text.get_text() for axes in figure.axes for text in axes.get_yticklabels()]
    assert sorted(labels) == ["none", "some"]
    drawn = [x for axes in figure.axes for line in axes.lines for x in np.atleast_1d(line.get_xdata())]
    assert drawn
    assert min(drawn) > 0
