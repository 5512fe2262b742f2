"""What presets ask of the loop: all of them train; filters, refills, penalties, the reference; exact resume."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tiny
from folders import write_tiny_model
from oracle import Row
from test_train import assert_resuming_is_exact, recipe, rows
from treewise.axes import Objective
from treewise.batch import gather, has_spread, penalise
from treewise.cli import main
from treewise.credit import credit, denominator_of
from treewise.loop import train
from treewise.packing import pack
from treewise.policy import Policy
from treewise.presets import PRESETS, resolve
from treewise.records import read_groups
from treewise.reward.length import overlong
from treewise.types import Group


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


def varied(completion: str) -> float:
    """A reward that hardly two answers share, so that every group has spread."""
    return sum(map(ord, completion)) % 101 / 101


def varied_in_steps(steps: list[str]) -> list[float]:
    """The same, step by step."""
    return [varied(step) for step in steps]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_runs_through_the_loop_and_moves_the_weights(model: Path, tmp_path: Path, preset: str) -> None:
    options = {"objective.preset": preset, "train.steps": 2, "train.updates_per_batch": 2}
    reward = varied_in_steps if preset == "grpo_process" else varied
    run = train(recipe(model, tmp_path, **options), reward=reward)
    for row in rows(run / "metrics.jsonl"):
        assert (row["updates/skipped"], row["updates/empty"]) == (0, 0)
        assert 0 < row["grad_norm"] < math.inf
        assert (
            row["sampling/sampling_logp_difference/max"] < 1e-4
        )  # ratio_base, correction: the sampler's own log-probs
        assert ("kl" in row) == (resolve(preset, {}, max_new_tokens=6).kl_coef > 0)
    before, after = load_file(model / "model.safetensors"), load_file(run / "model" / "model.safetensors")
    assert any(not torch.equal(tensor, before[name]) for name, tensor in after.items())


# Resume


ENDS = list("aeiou0123456789")  # so that answers differ in length
# The reference is renewed after step 3, between two checkpoints: at neither of them it is the policy of that step.
STATEFUL: dict[str, dict[str, Any]] = {
    "dynamic sampling": {"objective.preset": "dapo"},
    "a renewed reference": {"objective.kl_coef": 0.1, "objective.kl_refresh": 3},
    "a renewed reference of an adapter": {"objective.kl_coef": 0.1, "objective.kl_refresh": 3, "lora.rank": 4},
    "a learned length weight": {"objective.preset": "token_preference", "rollout.stop": ENDS},
    "a KL in the reward": {"objective.preset": "reinforce_pp"},
}


def sparse(completion: str) -> float:
    """Few answers get it, so that many groups have no spread."""
    return float(completion.startswith("a"))


@pytest.mark.parametrize("what", STATEFUL)
def test_resuming_is_exact_with(what: str, model: Path, tmp_path: Path) -> None:
    options = {"train.steps": 6, "train.save_every": 4, "train.keep_last": 9, "train.updates_per_batch": 2}
    if "lora.rank" in STATEFUL[what]:
        pytest.importorskip("peft")
    reward = (lambda completion: len(completion) / 6) if "length" in what else sparse
    whole = train(recipe(model, tmp_path, **options, **STATEFUL[what], **{"train.name": "whole"}), reward=reward)
    if "length" in what:
        assert rows(whole / "metrics.jsonl")[3]["preference"] != 0.0
    assert_resuming_is_exact(whole, last=6, reward=reward)


def test_a_learned_length_weight_learns_and_is_recorded(model: Path, tmp_path: Path) -> None:
    options = {"objective.preset": "token_preference", "rollout.stop": ENDS}
    run = train(recipe(model, tmp_path, **options), reward=lambda completion: len(completion) / 6)
    path = [row["preference"] for row in rows(run / "metrics.jsonl")]
    assert all(math.isfinite(value) for value in path)
    assert len(set(path)) > 1


# Dynamic sampling


def groups_of(*rewards: list[float | None]) -> list[Group]:
    return [
        tiny.group([Row([1], [2 + n], [1], r) for n, r in enumerate(own)], number) for number, own in enumerate(rewards)
    ]


def drawing(*batches: list[Group]) -> Callable[[int], list[Group]]:
    return lambda number: batches[number]


def test_a12_groups_without_spread_are_dropped_and_others_sampled_in_their_place() -> None:
    flat, mixed = [0.5, 0.5, 0.5, 0.5], [0.4, 0.6, 0.5, 0.5]
    objective = resolve("dapo", {"overlong_penalty": 0.0})
    batch = gather(drawing(groups_of(flat, mixed), groups_of(mixed, mixed)), objective, wanted=2, max_new_tokens=9)
    assert [has_spread(group, objective) for group in batch.kept] == [True, True]
    assert (len(batch.dropped), batch.draws) == (2, 2)  # the flat one, and one too many
    assert len(batch.sampled) == 4


def test_the_filter_asks_the_rule_and_counts_only_what_has_a_weight() -> None:
    (solved,) = groups_of([1.0, 1.0])
    assert not has_spread(solved, resolve("reinforce_pp", {}))  # though without a baseline it has an advantage
    scores = [{"a": 1.0, "b": 0.0}, {"a": 1.0, "b": 1.0}]
    scored = [replace(t, scores=own) for t, own in zip(solved.trajectories, scores, strict=True)]
    apart = replace(solved, trajectories=tuple(scored))
    assert has_spread(apart, resolve("gdpo", {}), {"a": 1.0, "b": 0.5})
    assert not has_spread(apart, resolve("gdpo", {}), {"a": 1.0, "b": 0.0})
    batch = gather(lambda _: [apart], resolve("gdpo", {"group_filter": "spread", "max_refills": 1}), wanted=1,
                   max_new_tokens=9, weights={"a": 1.0, "b": 0.0})  # fmt: skip
    assert (len(batch.kept), len(batch.dropped)) == (0, 2)


def test_refills_are_bounded_and_what_there_is_is_used() -> None:
    objective = resolve("dapo", {"max_refills": 2, "overlong_penalty": 0.0})
    batches = [groups_of([1.0, 1.0]), groups_of([0.0, 1.0]), groups_of([0.0, 0.0]), groups_of([0.0, 1.0])]
    batch = gather(drawing(*batches), objective, wanted=2, max_new_tokens=9)
    assert (len(batch.kept), len(batch.dropped), batch.draws) == (1, 2, 3)


def test_without_a_filter_everything_is_kept() -> None:
    batch = gather(drawing(groups_of([1.0, 1.0], [None, None])), Objective(), wanted=2, max_new_tokens=9)
    assert (len(batch.kept), len(batch.dropped), batch.draws) == (2, 0, 1)


def test_the_filter_looks_at_rewards_before_the_penalty() -> None:
    same = tiny.group([Row([1], [2] * length, [1] * length, 1.0) for length in (2, 10)], 0)
    kept = gather(lambda _: [same], resolve("dapo", {"max_refills": 1}), wanted=1, max_new_tokens=10)
    assert (len(kept.kept), len(kept.dropped)) == (0, 2)


def test_a_run_replaces_groups_and_records_them_as_not_kept(model: Path, tmp_path: Path) -> None:
    run = train(recipe(model, tmp_path, **{"objective.preset": "dapo", "train.steps": 3}), reward=sparse)
    metrics = rows(run / "metrics.jsonl")
    assert sum(row["groups/draws"] for row in metrics) > 3
    assert all(row["groups/kept"] <= 2 for row in metrics)
    recorded = read_groups(run / "rollouts.jsonl")
    assert len(recorded) == sum(row["groups/kept"] + row["groups/dropped"] for row in metrics)
    assert sum(group.trajectories[0].kept for group in recorded) == sum(row["groups/kept"] for row in metrics)
    assert {len(group.trajectories) for group in recorded} == {4}


def test_refills_draw_other_answers_to_the_same_problem(model: Path, tmp_path: Path) -> None:
    options = {"objective.preset": "dapo", "train.steps": 1, "objective.max_refills": 2, "data.limit": 2}
    run = train(recipe(model, tmp_path, **options), reward=lambda completion: 1.0)
    texts: dict[str, list[str]] = {}
    for row in rows(run / "rollouts.jsonl"):
        texts.setdefault(row["group"], []).append(row["text"])
    assert len(texts) == 6
    assert len({tuple(answers) for answers in texts.values()}) == 6


def test_a_run_without_any_spread_makes_no_step_and_says_so(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(
        recipe(model, tmp_path, **{"objective.preset": "dapo", "train.steps": 1, "objective.max_refills": 1}),
        reward=lambda completion: 1.0,
    )
    (row,) = rows(run / "metrics.jsonl")
    assert (row["groups/kept"], row["groups/draws"], row["updates/empty"]) == (0, 2, 1)
    assert "0 of 2 groups had reward spread after 2 draws" in capsys.readouterr().out.replace("\n", " ")


# Long answers


@pytest.mark.parametrize(
    ("length", "penalty"), [(0, 0.0), (80, 0.0), (85, -0.25), (90, -0.5), (100, -1.0), (300, -1.0)]
)
def test_overlong_penalty_is_that_of_dapos_equation_13(length: int, penalty: float) -> None:
    """Several replies of one episode may have more tokens than the limit of one."""
    assert overlong(length, limit=100, buffer=20) == pytest.approx(penalty)
    group = penalise(tiny.group([Row([1], [2] * length, [1] * length, 1.0)], 0), share=0.2, limit=100)
    assert group.trajectories[0].reward == pytest.approx(1.0 + penalty)


def test_penalty_is_part_of_reward_scores_and_last_step() -> None:
    group = tiny.group([Row([1], [2] * 9, [1] * 9, 1.0), Row([1], [3], [1], None)], 0)
    stepped = replace(group.trajectories[0], steps=((4, 0.25), (9, 0.75)))
    shaped = penalise(replace(group, trajectories=(stepped, group.trajectories[1])), share=0.5, limit=10)
    first, second = shaped.trajectories
    assert first.reward == pytest.approx(0.2)
    assert first.scores["overlong_penalty"] == pytest.approx(-0.8)
    assert list(first.steps) == [(4, 0.25), (9, pytest.approx(-0.05))]
    assert second.reward is None


def test_a08_cut_answers_leave_or_stay_in_the_statistics_only() -> None:
    group = tiny.group([Row([1], [2 + n], [1], r) for n, r in enumerate([1.0, 1.0, 0.0, 0.0])], 0)
    cut = replace(group.trajectories[1], stop_reason="length")
    group = replace(group, trajectories=(group.trajectories[0], cut, *group.trajectories[2:]))

    (left,) = credit([group], resolve("dapo", {"overlong": "leave", "scale": "none"}))
    assert left.advantages.tolist() == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert denominator_of([left], Objective()) == 3.0

    masked = resolve("dapo", {"overlong": "mask", "scale": "none"})
    (stays,) = credit([group], masked)
    assert stays.advantages.tolist() == pytest.approx([0.5, 0.5, -0.5, -0.5])
    assert stays.coefficients.tolist() == [1.0, 0.0, 1.0, 1.0]
    assert denominator_of([stays], masked) == 3.0
    (batch,) = pack([stays], denominator=3.0, budget=100)
    assert [member for _, member in batch.origin] == [0, 2, 3]

    (kept,) = credit([group], resolve("dapo", {"scale": "none"}))
    assert denominator_of([kept], Objective()) == 4.0


# The reference


def test_the_reference_is_renewed_after_every_so_many_steps(model: Path, tmp_path: Path) -> None:
    options = {"objective.kl_coef": 0.1, "objective.kl_refresh": 2, "train.steps": 5}
    run = train(recipe(model, tmp_path, **options), reward=varied)
    kl = [row["kl"] for row in rows(run / "metrics.jsonl")]
    assert [value > 1e-9 for value in kl] == [False, True, False, True, False]  # 0 where policy and reference agree


@pytest.mark.parametrize("adapted", [False, True])
def test_refreshing_makes_the_policy_its_own_reference(adapted: bool) -> None:
    model, reference = tiny.model("llama", dtype=torch.float32), tiny.model("llama", dtype=torch.float32)
    if adapted:
        peft = pytest.importorskip("peft")
        torch.manual_seed(0)
        made = peft.LoraConfig(r=2, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
        model, reference = peft.get_peft_model(model, made), None
    policy = Policy(model, 1.0, tiny.VOCABULARY, reference=reference)
    group = tiny.group([Row([5, 6], [7, 8], [1, 1], 1.0), Row([5, 6], [9], [1], 0.0)], 0)
    (batch,) = pack(credit([group], Objective()), denominator=1.0, budget=100)
    start = policy.logprobs(batch).detach()

    def move() -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.05)

    move()
    assert torch.allclose(policy.reference_logprobs(batch), start, atol=1e-6)
    policy.refresh_reference()
    moved = policy.logprobs(batch).detach()
    assert not torch.allclose(moved, start)
    assert torch.allclose(policy.reference_logprobs(batch), moved, atol=1e-6)
    state = {name: value.clone() for name, value in policy.reference_state().items()}
    move()
    assert torch.allclose(policy.reference_logprobs(batch), moved, atol=1e-6)
    assert not torch.allclose(policy.logprobs(batch), moved)
    policy.refresh_reference()
    policy.load_reference_state(state)
    assert torch.allclose(policy.reference_logprobs(batch), moved, atol=1e-6)


# Entropies


@pytest.mark.parametrize("path", ["tree", "flat"])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_entropies_are_those_of_the_distribution_that_drew_the_token(path: Any, family: str) -> None:
    model = tiny.model(family)
    policy = Policy(model, 0.7, tiny.VOCABULARY - 3, path=path)
    group = tiny.group([Row([5, 6], [7, 8, 9], [1, 0, 1], 1.0), Row([5, 6], [7, 4], [1, 1], 0.0)], 0)
    (batch,) = pack(credit([group], Objective()), denominator=1.0, budget=100, flat=path == "flat")
    expected = []
    for trajectory in group.trajectories:
        logits = model(input_ids=torch.tensor([trajectory.tokens.tolist()])).logits[0, :, : tiny.VOCABULARY - 3]
        probabilities = (logits.double() / 0.7).softmax(-1)
        entropies = -(probabilities * probabilities.log()).sum(-1)
        expected += [entropies[t - 1].item() for t in np.flatnonzero(trajectory.sampled)]
    assert policy.entropies(batch).tolist() == pytest.approx(expected, rel=1e-6)


def test_top_entropy_keeps_the_share_and_its_ties() -> None:
    from treewise.assess import learn_from_uncertain

    group = tiny.group([Row([1], list(range(2, 12)), [1] * 10, 1.0), Row([1], [20] * 5, [1] * 5, 0.0)], 0)
    credited = credit([group], Objective())
    entropies = np.array([0.1, 0.9, 0.2, 0.8, 0.8, 0.3, 0.1, 0.1, 0.1, 0.1, 0.0, 0.0, 0.0, 0.0, 0.5])
    (kept,) = learn_from_uncertain(credited, [entropies], 0.2)  # three of fifteen
    assert np.flatnonzero(kept.advantages).tolist() == [1, 3, 4]
    cut = replace(credited[0], trained=np.array([False, True]))
    (second,) = learn_from_uncertain([cut], [entropies], 0.2)  # one of the five that count
    assert np.flatnonzero(second.advantages[10:]).tolist() == [4]
    (tied,) = learn_from_uncertain(credited, [entropies], 0.1)  # two, and the one that ties
    assert np.flatnonzero(tied.advantages).tolist() == [1, 3, 4]


def test_explaining_a_runs_answers_gives_the_loss_of_the_run(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The reward functions' weights and the length limit are those of the run's own recipe."""
    judges = tmp_path / "judges.py"
    judges.write_text(
        "def early(completion): return completion.find('a') % 5\n"
        "def varied(completion): return sum(map(ord, completion)) % 7\n"
        "def seen(completion): return len(completion)\n"
    )
    weights = {"early": 1, "varied": 5, "seen": 0}
    rewards = [{"function": f"{judges}:{name}", "weight": weight} for name, weight in weights.items()]
    for preset, aggregation in (("gdpo", "token"), ("tree_rloo", "constant")):
        options = {"objective.preset": preset, "objective.aggregation": aggregation, "rollout.stop": ENDS}
        run = train(recipe(model, tmp_path, **options, **{"train.steps": 1, "reward": rewards, "train.name": preset}))
        capsys.readouterr()
        command = ["explain", str(run / "rollouts.jsonl"), "--preset", preset, "--objective.aggregation", aggregation]
        assert main([*command, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        (row,) = rows(run / "metrics.jsonl")
        assert abs(row["loss"]) > 1e-3
        assert report["loss"] == pytest.approx(row["loss"], rel=1e-5)
