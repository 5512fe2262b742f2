"""Bias, exactly: on a policy whose answers can be written down, which estimators have the true gradient as their mean.

And what holds for every group: a rule doesn't see the order of answers, its advantages balance, and on policy all trust
regions have one gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bias_variance import RULES, UNBIASED, objective
from token_trees import END, TokenTree, all_groups, estimates, grow, moments, random_tree, trajectory
from treewise.axes import Objective
from treewise.axes.advantage import ADVANTAGES, LeaveOneOut, Segments, TreeRLOO
from treewise.axes.aggregation import Aggregation, denominator
from treewise.axes.ratio import RATIOS
from treewise.axes.trust_region import TRUST_REGIONS as REGIONS
from treewise.axes.trust_region import Clip, LogClip, Tokens
from treewise.credit import CreditedGroup, credit
from treewise.objective import loss, token_terms
from treewise.presets import PRESETS, resolve
from treewise.types import FloatArray, Group, Problem

GRADED = random_tree(0, last=(0, 1))  # 11 answers of 1 to 3 tokens, rewards in [0, 1]
BINARY = random_tree(0, last=(0, 1), binary=True)
PLAIN = Objective(scale="none", aggregation="constant", max_completion_tokens=GRADED.limit)


def mean_of(
    chosen: Objective, size: int, *, tree: TokenTree = GRADED, aggregation: Aggregation = "constant"
) -> FloatArray:
    """[L] the estimator's expectation, times the longest answer's tokens."""
    groups = all_groups(tree.probabilities, size)
    assert groups.exact
    assert groups.weights.sum() == pytest.approx(1, abs=1e-12)
    values = estimates(tree, groups.members, chosen, [aggregation])[aggregation]
    mean: FloatArray = groups.weights @ values * tree.limit
    return mean


def residual(mean: FloatArray, truth: FloatArray) -> float:
    """What a factor can't repair, relative to the truth."""
    scale = mean @ truth / (truth @ truth)
    return float(np.linalg.norm(mean / scale - truth) / np.linalg.norm(truth))


def test_the_true_gradient_is_that_of_the_expected_reward_by_autograd() -> None:
    chances = {(): (0.2, 0.5, 0.3), (1,): (0.6, 0.4, 0.0), (2,): (0.1, 0.0, 0.9)}
    rewards = {(0,): 0.3, (1, 0): 1.0, (1, 1): 0.25, (2, 0): 0.0, (2, 2): 0.8}
    tree = grow(chances.__getitem__, rewards.__getitem__, limit=2)
    logits = {
        prefix: torch.tensor([p for p in row if p], dtype=torch.float64).log().requires_grad_()
        for prefix, row in chances.items()
    }
    expected = torch.zeros((), dtype=torch.float64)
    for answer, reward in rewards.items():
        probability = torch.ones((), dtype=torch.float64)
        for t, token in enumerate(answer):
            place = [k for k, p in enumerate(chances[answer[:t]]) if p].index(token)
            probability = probability * logits[answer[:t]].softmax(0)[place]
        expected = expected + probability * reward
    gradients = torch.autograd.grad(expected, list(logits.values()))
    np.testing.assert_allclose(tree.truth, torch.cat(gradients).numpy(), atol=1e-15)


def test_the_groups_are_all_groups() -> None:
    found = all_groups(np.array([0.5, 0.3, 0.2]), 2)
    assert dict(zip(map(tuple, found.members.tolist()), found.weights, strict=True)) == pytest.approx(
        {(0, 0): 0.25, (0, 1): 0.3, (0, 2): 0.2, (1, 1): 0.09, (1, 2): 0.12, (2, 2): 0.04}
    )


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize(
    "rule", [LeaveOneOut(), *(TreeRLOO(kappa) for kappa in (0.0, 0.5, 1.0, 3.0))], ids=lambda rule: str(rule)
)
def test_leave_one_out_and_prefix_leave_one_out_are_unbiased(rule: LeaveOneOut | TreeRLOO, size: int) -> None:
    np.testing.assert_allclose(mean_of(replace(PLAIN, advantage=rule), size), GRADED.truth, rtol=0, atol=1e-10)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_dr_grpo_is_unbiased_up_to_its_factor(size: int) -> None:
    np.testing.assert_allclose(
        mean_of(objective("Dr. GRPO", 3), size), GRADED.truth * (size - 1) / size, rtol=0, atol=1e-10
    )


def by_autograd(chosen: Objective, size: int) -> FloatArray:
    """[L] the expectation of the gradient that the objective's own loss has, through its ratio and trust region."""
    groups = all_groups(GRADED.probabilities, size)
    total = np.zeros(len(GRADED.slopes))
    for members, weight in zip(groups.members, groups.weights, strict=True):
        (credited,) = credit([Group(Problem("", ""), tuple(GRADED.outcomes[k] for k in members))], chosen)
        logprobs = torch.zeros(len(credited.advantages), dtype=torch.float64, requires_grad=True)
        terms = token_terms(
            logprobs,
            advantages=torch.tensor(credited.advantages),
            old_logprobs=logprobs.detach(),
            sampler_logprobs=logprobs.detach(),
            ref_logprobs=None,
            trajectory=torch.tensor(credited.tree.trajectory),
            objective=chosen,
        )
        divisor = denominator(
            credited.lengths, aggregation=chosen.aggregation, max_completion_tokens=chosen.max_completion_tokens
        )
        (slopes,) = torch.autograd.grad(loss(terms, torch.tensor(credited.coefficients / divisor)), logprobs)
        total -= weight * (slopes.numpy() @ GRADED.slopes[np.concatenate([GRADED.edges[k] for k in members])])
    return total


def test_the_rloo_preset_is_unbiased_although_its_aggregation_divides_by_lengths() -> None:
    # The ratio of the whole answer stands at each of its tokens, so 1/length is made good. A constant isn't.
    np.testing.assert_allclose(by_autograd(resolve("rloo", {"kl_coef": 0.0}), 3), GRADED.truth, rtol=0, atol=1e-10)
    with pytest.raises(ValueError, match="a long answer would count by its length"):
        resolve("rloo", {"kl_coef": 0.0, "aggregation": "constant"}, max_new_tokens=3)
    constant = replace(resolve("rloo", {"kl_coef": 0.0}), aggregation="constant", max_completion_tokens=3)
    assert residual(by_autograd(constant, 3), GRADED.truth) > 0.05


def with_lost_verdicts(chances: FloatArray) -> TokenTree:
    """Every answer once with its verdict and once without, which happens with the given chance."""
    lost = [replace(t, reward=None, cause="lost") for t in GRADED.outcomes]
    kept = GRADED.probabilities * (1 - chances)
    return replace(
        GRADED,
        outcomes=[*GRADED.outcomes, *lost],
        probabilities=np.concatenate([kept, GRADED.probabilities * chances]),
        edges=GRADED.edges * 2,
    )


def means_by_verdicts(tree: TokenTree, rule: LeaveOneOut | TreeRLOO, size: int) -> dict[int, FloatArray]:
    """The expectation given how many of a group's answers have a verdict."""
    groups = all_groups(tree.probabilities, size)
    values = estimates(tree, groups.members, replace(PLAIN, advantage=rule), ["constant"])["constant"]
    verdicts = (groups.members < len(GRADED.outcomes)).sum(1)
    return {
        count: groups.weights[verdicts == count]
        @ values[verdicts == count]
        * tree.limit
        / groups.weights[verdicts == count].sum()
        for count in range(size + 1)
    }


@pytest.mark.parametrize("rule", [LeaveOneOut(), TreeRLOO(1.0)], ids=lambda rule: str(rule))
def test_verdicts_lost_at_random_leave_it_unbiased_for_every_number_of_verdicts_above_one(
    rule: LeaveOneOut | TreeRLOO,
) -> None:
    # So whatever D the number of verdicts makes, over however many groups, the direction stays exact.
    means = means_by_verdicts(with_lost_verdicts(np.full(11, 0.3)), rule, 3)
    for count in (0, 1):
        np.testing.assert_array_equal(means[count], 0.0)
    for count in (2, 3):
        np.testing.assert_allclose(means[count], GRADED.truth, rtol=0, atol=1e-10)


def test_verdicts_lost_by_length_bias_it() -> None:
    chances = np.array([0.6 if len(edges) == 3 else 0.0 for edges in GRADED.edges])
    assert residual(means_by_verdicts(with_lost_verdicts(chances), LeaveOneOut(), 3)[2], GRADED.truth) > 0.05


@pytest.mark.parametrize("rule", [name for name in RULES if name not in (*UNBIASED, "Dr. GRPO")])
def test_no_factor_makes_the_other_rules_unbiased(rule: str) -> None:
    assert residual(mean_of(objective(rule, 3), 4), GRADED.truth) > 0.05


def test_segments_are_biased_unless_one_holds_the_answer() -> None:
    for tokens in (1, 2):
        assert residual(mean_of(replace(PLAIN, advantage=Segments(tokens)), 4), GRADED.truth) > 0.05
    assert residual(mean_of(replace(PLAIN, advantage=Segments(3)), 4), GRADED.truth) < 1e-10


@pytest.mark.parametrize("aggregation", ["token", "sequence"])
@pytest.mark.parametrize("rule", ["RLOO", "tree_rloo, κ = 1", "Dr. GRPO", "GRPO"])
def test_a_normaliser_that_depends_on_the_answers_biases_every_rule(rule: str, aggregation: Aggregation) -> None:
    assert residual(mean_of(objective(rule, 3), 4, aggregation=aggregation), GRADED.truth) > 0.05


def test_the_bias_of_the_token_mean_fades_with_the_batch_and_that_of_the_sequence_mean_does_not() -> None:
    groups = all_groups(GRADED.probabilities, 2)
    lengths = np.array([len(edges) for edges in GRADED.edges])[groups.members].sum(1)
    values = estimates(GRADED, groups.members, objective("RLOO", 3), ["token", "sequence"])

    def bias(sums: FloatArray, divisors: FloatArray, batch: int) -> float:
        """The residual with D pooled over a batch of groups: every batch is enumerated."""
        total, weights, divisor = np.zeros((1, 1)), np.ones(1), np.zeros(1)
        for _ in range(batch):
            total = (total[:, None] + sums).reshape(-1, sums.shape[1])
            weights = (weights[:, None] * groups.weights).ravel()
            divisor = (divisor[:, None] + divisors).ravel()
        return residual((weights / divisor) @ total, GRADED.truth)

    token = [bias(values["token"] * lengths[:, None], lengths, batch) for batch in (1, 2, 3)]
    assert token[0] > 1.7 * token[1] > 2.4 * token[2] > 0
    sequence = [bias(values["sequence"] * 2, np.full(len(lengths), 2), batch) for batch in (1, 2)]
    assert sequence[0] == pytest.approx(sequence[1], rel=1e-9)
    assert sequence[0] > 0.3


@pytest.mark.parametrize("size", [3, 4])
def test_with_rewards_of_two_values_the_std_is_only_a_factor(size: int) -> None:
    # An advantage that depends on the rewards only is, on average, one of two numbers. Not so for prefix weights.
    assert residual(mean_of(objective("GRPO", 3), size, tree=BINARY), BINARY.truth) < 1e-10
    assert residual(mean_of(objective("λ-GRPO, p = 1", 3), size, tree=BINARY), BINARY.truth) > 0.02


def test_two_answers_have_no_tree_to_speak_of() -> None:
    # A shared token has the sum a₁ + a₂ = 0 whatever its weight, and the only other answer is every baseline.
    members = all_groups(GRADED.probabilities, 2).members

    def values(rule: str) -> FloatArray:
        return estimates(GRADED, members, objective(rule, 3), ["constant"])["constant"]

    for rule, same in [("λ-GRPO, p = 1", "GRPO"), *((rule, "RLOO") for rule in UNBIASED)]:
        np.testing.assert_allclose(values(rule), values(same), rtol=0, atol=1e-12)


def test_the_moments_tell_the_factor_from_the_bias() -> None:
    groups = all_groups(GRADED.probabilities, 3)
    values = estimates(GRADED, groups.members, objective("Dr. GRPO", 3), ["constant"])["constant"]
    found = moments(GRADED, groups, values, "constant")
    assert (found.cosine, found.scale, found.residual) == pytest.approx((1, 2 / 3, 0), abs=1e-12)
    assert found.variance == pytest.approx(moments(GRADED, groups, 7 * values, "constant").variance)


# Any groups.
ANSWERS = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)
REWARDS = st.integers(0, 4).map(lambda quarter: quarter / 4)


@st.composite
def groups_of_answers(draw: st.DrawFn, *, missing: bool = False, at_least: int = 2) -> Group:
    """Answers with rewards, two scores each, and step rewards here and there."""
    rows = draw(st.lists(st.tuples(ANSWERS, REWARDS, REWARDS), min_size=at_least, max_size=6))
    found = []
    for answer, reward, score in rows:
        lost = missing and draw(st.booleans()) and draw(st.booleans())
        steps = ((1, score), (len(answer), reward - score)) if draw(st.booleans()) and len(answer) > 1 else ()
        scores = {"right": None if lost else reward, "short": None if lost else score}
        found.append(replace(trajectory(answer, None if lost else reward), scores=scores, steps=steps))
    return Group(Problem("", ""), tuple(found))


@given(groups_of_answers())
def test_prefix_leave_one_out_gives_a_node_its_value_over_its_parents(group: Group) -> None:
    (credited,) = credit([group], replace(PLAIN, advantage=TreeRLOO(0.0)))
    answers = [tuple(t.tokens[1:].tolist()) for t in group.trajectories]
    rewards = [float(t.reward) for t in group.trajectories if t.reward is not None]
    assume(max(rewards) > min(rewards))
    starts = [0, *accumulate(map(len, answers))]

    def through(prefix: tuple[int, ...]) -> list[int]:
        return [k for k, answer in enumerate(answers) if answer[: len(prefix)] == prefix]

    for child in {answer[: t + 1] for answer in answers for t in range(len(answer))}:
        inside, around = through(child), through(child[:-1])
        if len(around) < 2:
            continue
        total = sum(credited.advantages[starts[k] + len(child) - 1] for k in inside)
        gain = np.mean([rewards[k] for k in inside]) - np.mean([rewards[k] for k in around])
        assert total == pytest.approx(len(inside) * len(around) / (len(around) - 1) * gain, abs=1e-9)


def test_prefix_leave_one_out_refuses_branched_groups() -> None:
    group = Group(Problem("", ""), (trajectory((1, END), 1.0), trajectory((1, 2), 0.0)), branched=True)
    with pytest.raises(ValueError, match="drawn independently"):
        credit([group], resolve("tree_rloo", {}, max_new_tokens=4))


def per_answer(credited: CreditedGroup) -> dict[int, FloatArray]:
    """[2, length] advantages and coefficients by the identity of the trajectory."""
    values = np.array([credited.advantages, credited.coefficients])
    return {id(t): values[:, credited.tree.trajectory == k] for k, t in enumerate(credited.trajectories)}


@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=10)
@given(groups=st.lists(groups_of_answers(missing=True), min_size=1, max_size=3), data=st.data())
def test_credit_does_not_depend_on_the_order_of_answers_or_groups(
    preset: str, groups: Sequence[Group], data: st.DataObject
) -> None:
    chosen = resolve(preset, {}, max_new_tokens=5)
    mixed = [replace(g, trajectories=tuple(data.draw(st.permutations(g.trajectories)))) for g in groups]
    order = data.draw(st.permutations(range(len(groups))))
    before = [per_answer(c) for c in credit(groups, chosen)]
    after = [per_answer(c) for c in credit([mixed[k] for k in order], chosen)]
    for place, number in enumerate(order):
        assert before[number].keys() == after[place].keys()
        for key, values in before[number].items():
            np.testing.assert_allclose(after[place][key], values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name in ADVANTAGES if name != "return_to_go"])
@settings(max_examples=20)
@given(group=groups_of_answers())
def test_the_first_tokens_advantages_of_a_group_sum_to_zero(name: str, group: Group) -> None:
    # Further down they do so only for rules with one advantage an answer.
    (credited,) = credit([group], replace(PLAIN, advantage=ADVANTAGES[name]()))
    first = np.unique(credited.tree.trajectory, return_index=True)[1]
    assert credited.advantages[first].sum() == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("rule", ["group_mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["std", "none", "batch_std"])
@settings(max_examples=20)
@given(groups=st.lists(groups_of_answers(missing=True), min_size=1, max_size=3))
def test_advantages_of_answers_sum_to_zero_in_every_group(rule: str, scale: str, groups: list[Group]) -> None:
    chosen = replace(PLAIN, advantage=ADVANTAGES[rule](), scale=scale)  # type: ignore[arg-type]
    for credited in credit(groups, chosen):
        first = np.unique(credited.tree.trajectory, return_index=True)[1]
        assert credited.advantages[first].sum() == pytest.approx(0, abs=1e-9)


# What the gradient on log π of a token is at ρ = 1, from the advantages of its answer. A detached weight leaves the
# token its own; a ratio of the answer gives each token the answer's mean (geometric) or sum (product).
OWN, MEAN, SUM = "own", "mean", "sum"
ON_POLICY = {
    **{(region, ratio): OWN for region in ("none", "clip", "sapo") for ratio in ("token", "sequence_token")},
    **{(region, "sequence"): MEAN for region in ("none", "clip", "sapo")},
    **{(region, "product"): SUM for region in ("none", "clip", "sapo")},
    **{("cispo", ratio): OWN for ratio in RATIOS},
    ("log_clip", "token"): MEAN,
    ("dppo", "token"): OWN,
    ("vespo", "product"): OWN,
}


@st.composite
def tokens_on_policy(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probs, advantages and the trajectory of each token."""
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    number = st.floats(-3, 3)
    logprobs = draw(st.lists(st.floats(-6, 0), min_size=sum(lengths), max_size=sum(lengths)))
    advantages = draw(st.lists(number, min_size=sum(lengths), max_size=sum(lengths)))
    double = torch.float64
    return (
        torch.tensor(logprobs, dtype=double),
        torch.tensor(advantages, dtype=double),
        torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)),
    )


@pytest.mark.parametrize(("region", "ratio"), ON_POLICY)
@settings(max_examples=20)
@given(batch=tokens_on_policy())
def test_on_policy_every_trust_region_has_the_gradient_of_the_unclipped_form(
    region: str, ratio: str, batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
) -> None:
    old, advantages, owner = batch
    logprobs = old.clone().requires_grad_()
    tokens = Tokens(logprobs, old, advantages, owner, RATIOS[ratio](logprobs - old, owner))
    surrogate = REGIONS[region]()(tokens)
    (gradient,) = torch.autograd.grad(surrogate.values.sum(), logprobs)
    totals = torch.zeros(int(owner.max()) + 1, dtype=torch.float64).index_add(0, owner, advantages)[owner]
    expected = {OWN: advantages, SUM: totals, MEAN: totals / owner.bincount()[owner]}[ON_POLICY[region, ratio]]
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-12)
    assert not surrogate.clipped.any()


def test_on_policy_the_values_of_trust_regions_differ() -> None:
    old, owner = torch.tensor([-0.5, -2.0], dtype=torch.float64), torch.tensor([0, 0])
    tokens = Tokens(old, old, torch.tensor([1.0, -1.0], dtype=torch.float64), owner, old * 0)
    values = {name: REGIONS[name]()(tokens).values.tolist() for name in REGIONS}
    for name in ("none", "clip", "log_clip"):
        assert values[name] == [1.0, -1.0]
    for name in ("cispo", "dppo", "vespo"):
        assert values[name] == [-0.5, 2.0]
    assert values["sapo"] == pytest.approx([2 / 1.0, -2 / 1.05])
    assert Clip(clip_max=4.0)(tokens).values.tolist() == values["clip"]
    assert LogClip()(tokens).values.tolist() == values["none"]
