"""avg@k, pass@k, maj@k, their intervals and paired differences, against counting by hand and other implementations."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from treewise.estimators import compare, detectable, majority, mean_of, pass_at_k, wilson


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(4, 1, 4, 1.0), (4, 1, 2, 0.5), (4, 1, 1, 0.25), (8, 2, 4, 0.785714), (16, 0, 8, 0.0), (200, 3, 100, 0.877)],
)
def test_pass_at_k_of_known_cases(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=2e-3 if n == 200 else 1e-6)


@pytest.mark.parametrize("n", range(1, 7))
def test_pass_at_k_is_the_share_of_all_subsets_with_a_right_answer(n: int) -> None:
    for c, k in itertools.product(range(n + 1), range(1, n + 1)):
        subsets = list(itertools.combinations(range(n), k))
        assert pass_at_k(n, c, k) == pytest.approx(sum(min(one) < c for one in subsets) / len(subsets))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 2), (4, -1, 2)])
def test_pass_at_k_refuses_what_can_not_be(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="answers"):
        pass_at_k(n, c, k)


@pytest.mark.parametrize(
    ("votes", "share", "tie"),
    [
        (["a", "a", "b"], 1.0, False),
        (["b", "b", "a"], 0.0, False),
        (["a", "b"], 0.5, True),
        (["a", "b", "c"], 1 / 3, True),
        (["b", "c"], 0.0, True),
        (["a", None, None, None], 1.0, False),
        ([None, None], 0.0, False),
        ([], 0.0, False),
    ],
)
def test_the_majority_decides_and_ties_share(votes: list[str | None], share: float, tie: bool) -> None:
    assert majority(votes, "a") == (pytest.approx(share), tie)


def test_the_standard_error_is_that_of_clusters() -> None:
    correct = np.random.default_rng(0).random((25, 4)) < np.linspace(0.1, 0.9, 25)[:, None]
    # Cluster-robust by its definition: residuals add up within a problem, (G / (G − 1)) Σ (Σ_j e_gj)² / N².
    residuals = correct - correct.mean()
    expected = math.sqrt(25 / 24 * (residuals.sum(axis=1) ** 2).sum()) / correct.size
    assert mean_of(list(correct.mean(axis=1)), answers=4).stderr == pytest.approx(expected)


def test_one_answer_each_has_wilsons_interval() -> None:
    found = mean_of([1.0] * 9 + [0.0] * 21)
    expected = stats.binomtest(9, 30).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
    assert mean_of([0.0] * 30)[2:4] == pytest.approx((0.0, 3.8415 / 33.8415), abs=1e-4)
    assert wilson(0.5, 30) == pytest.approx((0.3315, 0.6685), abs=1e-4)


@pytest.mark.parametrize("kind", ["all problems alike", "easy and hard", "half solved always"])
def test_the_interval_holds_the_truth_nineteen_times_in_twenty(kind: str) -> None:
    generator = np.random.default_rng(1)
    held = 0
    for _ in range(1000):
        chances = {
            "all problems alike": np.full(30, 0.4),
            "easy and hard": generator.beta(0.5, 0.75, 30),
            "half solved always": (generator.random(30) < 0.4).astype(float),
        }[kind]
        correct = generator.random((30, 4)) < chances[:, None]
        found = mean_of(list(correct.mean(axis=1)), answers=4)
        held += found.low <= 0.4 <= found.high
    assert 930 <= held <= 975


def test_nothing_and_one_problem_have_no_error() -> None:
    assert mean_of([]).n == 0
    assert math.isnan(mean_of([1.0]).stderr)
    assert mean_of([1.0]).low > 0.2
    with pytest.raises(ValueError, match="between 0 and 1"):
        mean_of([0.5, 1.5])


def test_a_paired_difference_of_single_answers_has_mcnemars_p() -> None:
    ours, theirs = [1.0] * 15 + [0.0] * 5 + [1.0] * 10, [0.0] * 15 + [1.0] * 5 + [1.0] * 10
    found = compare(ours, theirs)
    assert (found.mean, found.better, found.worse, found.n) == (pytest.approx(1 / 3), 15, 5, 30)
    tail = sum(math.comb(20, wins) for wins in range(15, 21)) / 2**20
    assert found.p == pytest.approx(2 * tail)
    assert found.p == pytest.approx(0.0414, abs=1e-4)


def test_a_paired_difference_of_shares_has_the_p_of_all_signs() -> None:
    ours, theirs = [0.75, 0.5, 1.0, 0.25, 0.5, 0.0], [0.5, 0.5, 0.25, 0.5, 0.25, 0.0]
    differences = np.array(ours) - np.array(theirs)
    signs = np.array(list(itertools.product([1, -1], repeat=6)))
    expected = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-12)
    assert compare(ours, theirs).p == pytest.approx(expected)


def test_the_interval_of_a_difference_is_the_bootstraps() -> None:
    generator = np.random.default_rng(2)
    ours, theirs = generator.random((2, 80)).round()
    found = compare(list(ours), list(theirs))
    known = stats.bootstrap((ours - theirs,), np.mean, method="percentile", n_resamples=10_000, rng=3)
    assert (found.low, found.high) == pytest.approx(tuple(known.confidence_interval), abs=0.02)


def test_equal_models_differ_by_nothing() -> None:
    assert compare([1.0, 0.0], [1.0, 0.0]) == (0.0, 0.0, 0.0, 0, 0, 2, 1.0)
    with pytest.raises(ValueError, match="2 and 1 values"):
        compare([1.0, 0.0], [1.0])


def test_a_detectable_difference_is_found_in_four_of_five_comparisons() -> None:
    generator = np.random.default_rng(4)
    found = detectable([1.0] * 90 + [0.0] * 210)
    assert found.least == pytest.approx(6 / 300)
    hits = 0
    for _ in range(300):
        ours = (generator.random(300) < 0.3 + found.difference).astype(float)
        theirs = (generator.random(300) < 0.3).astype(float)
        better, worse = int((ours > theirs).sum()), int((ours < theirs).sum())
        hits += stats.binomtest(better, better + worse).pvalue < 0.05
    assert 0.7 <= hits / 300 <= 0.88


def test_six_problems_in_one_direction_are_the_fewest_that_tell_anything() -> None:
    assert compare([1.0] * 6 + [0.0] * 24, [0.0] * 30).p < 0.05 < compare([1.0] * 5 + [0.0] * 25, [0.0] * 30).p
    assert detectable([0.0] * 30).least == pytest.approx(0.2)
    assert 0 < detectable([0.0] * 30).difference < 1
    assert math.isnan(detectable([]).least)
