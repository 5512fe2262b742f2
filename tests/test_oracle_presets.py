"""The presets' reference against numbers worked out by hand, so that it can be trusted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, stdev

import pytest
import torch

import oracle_presets as oracle
from oracle_presets import PRESETS, Answer, Batch, examples

NAN = math.nan
Z = 0.5 / (math.sqrt(0.5) + 1e-4)  # 0.70701, the advantage of the better of two answers


def answer(
    completion: Sequence[int],
    reward: float | None,
    *,
    new: Sequence[float] | None = None,
    old: Sequence[float] | None = None,
    sampler: Sequence[float] | None = None,
    ref: Sequence[float] | None = None,
    entropy: Sequence[float] | None = None,
    mask: Sequence[int] | None = None,
    scores: dict[str, float | None] | None = None,
    steps: Sequence[tuple[int, float]] = (),
) -> Answer:
    """An answer from probabilities, not their logarithms; without them every probability is ½."""
    mask = [1] * len(completion) if mask is None else mask
    new = [0.5] * sum(mask) if new is None else new
    old = new if old is None else old
    return Answer(
        prompt=[7, 7],
        completion=list(completion),
        mask=list(mask),
        reward=reward,
        logp=[torch.tensor(math.log(p), dtype=torch.float64, requires_grad=True) for p in new],
        old=[math.log(p) for p in old],
        sampler=[math.log(p) for p in (old if sampler is None else sampler)],
        ref=[math.log(p) for p in (old if ref is None else ref)],
        entropy=[0.0] * len(new) if entropy is None else list(entropy),
        scores=scores or {},
        steps=list(steps),
    )


def pair() -> Batch:
    """Two answers that share their first token: lengths 2 and 3, rewards 1 and 0.

    ratios π/π_old          1.5  0.5          | 1.5     0.5  1
    π_ref/π                 0.5  2            | 0.5     2    0.5
    π_old/π_sampler         0.8  10           | 0.4444  ?    1
    π/π_sampler             1.2  5            | 0.6667  0.5  1
    """
    return Batch(
        [
            [
                answer(
                    [1, 2],
                    1.0,
                    new=[0.6, 0.2],
                    old=[0.4, 0.4],
                    sampler=[0.5, 0.04],
                    ref=[0.3, 0.4],
                    entropy=[0.1, 0.9],
                    scores={"right": 1.0, "short": 0.0},
                ),
                answer(
                    [1, 3, 4],
                    0.0,
                    new=[0.6, 0.2, 0.5],
                    old=[0.4, 0.4, 0.5],
                    sampler=[0.9, NAN, 0.5],
                    ref=[0.3, 0.4, 0.25],
                    entropy=[0.2, 0.3, 0.4],
                    scores={"right": 0.0, "short": None},
                ),
            ]
        ],
        max_completion_tokens=8,
        weights={"right": 1.0, "short": 2.0},
        preference=torch.tensor(1.0, dtype=torch.float64, requires_grad=True),
    )


LN2 = math.log(2)
LOG_A = math.log(0.6) + math.log(0.2)
LOG_B = LOG_A + math.log(0.5)
K3_A = (0.5 + LN2 - 1) + (2 - LN2 - 1)  # 0.5
K3_B = K3_A + (0.5 + LN2 - 1)
K2 = LN2**2 / 2
# REINFORCE++'s returns of the five tokens, with log π_old/π_ref = log 4/3, 0 | log 4/3, 0, log 2, and whitened.
RETURNS = [1 - 0.001 * math.log(4 / 3), 1.0, -0.001 * math.log(8 / 3), -0.001 * LN2, -0.001 * LN2]
WHITE = [(value - fmean(RETURNS)) / (stdev(RETURNS) + 1e-4) for value in RETURNS]

# With a = ±Z and the clip 0.2/0.2 the two answers' tokens are 1.2, 0.5 (times a) and 1.5, 0.8, 1 (times −a).
HAND = {
    "grpo": -(1.7 / 2 - 3.3 / 3) * Z / 2,
    "deepseek_math": -(1.7 / 2 - 3.3 / 3) * Z / 2 + 0.04 * (K3_A / 2 + K3_B / 3) / 2,
    # No step rewards: each outcome is one step at the last token.
    "grpo_process": -(1.7 / 2 - 3.3 / 3) * Z / 2 + 0.04 * (K3_A / 2 + K3_B / 3) / 2,
    "dr_grpo": -(1.7 - 3.3) * 0.5 / 16,
    "dapo": -(1.78 - 3.3) * Z / 5,
    "lambda_grpo": -((0.6 + 0.5) - (0.75 + 0.8 + 1)) * Z / 5,
    "process": -(0.5 - (0.8 + 1)) * Z / 5,  # the shared token has the group's mean
    # The token that leaves the prefix has the outcome twice.
    "tempo": -((1.28 + 2 * 0.5) - (1.5 + 2 * 0.8 + 1)) * Z / 5,
    "treerl": -(1.0 * 0.5 - (1.0 * 0.8 + 0.5 * 1)) / 5,
    "spo": -(1.7 - 3.3) * 0.5 / 5,
    "tree_rloo": -(1.7 - 3.3) * 1.0 / 16,
    "gspo": -(math.sqrt(0.75) - 0.9997) * Z / 2,
    "gspo_token": -(math.sqrt(0.75) - 0.9997) * Z / 2,
    "cispo": -(
        (1.5 * math.log(0.6) + 0.5 * math.log(0.2)) - (1.5 * math.log(0.6) + 0.5 * math.log(0.2) + 1 * math.log(0.5))
    )
    * Z
    / 5,
    # log 1.5 = 0.405 is cut to 0.4 for the better answer, log 0.5 to −0.4 for the worse one.
    "gmpo": -(math.exp((0.4 - LN2) / 2) - math.exp((math.log(1.5) - 0.4) / 3)) * Z / 2,
    # The gate is symmetric around ρ = 1, and so are the ratios.
    "sapo": -(2.0 - 2 / 1.05) * Z / 2,
    "rloo": 0.0,  # both ratio products are 0.75
    "maxrl": -(1.7 - 3.3) / 5,
    "gdpo": -(1.7 / 2 - 3.3 / 3) * (Z / (Z * math.sqrt(2) + 1e-4)) / 2,
    "luspo": -(2 * math.sqrt(0.75) - 3 * 0.998) * Z / 2,
    "intellect_2": -(1.7 - 3.3) * Z / 5 + 0.001 * (K3_A + K3_B) / 5,
    "dppo": -(1.2 * math.log(0.6) - 1 * math.log(0.5)) * 0.5 / 16,  # the other three moved too far
    "dppo_kl": -(1.2 * math.log(0.6) - 1 * math.log(0.5)) * 0.5 / 16,
    "vespo": -(36 * math.exp(3 * -5) * LOG_A - math.exp(2 * 2 / 3) / 27 * LOG_B) * 0.5 / 5,
    "top_entropy": -0.5 * Z / 5,  # the threshold is 0.5: only the token with 0.9
    "token_preference": -(1.7 * 2 / (1 + math.exp(2 / 9)) - 3.3 * 2 / (1 + math.exp(-2 / 9))) * Z / 5,
    "tis": -((0.8 * 1.2 + 2 * 0.5) - (4 / 9 * 1.5 + 0.8 + 1)) * Z / 5,
    "icepop": -((0.8 * 1.2 + 0) / 2 - (0 + 0.8 + 1) / 3) * Z / 2,
    "reinforce_pp": -((1.2 * WHITE[0] + 0.5 * WHITE[1]) / 2 + (1.5 * WHITE[2] + 0.8 * WHITE[3] + 1 * WHITE[4]) / 3) / 2,
    "reinforce_pp_baseline": -(1.7 / 2 - 3.3 / 3) * Z / 2 + 0.001 * (K2 + K2) / 2,
}


@pytest.mark.parametrize("name", HAND)
def test_two_answers_give_the_loss_worked_out_by_hand(name: str) -> None:
    assert PRESETS[name](pair()).item() == pytest.approx(HAND[name], abs=1e-12)


def slopes(name: str, batch: Batch) -> list[list[float]]:
    """∂loss/∂log π of every token of the first group's answers."""
    PRESETS[name](batch).backward()
    return [[0.0 if logp.grad is None else logp.grad.item() for logp in row.logp] for row in batch.groups[0]]


A_TAU, B_TAU = 0.5, 0.525  # τ·(ρ − 1) of the ratios 1.5 and 0.5
ROOT_A, ROOT_B = math.sqrt(0.75), math.exp((math.log(1.5) - 0.4) / 3)

# By hand, what multiplies ∇log π; a clipped token has none.
GRADIENTS: dict[str, list[list[float]]] = {
    "grpo": [[0, -0.5 * Z / 4], [1.5 * Z / 6, 0, Z / 6]],
    "deepseek_math": [
        [0.04 * 0.5 / 4, -0.5 * Z / 4 + 0.04 * -1 / 4],
        [1.5 * Z / 6 + 0.04 * 0.5 / 6, 0.04 * -1 / 6, Z / 6 + 0.04 * 0.5 / 6],
    ],
    "gspo": [[-ROOT_A * Z / 4] * 2, [0, 0, 0]],
    "gspo_token": [[-ROOT_A * Z / 4] * 2, [0, 0, 0]],
    "luspo": [[-ROOT_A * Z / 2] * 2, [0, 0, 0]],
    "cispo": [[-1.5 * Z / 5, -0.5 * Z / 5], [1.5 * Z / 5, 0.5 * Z / 5, Z / 5]],
    "gmpo": [[0, -math.exp((0.4 - LN2) / 2) * Z / 4], [ROOT_B * Z / 6, 0, ROOT_B * Z / 6]],
    "sapo": [
        [-1.5 / math.cosh(A_TAU / 2) ** 2 * Z / 4, -0.5 / math.cosh(A_TAU / 2) ** 2 * Z / 4],
        [1.5 / math.cosh(B_TAU / 2) ** 2 * Z / 6, 0.5 / math.cosh(B_TAU / 2) ** 2 * Z / 6, Z / 6],
    ],
    # R = 1 − 0.05·log(4/3) and −0.05·(log(4/3) + log 2): the advantages are ±(1 + 0.05·log 2).
    "rloo": [[-0.75 * (1 + 0.05 * LN2) / 2] * 2, [0.75 * (1 + 0.05 * LN2) / 2] * 3],
    "reinforce_pp_baseline": [
        [0.001 * LN2 / 4, -0.5 * Z / 4 - 0.001 * LN2 / 4],
        [1.5 * Z / 6 + 0.001 * LN2 / 6, -0.001 * LN2 / 6, Z / 6 + 0.001 * LN2 / 6],
    ],
    "dppo": [[-1.2 * 0.5 / 16, 0], [0, 0, 0.5 / 16]],
    "vespo": [[-18 * math.exp(-15) / 5] * 2, [math.exp(4 / 3) / 54 / 5] * 3],
    "tis": [[0, -2 * 0.5 * Z / 5], [4 / 9 * 1.5 * Z / 5, 0, Z / 5]],
    "icepop": [[0, 0], [0, 0, Z / 6]],
    "top_entropy": [[0, -0.5 * Z / 5], [0, 0, 0]],
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_two_answers_give_the_gradient_worked_out_by_hand(name: str) -> None:
    for found, expected in zip(slopes(name, pair()), GRADIENTS[name], strict=True):
        assert found == pytest.approx(expected, abs=1e-12)


def test_preference_has_the_gradient_of_the_softmax() -> None:
    batch = pair()
    PRESETS["token_preference"](batch).backward()
    assert batch.preference is not None
    assert batch.preference.grad is not None

    def by_hand(power: float) -> float:
        short, long = math.exp((8 / 9) ** power), math.exp((10 / 9) ** power)
        return -2 * (1.7 * short - 3.3 * long) / (short + long) * Z / 5

    assert batch.preference.grad.item() == pytest.approx((by_hand(1 + 1e-6) - by_hand(1 - 1e-6)) / 2e-6, rel=1e-6)


def one(rows: list[Answer], **options: float) -> Batch:
    return Batch([rows], max_completion_tokens=int(options.get("most", 8)), weights={"right": 1.0, "b": 1.0})


def test_equal_rewards_give_exactly_zero() -> None:
    for rewards in ([0.95] * 7, [0.35] * 7, [1.0] * 4):
        assert oracle.standardised(rewards) == [0.0] * len(rewards)
        assert oracle.leave_one_out(rewards) == [0.0] * len(rewards)
        rows = [answer([1, n], reward) for n, reward in enumerate(rewards)]
        for rule in (oracle.over_mean, oracle.later_steps, oracle.process_score, oracle.tempo_score):
            assert [rule(rows, row, 1) for row in rows] == [0.0] * len(rows)


def test_a_lone_failure_has_the_advantage_of_the_others_mean() -> None:
    rewards = [0.0] + [0.95] * 7
    assert oracle.leave_one_out(rewards) == pytest.approx([-0.95] + [0.95 / 7] * 7)
    assert oracle.standardised(rewards) == pytest.approx([-2.47414] + [0.35345] * 7, abs=1e-5)


def test_a_missing_verdict_is_nowhere() -> None:
    rows = [answer([1, n], reward) for n, reward in enumerate([1.0, None, 1.0, 0.0])]
    kept = oracle.scored(rows)
    found = [oracle.group_score(kept, row, 0) for row in kept]
    assert found == pytest.approx([0.57725, 0.57725, -1.15450], abs=1e-5)
    assert len(oracle.process_set(kept, kept[0], 0)) == 3
    assert oracle.token_count(one(rows)) == 6


def test_a_missing_score_leaves_its_own_reward_function_only() -> None:
    b: list[float | None] = [None, 0.0, 1.0, 1.0]
    rows = [answer([n], None, scores={"right": (1.0, 0.0, 1.0, 0.0)[n], "b": b[n]}) for n in range(4)]
    alone = [oracle.decoupled(rows, row, {"right": 1.0}) for row in rows]
    assert alone == pytest.approx([0.86588, -0.86588, 0.86588, -0.86588], abs=1e-5)
    second = [oracle.decoupled(rows, row, {"b": 1.0}) for row in rows]
    assert second == pytest.approx([0, -1.15450, 0.57725, 0.57725], abs=1e-5)
    both = [oracle.decoupled(rows, row, {"right": 1.0, "b": 0.5}) for row in rows]
    assert both == pytest.approx([x + 0.5 * y for x, y in zip(alone, second, strict=True)])
    # An answer with no weighted score isn't in the batch's statistics, nor in D.
    more = [*rows, answer([9], 1.0, scores={"other": 3.0})]
    assert PRESETS["gdpo"](one(more)).item() == PRESETS["gdpo"](one(rows)).item()


def test_process_sets_divide_each_tokens_term() -> None:
    rows = [answer([1, 2, 3], 0.0), answer([1, 2, 4, 5], 1.0), answer([9], 0.0)]
    sizes = [[len(oracle.process_set(rows, row, n)) for n in range(len(row.logp))] for row in rows]
    assert sizes == [[2, 2, 1], [2, 2, 1, 1], [1]]
    assert oracle.standardised([0.0, 1.0, 0.0]) == pytest.approx([-0.57725, 1.15450, -0.57725], abs=1e-5)
    assert PRESETS["lambda_grpo"](one(rows)).item() == pytest.approx(-0.21647, abs=1e-5)
    assert PRESETS["dapo"](one(rows)).item() == pytest.approx(-0.28863, abs=1e-5)
    assert PRESETS["grpo"](one(rows)).item() == pytest.approx(0.0, abs=1e-12)


def test_marks_split_process_sets_and_an_ended_answer_stays_in_the_set_before() -> None:
    rows = [
        answer([1, 5, 2], 1.0, mask=[1, 0, 1]),
        answer([1, 5, 3], 0.0, mask=[1, 0, 1]),
        answer([1, 5, 2], 0.0, mask=[1, 1, 1]),
        answer([1], 0.5),
        answer([1, 5], 0.25, mask=[1, 0]),
    ]
    assert [len(oracle.process_set(rows, rows[0], n)) for n in (0, 1)] == [5, 1]
    assert oracle.before(rows, rows[0], 1) == [rows[0], rows[1], rows[4]]
    assert oracle.before(rows, rows[2], 1) == rows
    assert oracle.position(rows[0], 1) == 2


def test_the_papers_worked_example_of_process_advantages() -> None:
    answers = ["ABCD", "ABEFHI", "JKLM", "JKLNQST", "JKLNQU", "VWYZ"]
    rows = [
        answer([ord(letter) for letter in letters], reward)
        for letters, reward in zip(answers, [0.5, 0.5, 1.0, 0.0, 0.0, 0.5], strict=True)
    ]
    found = [
        oracle.process_score(rows, rows[i], n) * (oracle.std(oracle.outcomes(rows)) + 1e-4) / 0.37639
        for i, n in ((0, 0), (2, 1), (2, 3), (3, 3), (3, 4), (5, 0))
    ]
    assert found == pytest.approx([0.2214, -0.2214, 1.5498, -1.1070, -1.1070, 0.2214], abs=1e-4)


def test_loss_of_two_lengths_under_each_aggregation() -> None:
    rows = [answer([1] * 2, 1.0), answer([2] * 6, 0.0)]
    assert oracle.standardised([1.0, 0.0]) == pytest.approx([0.70701, -0.70701], abs=1e-5)
    assert PRESETS["grpo"](one(rows)).item() == pytest.approx(0.0, abs=1e-12)
    assert PRESETS["dapo"](one(rows)).item() == pytest.approx(0.35350, abs=1e-5)
    # Constant length 8, without dividing the advantages by the std: 4·0.5/16.
    assert PRESETS["dr_grpo"](one(rows)).item() == pytest.approx(0.125)
    assert PRESETS["dr_grpo"](one(rows)).item() * Z / 0.5 == pytest.approx(0.17675, abs=1e-5)


def test_sequence_ratio_is_over_sampled_tokens() -> None:
    def ratio(*log_ratios: float, mask: Sequence[int]) -> float:
        new = [0.1 * math.exp(difference) for difference in log_ratios]
        return oracle.sequence_ratio(answer([1] * len(mask), 1.0, new=new, old=[0.1] * len(new), mask=mask)).item()

    assert ratio(0.1, -0.3, 0.2, mask=[1, 1, 0, 1]) == pytest.approx(1.0)
    assert ratio(0.1, -0.3, 0.5, mask=[1, 1, 1]) == pytest.approx(1.10517, abs=1e-5)


def test_correction_is_capped_and_exactly_one_where_unknown() -> None:
    row = replace(answer([1, 2], 1.0), old=[-1.0, -2.0], sampler=[-1.0, -5.0])
    assert [oracle.correction(row, n) for n in (0, 1)] == pytest.approx([1, 20.0855], abs=1e-4)
    unknown = replace(answer([1, 2, 3], 1.0), old=[-0.3, -4.0, -0.1], sampler=[-0.2, NAN, -0.1])
    assert [oracle.correction(unknown, n) for n in range(3)] == [pytest.approx(math.exp(-0.1)), 1.0, 1.0]
    other = answer([4], 0.0)
    # Group of two, on policy: a token adds its weight, 1 + 2 against 1.
    assert PRESETS["tis"](one([row_like(row), other])).item() == pytest.approx(-(1 + 2 - 1) * Z / 3)
    assert PRESETS["icepop"](one([row_like(row), other])).item() == pytest.approx(-((1 + 0) / 2 - 1) * Z / 2)


def row_like(row: Answer) -> Answer:
    """The same answer with π = π_old."""
    return replace(row, logp=[torch.tensor(old, dtype=torch.float64, requires_grad=True) for old in row.old])


def test_length_preferences() -> None:
    def weights(lengths: Sequence[int], power: float) -> list[float]:
        return [w.item() for w in oracle.preferences(lengths, torch.tensor(power, dtype=torch.float64))]

    assert weights([2, 4, 6], 0.0) == pytest.approx([1, 1, 1])
    assert weights([2, 4, 6], 1.0) == pytest.approx([0.86741, 0.99386, 1.13874], abs=1e-5)
    assert weights([2, 4, 6], -1.0) == pytest.approx([1.14851, 0.98112, 0.87037], abs=1e-5)
    assert weights([2, 4, 6], 2.0) == pytest.approx([0.74772, 0.96361, 1.28867], abs=1e-5)
    assert weights([5, 5, 5], 3.0) == [1, 1, 1]
    assert weights([4], 3.0) == [1]


def test_step_rewards_are_pooled_and_summed_from_the_token_on() -> None:
    rows = [
        answer([1, 2, 3, 4], 1.0, steps=[(1, 1.0), (2, 0.0)]),
        answer([5, 6], 0.5),  # no step rewards: 0.5 at its last token
        answer([], 0.5),
    ]
    # Pool 1, 0, 0.5, 0.5: mean 0.5, std √(1/6).
    unit = 0.5 / (math.sqrt(1 / 6) + 1e-4)
    found = [oracle.later_steps(rows, rows[0], n) for n in range(4)]
    assert found == pytest.approx([0, 0, -unit, 0])
    assert [oracle.later_steps(rows, rows[1], n) for n in (0, 1)] == [0, 0]
    # One scored trajectory has advantages as well: they come from its own steps.
    assert oracle.later_steps(rows[:1], rows[0], 2) == pytest.approx(-0.5 / (math.sqrt(0.5) + 1e-4))


def test_returns_carry_the_kl_of_later_tokens() -> None:
    row = answer([1, 9, 2, 3], 1.0, old=[0.4, 0.4, 0.4], ref=[0.2, 0.4, 0.8], mask=[1, 0, 1, 1])
    assert oracle.returns(row) == pytest.approx([1.0, 1 + 0.001 * LN2, 1 + 0.001 * LN2], abs=1e-15)
    assert oracle.returns(answer([], 1.0)) == []


def test_segments_start_with_the_group_mean_and_end_with_the_outcome() -> None:
    rows = [
        answer([1, 2, 3, 4, 5], 1.0),
        answer([1, 2, 3, 9], 0.0),
        answer([1, 2], 0.2),
        answer([8], 0.1),
    ]
    found = [[oracle.segment_advantage(rows, row, n, 2) for n in range(len(row.logp))] for row in rows]
    # R = 0.325; three answers pass the boundary after two tokens, with mean 0.4; one passes that after four.
    assert found[0] == pytest.approx([0.075, 0.075, 0.6, 0.6, 0.0])
    assert found[1] == pytest.approx([0.075, 0.075, -0.4, -0.4])
    assert found[2] == pytest.approx([-0.125, -0.125])
    assert found[3] == pytest.approx([-0.225])


def test_tree_rloo_shrinks_towards_the_group() -> None:
    rows = [answer([1, 2, 3], 1.0), answer([1, 2], 0.4), answer([1, 5], 0.0), answer([7], 0.2)]
    # Others 0.4, 0, 0.2: mean 0.2. On the branch before token 1: 0.4, 0; before token 2: 0.4.
    found = [oracle.tree_leave_one_out(rows, rows[0], n) for n in range(3)]
    assert found == pytest.approx([1 - 0.2, 1 - (2 / 3 * 0.2 + 1 / 3 * 0.2), 1 - (0.4 + 0.2) / 2])
    assert [oracle.tree_leave_one_out(rows, rows[0], n, 0.0) for n in range(3)] == pytest.approx([0.8, 0.8, 0.6])
    alone = [answer([1, 2], 1.0), answer([3], 0.0)]
    assert oracle.tree_leave_one_out(alone, alone[0], 1, 0.0) == 1.0


def test_tree_advantages_are_divided_by_the_root_of_the_leaves() -> None:
    rows = [answer([1, 2], 1.0), answer([1, 3], 0.0), answer([4], 0.0)]
    # V(root) = 1/3; V(1) = 1/2: the shared token has 2·(1/2 − 1/3) = 1/3, in two copies.
    shared = 2 * (1 / 3) / math.sqrt(2)
    left = (1 - 1 / 3) + (1 - 1 / 2)
    right = -1 / 3 - 1 / 2
    last = -1 / 3 - 1 / 3
    assert PRESETS["treerl"](one(rows)).item() == pytest.approx(-(shared + left + right + last) / 5)


@pytest.mark.parametrize(
    ("p", "q", "better", "kept"),
    [
        (0.5, 0.3, True, False),
        (0.3, 0.5, True, True),
        (0.5, 0.3, False, True),
        (0.3, 0.5, False, False),
        (0.5, 0.4, True, True),
        (0.4, 0.5, False, True),
    ],
)
def test_divergence_drops_only_what_moves_away(p: float, q: float, better: bool, kept: bool) -> None:
    rows = [answer([1], float(better), new=[p], old=[q]), answer([2, 3], float(not better))]
    sign = 0.5 if better else -0.5
    for name in ("dppo", "dppo_kl"):  # divergences 0.0872 and 0.0823, or 0.0204 and 0.0201
        assert slopes(name, one(rows))[0] == pytest.approx([-p / q * sign / 16 if kept else 0.0])
        for row in rows:
            for logp in row.logp:
                logp.grad = None


def test_binary_divergence() -> None:
    assert oracle.binary_divergence(math.log(0.5), math.log(0.4)) == pytest.approx(0.0201, abs=1e-4)
    assert oracle.binary_divergence(math.log(0.4), math.log(0.5)) == pytest.approx(0.0204, abs=1e-4)
    assert oracle.binary_divergence(0.0, 0.0) == 0.0
    assert oracle.binary_divergence(0.0, -0.1) == math.inf
    assert oracle.binary_divergence(-0.1, 0.0) == pytest.approx(0.1)
    assert oracle.binary_divergence(-1e-9, -1e-9) == pytest.approx(0.0, abs=1e-20)


def test_weights_and_ratios_stop_at_their_caps() -> None:
    def loss(name: str, ratio: float, better: bool) -> tuple[float, float]:
        rows = [answer([1], float(better), new=[0.02 * ratio], old=[0.02]), answer([2], float(not better))]
        batch = one(rows)
        value = PRESETS[name](batch).item()
        return value, slopes(name, batch)[0][0]

    # ρ = 30: CISPO's weight is 5 with either sign, INTELLECT-2's ratio 4 without a gradient.
    assert loss("cispo", 30, True)[1] == pytest.approx(-5 * Z / 2)
    assert loss("cispo", 30, False)[1] == pytest.approx(5 * Z / 2)
    value, slope = loss("intellect_2", 30, False)
    assert value == pytest.approx(-(1 - 4) * Z / 2 + 0.001 * (1 / 30 + math.log(30) - 1) / 2)
    assert slope == pytest.approx(0.001 * (1 - 1 / 30) / 2)
    assert loss("intellect_2", 3, False)[1] == pytest.approx(3 * Z / 2 + 0.001 * (1 - 1 / 3) / 2)
    # DPPO's weight: 20, where the update goes back towards the sampler.
    assert loss("dppo", 30, False)[1] == pytest.approx(20 * 0.5 / 16)


@pytest.mark.parametrize(
    ("name", "high"),
    [("grpo", 0.2), ("dapo", 0.28), ("tempo", 0.28), ("top_entropy", 0.28), ("gspo", 4e-4), ("luspo", 2.5e-3)],
)
def test_a_better_answer_stops_at_the_upper_clip(name: str, high: float) -> None:
    rows = [answer([1], 1.0, new=[0.6], old=[0.4]), answer([2], 0.0)]
    factor = 2 if name == "tempo" else 1
    assert PRESETS[name](one(rows)).item() == pytest.approx(-factor * (1 + high - 1) * Z / 2)


def test_vespo_stays_finite_at_both_ends() -> None:
    for ratio in (math.exp(-30), 1.0):
        rows = [answer([1], 1.0, new=[ratio], old=[math.exp(-29)]), answer([2], 0.0)]
        assert math.isfinite(PRESETS["vespo"](one(rows)).item())
    rows = [answer([1, 1], 1.0, new=[1e-6, 1e-6], old=[0.5, 0.5]), answer([2], 0.0)]
    weight = 1e-16 * math.exp(3 * (1 - 1e-8))  # W = 4e-12 counts as 1e-8
    assert slopes("vespo", one(rows))[0] == pytest.approx([-weight * 0.5 / 3] * 2, rel=1e-9, abs=0)


def test_whitening_over_the_batch_leaves_equal_groups_at_zero() -> None:
    rows = [[answer([1], 1.0), answer([2], 0.0)], [answer([1], 1.0), answer([2], 1.0)], [answer([3], 1.0)]]
    batch = Batch(rows, 8)
    # Centred 0.5, −0.5, 0, 0, 0: std √(0.5/4).
    PRESETS["reinforce_pp_baseline"](batch).backward()
    found = [row.logp[0].grad.item() for group in rows for row in group if row.logp[0].grad is not None]
    unit = 0.5 / (math.sqrt(0.125) + 1e-4) / 5
    assert found == pytest.approx([-unit, unit, 0, 0, 0])


def test_an_empty_answer_counts_as_a_trajectory() -> None:
    rows = [answer([], 0.0), answer([1, 2], 1.0)]
    assert PRESETS["grpo"](one(rows)).item() == pytest.approx(-Z / 2)
    assert PRESETS["gspo"](one(rows)).item() == pytest.approx(-Z / 2)
    assert PRESETS["dr_grpo"](one(rows)).item() == pytest.approx(-0.5 * 2 / 16)
    assert PRESETS["dapo"](one(rows)).item() == pytest.approx(-Z)


def test_masked_tokens_are_neither_in_the_loss_nor_in_the_divisor() -> None:
    rows = [answer([1, 8, 8, 2], 1.0, mask=[1, 0, 0, 1]), answer([3], 0.0)]
    assert PRESETS["dapo"](one(rows)).item() == pytest.approx(-(2 - 1) * Z / 3)


def gradients(name: str, batch: Batch) -> list[float]:
    PRESETS[name](batch).backward()
    every = [logp for group in batch.groups for row in group for logp in row.logp]
    return [0.0 if logp.grad is None else logp.grad.item() for logp in every]


@pytest.mark.parametrize("copies", ["differ", "agree"])
@pytest.mark.parametrize("name", PRESETS)
def test_examples_are_finite_and_have_a_gradient(name: str, copies: str) -> None:
    sizes = []
    for batch in examples(copies="agree" if copies == "agree" else "differ"):
        assert math.isfinite(PRESETS[name](batch).item())
        found = gradients(name, batch)
        assert all(math.isfinite(value) for value in found)
        sizes.append(max(map(abs, found), default=0.0))
    assert sum(size > 1e-3 for size in sizes) >= 6
    assert sizes[-2:] == [0.0, 0.0]  # no token that counts


def test_gspo_token_equals_gspo_where_the_advantage_is_constant() -> None:
    for number in range(len(examples())):
        found, expected = gradients("gspo_token", examples()[number]), gradients("gspo", examples()[number])
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_process_advantages_change_nothing_on_policy() -> None:
    """Theorem 1: at ratio 1 the sum over a process set is the same with r_i and with the set's mean."""
    on_policy = examples(copies="agree")[3]
    assert all(
        logp.item() == old for row in oracle.everyone(on_policy) for logp, old in zip(row.logp, row.old, strict=True)
    )
    loss = PRESETS["process"](on_policy).item()
    assert loss == pytest.approx(PRESETS["dapo"](on_policy).item(), rel=1e-12)
    assert loss != 0


def test_examples_reach_every_clip_and_mask_in_both_directions() -> None:
    seen: Counter[str] = Counter()
    for batch in examples():
        for rows, row, n, a in oracle.tokens(batch, oracle.group_score):
            sign = "+" if a > 0 else "-" if a < 0 else "0"
            ratio, k = oracle.token_ratio(row, n).item(), oracle.correction(row, n)
            log_p, log_q = row.logp[n].item(), oracle.behaviour(row, n)
            moved = math.exp(log_p) - math.exp(log_q)
            divergence = oracle.binary_divergence(log_p, log_q)
            whole = sum(row.logp[m].item() - oracle.behaviour(row, m) for m in range(len(row.logp)))
            mean_log = oracle.log_ratio_sum(row).item() / len(row.logp)
            facts = {
                "ratio < 0.8": ratio < 0.8,
                "ratio in 1.2..1.28": 1.2 < ratio < 1.28,
                "ratio > 1.28": ratio > 1.28,
                "log ratio < -0.4": math.log(ratio) < -0.4,
                "log ratio > 0.4": math.log(ratio) > 0.4,
                "ratio > 5": ratio > 5,
                "ratio to the sampler > 20": log_p - log_q > math.log(20),
                "p far above q": moved > 0.15,
                "p far below q": moved < -0.15,
                "p near q": abs(moved) < 0.15 and moved != 0,
                "divergence up": divergence > 0.05 and moved > 0,
                "divergence down": divergence > 0.05 and moved < 0,
                "k < 0.5": k < 0.5,
                "k > 2": k > 2,
                "k > 5": k > 5,
                "sequence ratio low": mean_log < -2e-3,
                "sequence ratio in the middle of both clips": 4e-4 < abs(mean_log) < 2e-3 or mean_log == 0,
                "sequence ratio high": mean_log > 2.5e-3,
                "product above": whole > 20,
                "product below": whole < math.log(1e-8),
                "nearly sure": log_p > -1e-5,
                "unknown to the sampler": math.isnan(row.sampler[n]),
                "shared": len(oracle.process_set(rows, row, n)) > 1,
            }
            seen.update(f"{name} {sign}" for name, holds in facts.items() if holds)
            names = list(facts)
    missing = [f"{name} {sign}" for name in names for sign in "+-" if not seen[f"{name} {sign}"]]
    assert missing == []


def test_examples_hold_every_shape() -> None:
    batches = examples()
    groups = [group for batch in batches for group in batch.groups]
    rows = [row for group in groups for row in group]
    assert any(not row.completion for row in rows)
    assert any("101" in marks or "1001" in marks for row in rows for marks in ["".join(map(str, row.mask))])
    assert {0, 1} <= {len(oracle.scored(group)) for group in groups}
    assert any(len({row.reward for row in group}) == 1 for group in groups if len(group) > 1)
    assert any(max(len(row.logp) for row in group) > 64 for group in groups)
    assert {bool(row.steps) for row in rows} == {True, False}
    assert any(None in row.scores.values() and any(row.scores.values()) for row in rows)
    assert all(row.reward is None or row.reward >= 0 for row in rows)
    for row in rows:
        sampled = sum(row.mask)
        assert len(row.mask) == len(row.completion)
        assert {len(x) for x in (row.logp, row.old, row.sampler, row.ref, row.entropy)} == {sampled}
        assert all(logp.item() <= 0 for logp in row.logp)
        assert all(number <= 0 for number in (*row.old, *row.ref))
        assert all(0 <= end < sampled for end, _ in row.steps)


def test_examples_keep_away_from_thresholds() -> None:
    """Rounding must not decide which side of a bound a number is on."""
    for copies in ("differ", "agree"):
        for batch in examples(copies="agree" if copies == "agree" else "differ"):
            entropies = sorted({entropy for row in oracle.everyone(batch) for entropy in row.entropy})
            assert all(above - below > 1e-9 for below, above in pairwise(entropies))
            for row in oracle.everyone(batch):
                for n in range(len(row.logp)):
                    ratio, k = oracle.token_ratio(row, n).item(), oracle.correction(row, n)
                    base = math.exp(row.logp[n].item() - oracle.behaviour(row, n))
                    away = abs(math.exp(row.logp[n].item()) - math.exp(oracle.behaviour(row, n)))
                    divergence = oracle.binary_divergence(row.logp[n].item(), oracle.behaviour(row, n))
                    gaps = [abs(ratio - bound) for bound in (0.8, 1.2, 1.28, 4, 5, math.exp(0.4), math.exp(-0.4))]
                    gaps += [abs(k - bound) for bound in (0.5, 2, 5)]
                    gaps += [abs(base - 20), abs(away - 0.15), abs(divergence - 0.05)]
                    assert min(gaps) > 1e-7


def test_examples_agree_on_shared_prefixes_when_asked() -> None:
    for batch in examples(copies="agree"):
        for group in batch.groups:
            for row in group:
                for n in range(len(row.logp)):
                    for other in oracle.process_set(group, row, n):
                        assert other.logp[n].item() == row.logp[n].item()
                        assert other.old[n] == row.old[n]
                        assert other.ref[n] == row.ref[n]
