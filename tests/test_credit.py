"""Advantages, process rewards, weights and denominators: worked examples, failure cases, Theorem 1."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from treewise import objective as losses
from treewise.axes import Objective
from treewise.axes.aggregation import Aggregation, coefficients, denominator, token_weights
from treewise.credit import credit, group_advantages, process_advantages, process_rewards, reward_statistics
from treewise.presets import PRESETS, resolve
from treewise.tree import PrefixTree, build_tree
from treewise.types import FloatArray, Group, Problem, Trajectory

NAN = float("nan")


def completions(*rows: Sequence[int]) -> PrefixTree:
    return build_tree(rows, [np.ones(len(row), dtype=bool) for row in rows])


def group(
    rows: Sequence[Sequence[int]],
    rewards: Sequence[float | None],
    *,
    prompt: Sequence[int] = (1, 2),
    masks: Sequence[Sequence[int]] | None = None,
) -> Group:
    trajectories = []
    for number, (row, reward) in enumerate(zip(rows, rewards, strict=True)):
        mask = [1] * len(row) if masks is None else masks[number]
        length = len(prompt) + len(row)
        trajectories.append(
            Trajectory(
                tokens=np.array([*prompt, *row], dtype=np.int64),
                sampled=np.array([0] * len(prompt) + list(mask), dtype=bool),
                logprobs=np.zeros(length),
                text="",
                reward=reward,
                stop_reason="eos",
            )
        )
    return Group(Problem(id="p", prompt="?"), tuple(trajectories))


def on_policy_loss(groups: Sequence[Group], objective: Objective) -> tuple[float, list[float]]:
    """Loss and ∂loss/∂logprob at ratio 1 without KL: −Σ coefficient · advantage / D."""
    credited = credit(groups, objective)
    total = denominator(
        [length for c in credited for length in c.lengths],
        aggregation=objective.aggregation,
        max_completion_tokens=objective.max_completion_tokens,
    )
    advantages = torch.tensor(np.concatenate([c.advantages for c in credited]))
    weights = torch.tensor(np.concatenate([c.coefficients for c in credited]))
    logprobs = torch.zeros_like(advantages, requires_grad=True)
    terms = losses.token_terms(
        logprobs,
        advantages=advantages,
        old_logprobs=logprobs.detach(),
        sampler_logprobs=logprobs.detach(),
        ref_logprobs=None,
        trajectory=torch.arange(len(logprobs)),
        objective=objective,
    )
    loss = losses.loss(terms, weights / total)
    (gradient,) = torch.autograd.grad(loss, logprobs)
    return loss.item(), gradient.tolist()


def of_tokens(aggregation: Aggregation, token_losses: Sequence[Sequence[float]]) -> float:
    """The aggregate of given per-token losses of distinct answers, micro-batch by micro-batch."""
    total = denominator([len(row) for row in token_losses], aggregation=aggregation)
    value = 0.0
    for number, row in enumerate(token_losses):
        tree = completions([number] * len(row))
        value += float((coefficients(tree, exponent=0.0, aggregation=aggregation) / total) @ np.array(row))
    return value


WORKED = ["ABCD", "ABEFHI", "JKLM", "JKLNQST", "JKLNQU", "VWYZ"]
WORKED_REWARDS = [0.5, 0.5, 1.0, 0.0, 0.0, 0.5]


def worked_tree() -> PrefixTree:
    return completions(*([ord(letter) for letter in row] for row in WORKED))


def by_token(tree: PrefixTree, values: FloatArray) -> dict[str, float]:
    """Sum over the members of each process set, keyed by the prefix that ends in the token."""
    totals: defaultdict[str, float] = defaultdict(float)
    for node, trajectory, value in zip(tree.index, tree.trajectory, values, strict=True):
        totals[WORKED[trajectory][: tree.position[node] + 1]] += float(value)
    return totals


def test_worked_example_statistics() -> None:
    mean, std = reward_statistics(WORKED_REWARDS)
    assert mean == pytest.approx(0.4167, abs=5e-5)
    assert std == pytest.approx(0.3764, abs=5e-5)


def test_worked_example_process_advantages() -> None:
    tree = worked_tree()
    found = process_advantages(tree, np.array(WORKED_REWARDS), epsilon=0.0)
    means = by_token(tree, found / tree.size[tree.index])  # of the members, who all have the same
    expected = {"AB": 0.2214, "JKL": -0.2214, "JKLM": 1.5498, "JKLNQ": -1.1070, "VWYZ": 0.2214}
    assert {prefix: means[prefix] for prefix in expected} == pytest.approx(expected, abs=5e-5)


def test_worked_example_totals_of_grpo_and_lambda_grpo() -> None:
    tree = worked_tree()
    outcome = group_advantages(WORKED_REWARDS, epsilon=0.0)[tree.trajectory]
    grpo = by_token(tree, outcome * token_weights(tree, exponent=0.0))
    lambda_grpo = by_token(tree, outcome * token_weights(tree, exponent=1.0))
    for prefixes, total, weighted in (
        (["A", "AB"], 0.443, 0.221),
        (["J", "JK", "JKL"], -0.664, -0.221),
        (["JKLN", "JKLNQ"], -2.214, -1.107),
        (["JKLM"], 1.550, 1.550),
    ):
        for prefix in prefixes:  # every token of a set carries the same total
            assert grpo[prefix] == pytest.approx(total, abs=6e-4)
            assert lambda_grpo[prefix] == pytest.approx(weighted, abs=6e-4)


@pytest.mark.parametrize(
    "rewards", [[0.95] * 7, [0.35] * 7, [1.0] * 4, np.float32([0.95] * 7).tolist(), [0.1 + 0.2, 0.3]]
)
def test_a01_equal_rewards_give_advantages_of_exactly_zero(rewards: list[float]) -> None:
    for scale in ("std", "none"):
        assert group_advantages(rewards, scale=scale).tolist() == [0.0] * len(rewards)
    assert reward_statistics(rewards)[1] == 0.0


def test_a01_policy_loss_of_equal_rewards_is_zero() -> None:
    loss, gradient = on_policy_loss([group([[1], [2, 3]], [0.95, 0.95])], resolve("grpo", {}))
    assert loss == 0.0
    assert gradient == [0.0] * 3


def test_a02_one_failure_among_equal_successes_has_a_sane_advantage() -> None:
    expected = [-2.47414] + [0.35345] * 7
    assert group_advantages([0.0] + [0.95] * 7).tolist() == pytest.approx(expected, abs=1e-5)


def test_a04_missing_verdict_is_in_no_statistic() -> None:
    rewards = [1.0, None, 1.0, 0.0]
    assert reward_statistics(rewards) == pytest.approx((0.66667, 0.57735), abs=1e-5)
    found = group_advantages(rewards)
    assert np.isnan(found[1])
    assert found[[0, 2, 3]].tolist() == pytest.approx([0.57725, 0.57725, -1.15450], abs=1e-5)


def test_a04_missing_verdict_is_in_no_process_set_and_no_denominator() -> None:
    credited = credit([group([[7, 8], [7, 8], [7, 9]], [1.0, None, 0.0])], resolve("lambda_grpo", {}))[0]
    assert credited.lengths == [2, 2]
    assert credited.tree.count == 2
    assert credited.coefficients.tolist() == [0.5, 1.0, 0.5, 1.0]


def test_a05_single_verdict_has_advantage_exactly_zero_and_stays_in_the_denominator() -> None:
    found = group_advantages([1.0, None, None, None])
    assert found[0] == 0.0
    assert np.isnan(found[1:]).all()
    assert reward_statistics([1.0, None]) == (1.0, 0.0)
    credited = credit([group([[7, 8], [9]], [1.0, None])], resolve("grpo", {}))[0]
    assert credited.lengths == [2]
    assert credited.advantages.tolist() == [0.0, 0.0]


def test_a05_group_without_verdict_is_left_out_altogether() -> None:
    assert np.isnan(group_advantages([None, None])).all()
    assert reward_statistics([None, None]) == (None, None)
    credited = credit([group([[7, 8], [9]], [None, None])], resolve("grpo", {}))[0]
    assert credited.lengths == []
    assert len(credited.advantages) == 0


def test_a06_each_reward_is_normalised_over_its_own_verdicts() -> None:
    first, second = [1.0, 0.0, 1.0, 0.0], [None, 0.0, 1.0, 1.0]
    assert group_advantages(first).tolist() == pytest.approx([0.86588, -0.86588] * 2, abs=1e-5)
    assert group_advantages(second)[1:].tolist() == pytest.approx([-1.15450, 0.57725, 0.57725], abs=1e-5)


def test_a07_uneven_groups_are_normalised_each_by_itself() -> None:
    groups = [[1.0, 0.0, 1.0], [0.0, 1.0], [5.0, 5.0, 5.0]]
    found = [a for rewards in groups for a in group_advantages(rewards)]
    assert found == pytest.approx([0.57725, -1.15450, 0.57725, -0.70701, 0.70701, 0, 0, 0], abs=1e-5)


def test_a08_trajectory_that_left_the_group_changes_the_statistics_of_the_rest() -> None:
    rewards = [1.0, None, 0.0, 0.0]  # the second one is masked, so it leaves as if it had no verdict
    centred = group_advantages(rewards, scale="none")[[0, 2, 3]]
    scaled = group_advantages(rewards, epsilon=0.0)[[0, 2, 3]]
    assert centred.tolist() == pytest.approx([0.66667, -0.33333, -0.33333], abs=1e-5)
    assert scaled.tolist() == pytest.approx([1.15470, -0.57735, -0.57735], abs=1e-5)


def test_a11_advantages_are_normalised_once() -> None:
    assert group_advantages([1.0, 0.0, 0.0, 0.0]).tolist() == pytest.approx([1.49970] + [-0.49990] * 3, abs=1e-5)


def test_a12_constant_rewards_have_deviation_zero_and_close_ones_do_not() -> None:
    assert reward_statistics([0.5] * 4)[1] == 0.0
    assert reward_statistics([0.4, 0.6, 0.5, 0.5])[1] == pytest.approx(0.0816497, abs=1e-6)
    assert reward_statistics([0.5, 0.5 + 1e-6 / 2])[1] == 0.0  # within the tolerance
    assert group_advantages([0.5, 0.5 + 2e-6])[1] > 0.0


@given(st.lists(st.one_of(st.none(), st.floats(-10, 10, width=32)), max_size=8))
def test_advantages_sum_to_zero(rewards: list[float | None]) -> None:
    for scale in ("std", "none"):
        assert np.nansum(group_advantages(rewards, scale=scale)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("reward", [NAN, float("inf")])
def test_rewards_that_are_no_number_are_refused(reward: float) -> None:
    with pytest.raises(ValueError, match=r"reward 1 of the group is (nan|inf)"):
        group_advantages([0.0, reward])


GROUPS = st.lists(
    st.tuples(st.lists(st.integers(0, 2), max_size=5), st.sampled_from([0.0, 0.3, 1.0, -2.0])),
    min_size=1,
    max_size=7,
)


@given(GROUPS)
def test_process_reward_is_the_mean_reward_of_the_prefix(rows: list[tuple[list[int], float]]) -> None:
    tree = completions(*(row for row, _ in rows))
    rewards = np.array([reward for _, reward in rows])
    found = process_rewards(tree, rewards)
    expected = []
    for row, _ in rows:
        for t in range(len(row)):
            expected.append(np.mean([r for other, r in rows if other[: t + 1] == row[: t + 1]]))
    np.testing.assert_allclose(found, expected, atol=1e-12)


@given(GROUPS, st.sampled_from(["std", "none"]))
def test_weighted_outcome_advantages_of_a_set_sum_to_its_process_advantage(
    rows: list[tuple[list[int], float]], scale: str
) -> None:
    tree = completions(*(row for row, _ in rows))
    rewards = np.array([reward for _, reward in rows])
    outcome = group_advantages(rewards.tolist(), scale=scale)[tree.trajectory]  # type: ignore[arg-type]
    total = np.bincount(tree.index, weights=outcome * token_weights(tree, exponent=1.0), minlength=len(tree))
    process = process_advantages(tree, rewards, scale=scale)  # type: ignore[arg-type]
    np.testing.assert_allclose(total[tree.index], process, atol=1e-9)


@given(GROUPS, st.sampled_from([0.0, 0.5, 1.0]))
def test_theorem_1_process_advantages_change_no_total_of_a_set(
    rows: list[tuple[list[int], float]], exponent: float
) -> None:
    tree = completions(*(row for row, _ in rows))
    rewards = np.array([reward for _, reward in rows])
    weights = coefficients(tree, exponent=exponent, aggregation="token")
    totals = [
        np.bincount(tree.index, weights=weights * advantages, minlength=len(tree))
        for advantages in (
            group_advantages(rewards.tolist())[tree.trajectory],
            process_advantages(tree, rewards),
        )
    ]
    np.testing.assert_allclose(*totals, atol=1e-9)


def test_theorem_1_breaks_for_the_sequence_mean_with_unequal_lengths() -> None:
    tree = completions([1, 2], [1, 3, 4, 5])
    rewards = np.array([0.0, 1.0])
    weights = coefficients(tree, exponent=0.0, aggregation="sequence")
    outcome = weights * group_advantages(rewards.tolist())[tree.trajectory]
    process = weights * process_advantages(tree, rewards)
    assert outcome[tree.index == 0].sum() == pytest.approx(0.70701 * (1 / 4 - 1 / 2), abs=1e-5)
    assert process[tree.index == 0].sum() == 0.0


@pytest.mark.parametrize(
    ("rows", "weights"),
    [
        ([[1, 2], [1, 2], [3]], [0.5, 0.5, 0.5, 0.5, 1.0]),
        ([[1, 2], [1, 2, 3]], [0.5, 0.5, 0.5, 0.5, 1.0]),
        ([[1, 2]] * 4, [0.25] * 8),
        ([[0], [0, 0], [0, 0, 0]], [1 / 3, 1 / 3, 1 / 2, 1 / 3, 1 / 2, 1.0]),  # 0 is a token, not padding
    ],
)
def test_g02_duplicates_prefixes_and_token_zero_have_the_right_weights(
    rows: list[list[int]], weights: list[float]
) -> None:
    assert token_weights(completions(*rows), exponent=1.0).tolist() == pytest.approx(weights)


def test_exponent_interpolates_between_grpo_and_lambda_grpo() -> None:
    tree = completions([1], [1], [1], [1])
    for exponent, weight in ((0.0, 1.0), (0.5, 0.5), (1.0, 0.25)):
        assert token_weights(tree, exponent=exponent).tolist() == [weight] * 4


def test_equal_tokens_after_different_observations_are_different_sets() -> None:
    rows, masks = [[1, 50, 2], [1, 51, 2], [1, 50, 2]], [[1, 0, 1]] * 3
    credited = credit([group(rows, [1.0, 0.0, 0.0], masks=masks)], resolve("lambda_grpo", {}))[0]
    assert credited.coefficients.tolist() == pytest.approx([1 / 3, 1 / 2, 1 / 3, 1, 1 / 3, 1 / 2])
    assert credited.lengths == [2, 2, 2]


G01 = [[1, 2, 3], [1, 2, 4, 5], [9]]
G01_REWARDS = [0.0, 1.0, 0.0]


@pytest.mark.parametrize(
    ("aggregation", "exponent", "loss"),
    [("sequence", 1.0, 0.03207), ("token", 1.0, -0.21647), ("sequence", 0.0, 0.0), ("token", 0.0, -0.28863)],
)
def test_g01_loss_of_shared_prefixes(aggregation: Aggregation, exponent: float, loss: float) -> None:
    objective = Objective(aggregation=aggregation, weight_exponent=exponent)
    found, gradient = on_policy_loss([group(G01, G01_REWARDS)], objective)
    assert found == pytest.approx(loss, abs=1e-5)
    assert all(gradient)


def test_g01_weights_and_advantages() -> None:
    credited = credit([group(G01, G01_REWARDS)], resolve("lambda_grpo", {}))[0]
    assert credited.coefficients.tolist() == [0.5, 0.5, 1, 0.5, 0.5, 1, 1, 1]
    expected = [-0.57725] * 3 + [1.15450] * 4 + [-0.57725]
    assert credited.advantages.tolist() == pytest.approx(expected, abs=1e-5)
    assert sum(credited.lengths) == 8


def test_g03_groups_with_equal_answers_do_not_see_each_other() -> None:
    objective = resolve("lambda_grpo", {})
    one, other = group(G01, G01_REWARDS), group(G01, G01_REWARDS, prompt=(4, 5))
    for member in (one, other):
        assert credit([member], objective)[0].coefficients.tolist() == [0.5, 0.5, 1, 0.5, 0.5, 1, 1, 1]
    single, _ = on_policy_loss([one], objective)
    double, _ = on_policy_loss([one, other], objective)
    assert double == pytest.approx(single)


def test_l01_token_mean_pools_the_tokens_of_all_micro_batches() -> None:
    assert of_tokens("token", [[4.0], [1.0, 1.0, 1.0]]) == pytest.approx(1.75)
    assert of_tokens("token", [[0.5] * 100, [0.3] * 900]) == pytest.approx(0.32)


def test_l02_nothing_is_divided_by_the_number_of_micro_batches() -> None:
    assert of_tokens("token", [[0.5] * 4] * 4) == pytest.approx(0.5)


def test_l03_each_optimizer_step_has_its_own_denominator() -> None:
    for lengths in ((10, 20), (30, 40)):
        assert of_tokens("token", [[1.0] * length for length in lengths]) == pytest.approx(1.0)


def test_l06_environment_tokens_are_in_neither_numerator_nor_denominator() -> None:
    tree = build_tree([[1, 2, 3, 4]], [[True, False, False, True]])
    weights = coefficients(tree, exponent=0.0, aggregation="token")
    credited = credit([group([[1, 2, 3, 4]], [1.0], masks=[[1, 0, 0, 1]])], resolve("dapo", {}))[0]
    assert credited.lengths == [2]
    assert weights @ np.array([2.0, 4.0]) / denominator(credited.lengths, aggregation="token") == 3.0


@pytest.mark.parametrize(("preset", "loss"), [("grpo", 0.0), ("dapo", 0.35350), ("lambda_grpo", 0.35350)])
def test_l09_value_of_each_loss_type(preset: str, loss: float) -> None:
    found, gradient = on_policy_loss([group([[3] * 2, [4] * 6], [1.0, 0.0])], resolve(preset, {}))
    assert found == pytest.approx(loss, abs=1e-5)
    assert all(gradient)


def test_l09_constant_length_divides_by_trajectories_times_maximum() -> None:
    objective = Objective(aggregation="constant", max_completion_tokens=8)
    found, gradient = on_policy_loss([group([[3] * 2, [4] * 6], [1.0, 0.0])], objective)
    assert found == pytest.approx(0.17675, abs=1e-5)
    assert all(gradient)


def test_l12_advantages_follow_their_answer_in_any_order() -> None:
    first, second = group([[3], [4]], [1.0, 0.0]), group([[3], [4]], [0.0, 1.0], prompt=(9,))
    _, gradient = on_policy_loss([first, second], resolve("dapo", {}))
    assert [-4 * slope for slope in gradient] == pytest.approx([0.70701, -0.70701, -0.70701, 0.70701], abs=1e-5)
    _, swapped = on_policy_loss([second, first], resolve("dapo", {}))
    assert swapped == gradient[2:] + gradient[:2]


def test_empty_answer_counts_as_a_trajectory_and_adds_nothing() -> None:
    rows, rewards = [[], [5, 6]], [0.0, 1.0]
    credited = credit([group(rows, rewards)], resolve("grpo", {}))[0]
    assert credited.lengths == [0, 2]
    assert credited.coefficients.tolist() == [0.5, 0.5]
    assert credited.advantages.tolist() == pytest.approx([0.70701] * 2, abs=1e-5)
    assert denominator([0, 2], aggregation="sequence") == 2.0
    assert denominator([0, 2], aggregation="token") == 2.0
    assert denominator([0, 2], aggregation="constant", max_completion_tokens=10) == 20.0


def test_denominator_of_nothing_is_zero() -> None:
    for aggregation in ("token", "sequence"):
        assert denominator([], aggregation=aggregation) == 0.0


@pytest.mark.parametrize("preset", PRESETS)
def test_order_of_the_trajectories_permutes_their_credit(preset: str) -> None:
    objective = resolve(preset, {}, max_new_tokens=8)
    forward, backward = (credit([group(G01[::s], G01_REWARDS[::s])], objective)[0] for s in (1, -1))
    for field in ("advantages", "coefficients"):
        for number in range(3):
            np.testing.assert_allclose(
                getattr(forward, field)[forward.tree.trajectory == number],
                getattr(backward, field)[backward.tree.trajectory == 2 - number],
            )
