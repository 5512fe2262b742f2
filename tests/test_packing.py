"""Micro-batches: every sampled token once, within the budget, whatever the cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treewise.axes import Objective
from treewise.credit import CreditedGroup, credit
from treewise.packing import pack
from treewise.types import Group, Problem, Trajectory


def group(name: str, prompt: list[int], answers: list[list[int]]) -> CreditedGroup:
    trajectories = []
    for number, answer in enumerate(answers):
        tokens = np.array(prompt + answer)
        sampled = np.arange(len(tokens)) >= len(prompt)
        trajectories.append(Trajectory(tokens, sampled, np.arange(len(tokens)) * -0.1, "", float(number), "eos"))
    return credit([Group(Problem(name, ""), tuple(trajectories))], Objective(weight_exponent=1.0))[0]


short = st.lists(st.integers(0, 2), max_size=6)
groups = st.lists(
    st.builds(
        group,
        st.just("p"),
        st.lists(st.integers(0, 2), min_size=1, max_size=5),
        st.lists(short, min_size=1, max_size=5),
    ),
    min_size=1,
    max_size=4,
)


@given(groups, st.integers(1, 40), st.booleans())
def test_every_sampled_token_is_in_exactly_one_micro_batch(
    credited: list[CreditedGroup], budget: int, flat: bool
) -> None:
    seen: dict[tuple[int, int], tuple[list[int], list[float], list[float], list[float]]] = {}
    for batch in pack(credited, denominator=2.0, budget=budget, flat=flat):
        cost = len(batch.transcripts) * max(map(len, batch.transcripts)) if flat else len(batch.tokens)
        assert cost <= budget or len(batch.transcripts) == 1
        for row, place in enumerate(batch.origin):
            at = batch.trajectory == row
            assert place not in seen
            seen[place] = (
                batch.tokens[batch.index[at]].tolist(),
                batch.advantages[at].tolist(),
                (batch.coefficients[at] * 2.0).tolist(),
                batch.sampler_logprobs[at].tolist(),
            )
    for number, home in enumerate(credited):
        for member, trajectory in enumerate(home.trajectories):
            at = home.tree.trajectory == member
            if not at.any():
                assert (number, member) not in seen
                continue
            assert seen[number, member] == (
                trajectory.tokens[trajectory.sampled].tolist(),
                home.advantages[at].tolist(),
                home.coefficients[at].tolist(),
                trajectory.logprobs[trajectory.sampled].tolist(),
            )


def test_tokens_that_groups_share_are_computed_once_and_their_credit_stays_apart() -> None:
    """G03: the same completions under another prompt, and under the same one, are other process sets."""
    answers = [[1, 2, 3], [1, 2, 4, 5], [9]]
    twins = [group("one", [7, 7, 7], answers), group("two", [7, 7, 7], answers)]
    (batch,) = pack(twins, denominator=1.0, budget=100)
    assert len(batch.tokens) == 3 + 6
    expected = [0.5, 0.5, 1, 0.5, 0.5, 1, 1, 1]
    assert batch.coefficients.tolist() == expected * 2


def test_a_full_part_is_cut_where_the_least_is_shared() -> None:
    prompts = [[1] * 10, [2] * 10, [3] * 10]
    credited = [group(str(n), prompt, [[4, 5], [4, 6], [7]]) for n, prompt in enumerate(prompts)]
    batches = pack(credited, denominator=1.0, budget=26)
    assert [{place[0] for place in batch.origin} for batch in batches] == [{0}, {1}, {2}]


def test_a_tree_over_the_budget_computes_its_prompt_in_each_part() -> None:
    credited = [group("p", [1] * 10, [[n] * 5 for n in range(2, 8)])]
    batches = pack(credited, denominator=1.0, budget=20)
    assert [len(batch.tokens) for batch in batches] == [20, 20, 20]


def test_a_sampled_first_token_is_refused() -> None:
    with pytest.raises(ValueError, match="problem 'p', trajectory 0: the first token is marked as sampled"):
        pack([group("p", [], [[1, 2]])], denominator=1.0, budget=10)
