"""The order of problems: epochs, mixes, streams, what rests; and that a run that goes on takes what it would have."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treewise.curriculum import Curriculum
from treewise.supply import Block, Deck, Supply
from treewise.types import Group, Problem, Trajectory


def whole(count: int, *, name: str = "data", seed: int = 0, number: int = 0) -> Deck:
    problems = [Problem(f"{name}{n}", "") for n in range(count)]
    return Deck(name, lambda start: Block(problems, 0), seed=seed, number=number)


def stream(count: int, size: int, *, seed: int = 0) -> Deck:
    """A source of `count` problems, read `size` at a time."""

    def read(start: int) -> Block:
        rows = range(start, min(start + size, count))
        return Block([Problem(str(n), "") for n in rows], rows.stop if len(rows) == size else 0)

    return Deck("stream", read, seed=seed)


def supply(*decks: Deck, shares: Sequence[float] = (1.0,), curriculum: Curriculum | None = None) -> Supply:
    return Supply(decks, curriculum or Curriculum(), shares=shares)


def draws(source: Supply, per_step: int, steps: int, rewards: dict[str, float] | None = None) -> list[list[str]]:
    """The ids of some steps; every problem gets two answers with its reward, 0.5 by default."""
    taken = []
    for step in range(1, steps + 1):
        problems = source.draw(per_step)
        taken.append([problem.id for problem in problems])
        source.observe([group(problem, (rewards or {}).get(problem.id, 0.5)) for problem in problems], step=step)
    return taken


def group(problem: Problem, *rewards: float | None) -> Group:
    token, mark = np.array([1, 2]), np.array([False, True])
    answers = [Trajectory(token, mark, np.zeros(2), "", reward, "eos", {"right": reward}) for reward in rewards]
    return Group(problem, tuple(answers))


@given(count=st.integers(1, 12), share=st.floats(0, 1), seed=st.integers(0, 2**32))
def test_d04_steps_are_full_without_copies_and_every_epoch_takes_each_problem_once(
    count: int, share: float, seed: int
) -> None:
    per_step = max(1, round(share * count))
    steps = draws(supply(whole(count, seed=seed)), per_step, 4 * count)
    assert all(len(step) == len(set(step)) == per_step for step in steps)
    sequence = list(itertools.chain.from_iterable(steps))
    for epoch in range(len(sequence) // count):
        assert len(set(sequence[epoch * count : (epoch + 1) * count])) == count


def test_d04_five_problems_in_steps_of_two_run_across_the_epoch() -> None:
    steps = draws(supply(whole(5, seed=1)), 2, 5)
    assert set(Counter(itertools.chain.from_iterable(steps)).values()) == {2}


def test_d04_fewer_problems_than_a_step_needs_is_an_error_with_the_numbers() -> None:
    with pytest.raises(ValueError, match="data has too few .* takes 2 different ones of it, and there are 1"):
        supply(whole(1)).draw(2)


def test_the_seed_and_the_epoch_change_the_order() -> None:
    first = draws(supply(whole(20, seed=1)), 20, 2)
    assert first == draws(supply(whole(20, seed=1)), 20, 2)
    assert first != draws(supply(whole(20, seed=2)), 20, 2)
    assert first[0] != first[1]


def test_the_order_of_one_source_is_numpy_s_permutation_of_seed_and_epoch() -> None:
    """What runs were made with before there were mixes stays what it was."""
    expected = [np.random.default_rng([7, epoch]).permutation(6) for epoch in range(3)]
    assert draws(supply(whole(6, seed=7)), 3, 6) == [
        [f"data{n}" for n in half] for order in expected for half in (order[:3], order[3:])
    ]


@given(weights=st.lists(st.floats(0.05, 1), min_size=1, max_size=4), per_step=st.integers(1, 6))
def test_every_source_of_a_mix_gives_its_share(weights: list[float], per_step: int) -> None:
    shares = [weight / sum(weights) for weight in weights]
    mix = supply(*(whole(30, name=f"{n}_", number=n) for n in range(len(shares))), shares=shares)
    given = Counter[str]()
    for step, ids in enumerate(draws(mix, per_step, 20), start=1):
        assert len(set(ids)) == per_step
        given += Counter(identity.partition("_")[0] for identity in ids)
        for number, share in enumerate(shares):
            assert abs(given[str(number)] - share * per_step * step) < len(shares)


def test_two_sources_of_one_size_have_different_orders() -> None:
    ids = draws(supply(whole(20, number=0), whole(20, name="other", number=1), shares=(0.5, 0.5)), 40, 1)[0]
    assert [i.removeprefix("data") for i in ids[:20]] != [i.removeprefix("other") for i in ids[20:]]


@pytest.mark.parametrize("count", [10, 12, 13])
def test_a_stream_takes_every_row_once_a_pass_and_begins_again(count: int) -> None:
    steps = draws(supply(stream(count, 4)), 2, count)
    taken = list(itertools.chain.from_iterable(steps))
    assert sorted(map(int, taken[:4])) == [0, 1, 2, 3]  # blocks are shuffled, and come in their order
    assert sorted(map(int, taken[:count])) == sorted(map(int, taken[count:])) == list(range(count))


def test_a_stream_with_fewer_problems_than_a_step_needs_is_an_error() -> None:
    with pytest.raises(ValueError, match="a step takes 9 different ones of it, and there are 5"):
        supply(stream(5, 2)).draw(9)


@given(
    done=st.integers(0, 12),
    per_step=st.integers(1, 5),
    seed=st.integers(0, 2**32),
    rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=7, max_size=7),
)
def test_d02_a_run_that_goes_on_takes_the_problems_that_it_would_have(
    done: int, per_step: int, seed: int, rewards: list[float]
) -> None:
    known = {f"data{n}": reward for n, reward in enumerate(rewards)}

    def fresh() -> Supply:
        bounds = Curriculum(low=0.0, high=1.0, rest=2)
        return supply(whole(7, seed=seed), stream(23, 5, seed=seed), shares=(0.5, 0.5), curriculum=bounds)

    through, first, second = fresh(), fresh(), fresh()
    expected = draws(through, per_step, done + 8, known)
    draws(first, per_step, done, known)
    first.draw(per_step)  # a step that was begun and not finished is taken again
    second.load_state_dict(first.state_dict())
    assert draws(second, per_step, 8, known) == expected[done:]
    assert second.state_dict()["position"] == through.state_dict()["position"]


def test_what_is_always_right_or_wrong_rests_and_comes_back() -> None:
    rewards = {"data0": 1.0, "data1": 0.0}
    steps = draws(supply(whole(4), curriculum=Curriculum(low=0.0, high=1.0, rest=2)), 2, 12, rewards)
    taken = list(itertools.chain.from_iterable(steps))
    assert sorted(taken[:4]) == ["data0", "data1", "data2", "data3"]
    assert set(taken[4:8]) == {"data2", "data3"}  # two epochs without the others
    assert sorted(taken[8:12]) == ["data0", "data1", "data2", "data3"]
    assert set(taken[12:16]) == {"data2", "data3"}


@pytest.mark.parametrize("per_step", [2, 3])
def test_a_rest_of_one_epoch_is_one_epoch_also_where_a_step_spans_two(per_step: int) -> None:
    source = supply(whole(4), curriculum=Curriculum(high=1.0, rest=1))
    problems = draws(source, per_step, 12, {"data0": 1.0})
    taken = list(itertools.chain.from_iterable(problems))
    epochs, at = [], 0
    while at + 4 <= len(taken):  # four problems in an epoch, or three where one rests
        size = 3 if epochs and "data0" in epochs[-1] else 4
        epochs.append(taken[at : at + size])
        at += size
    assert all(("data0" in epoch) == (number % 2 == 0) for number, epoch in enumerate(epochs))
    assert len(epochs) > 5


def test_a_run_in_which_everything_rests_begins_the_epochs_that_bring_it_back() -> None:
    ones = {f"data{n}": 1.0 for n in range(4)}
    source = supply(whole(4), curriculum=Curriculum(high=1.0, rest=3))
    steps = draws(source, 4, 3, ones)
    assert [sorted(step) for step in steps] == [["data0", "data1", "data2", "data3"]] * 3
    assert source.decks[0].epoch == 1 + 4 + 4
    assert source.resting() == 4


def test_the_pass_rate_leaves_out_what_has_no_verdict() -> None:
    problem, curriculum = Problem("a", ""), Curriculum(high=1.0, rest=1)
    curriculum.observe(group(problem, None, None), step=1, epoch=1)
    assert curriculum.rows() == []
    curriculum.observe(group(problem, 1.0, None, 1.0), step=2, epoch=1)
    assert [curriculum.rests("a", epoch) for epoch in (2, 3)] == [True, False]
    curriculum.observe(group(problem, 0.0, 1.0), step=3, epoch=3)
    assert curriculum.rows() == [
        {"id": "a", "visits": 2, "answers": 4, "mean": 0.75, "pass_rate": 0.5, "step": 3, "rests_until": 0}
    ]


def test_the_pass_rate_can_be_that_of_one_score() -> None:
    answers = [
        replace(answer, reward=9.0, scores={"right": right, "long": 0.0})
        for answer, right in zip(group(Problem("a", ""), 0.0, 0.0).trajectories, (0.25, 0.75), strict=True)
    ]
    curriculum = Curriculum(low=0.0, score="right")
    curriculum.observe(Group(Problem("a", ""), tuple(answers)), step=1, epoch=1)
    assert curriculum.seen["a"].pass_rate == 0.5
