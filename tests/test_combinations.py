"""Values of all axes together: what `resolve` lets through does what every single choice says.

On policy the gradient of any accepted combination is known in closed form: each sampled token has
coefficient · advantage · correction (times the answer's length, for the ratio of the whole answer as one action).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

import tiny
from treewise.assess import learn_from_uncertain
from treewise.axes.advantage import ADVANTAGES
from treewise.axes.conflicts import LOG_FORM
from treewise.axes.correction import CORRECTIONS
from treewise.axes.ratio import RATIOS
from treewise.axes.scale import SCALES
from treewise.axes.trust_region import TRUST_REGIONS
from treewise.credit import credit, denominator_of
from treewise.objective import loss, token_terms
from treewise.presets import resolve
from treewise.types import Group

CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "advantage": st.sampled_from(sorted(ADVANTAGES)),
    "scale": st.sampled_from(sorted(SCALES)),
    "ratio": st.sampled_from(sorted(RATIOS)),
    "ratio_base": st.sampled_from(["trainer", "sampler"]),
    "trust_region": st.sampled_from(sorted(TRUST_REGIONS)),
    "weight_exponent": st.sampled_from([0.0, 0.5, 1.0]),
    "aggregation": st.sampled_from(["token", "sequence", "constant", "sum"]),
    "correction": st.sampled_from(sorted(CORRECTIONS)),
    "top_entropy": st.sampled_from([None, 0.5]),
    "overlong": st.sampled_from(["keep", "leave", "mask"]),
}


def batch(seed: int) -> list[Group]:
    """Ragged groups with shared prefixes, missing verdicts, masks, scores, steps and cut answers."""
    generator = np.random.default_rng(seed)
    groups = []
    for number in range(3):
        group = tiny.group(tiny.random_group(generator, size=5, longest=5), number)
        changed = []
        for t in group.trajectories:
            places = np.flatnonzero(t.sampled)
            steps = ((int(places[0]), 0.25), (int(places[-1]), 0.5)) if len(places) and generator.random() < 0.5 else ()
            changed.append(
                replace(
                    t,
                    scores={"a": t.reward, "b": None if generator.random() < 0.3 else float(generator.random())},
                    steps=steps,
                    stop_reason="length" if generator.random() < 0.3 else "eos",
                )
            )
        groups.append(replace(group, trajectories=tuple(changed)))
    return groups


@settings(max_examples=400, deadline=None)
@given(st.fixed_dictionaries(CHOICES), st.integers(0, 50))
def test_on_policy_every_accepted_combination_has_the_gradient_that_its_choices_say(
    chosen: dict[str, Any], seed: int
) -> None:
    try:
        objective = resolve("grpo", chosen, max_new_tokens=5)
    except ValueError:
        event("refused")
        return
    event("accepted")
    credited = credit(batch(seed), objective)
    generator = torch.Generator().manual_seed(seed)
    if objective.top_entropy is not None:
        uncertain = [np.random.default_rng(seed + n).random(len(g.advantages)) for n, g in enumerate(credited)]
        credited = learn_from_uncertain(credited, uncertain, objective.top_entropy)
    total = denominator_of(credited, objective)
    assume(total > 0)
    advantages = torch.tensor(np.concatenate([g.advantages for g in credited]))
    coefficients = torch.tensor(np.concatenate([g.coefficients for g in credited])) / total
    lengths = torch.tensor([length for g in credited for length in g.lengths])
    trajectory = torch.repeat_interleave(lengths)
    now = (-torch.rand(len(trajectory), generator=generator, dtype=torch.float64)).requires_grad_()
    old = now.detach()
    gap = 0.8 * torch.randn(len(trajectory), generator=generator, dtype=torch.float64)
    sampler = old if objective.ratio_base == "sampler" else old - gap
    terms = token_terms(
        now,
        advantages=advantages,
        old_logprobs=old,
        sampler_logprobs=sampler,
        ref_logprobs=None,
        trajectory=trajectory,
        objective=objective,
    )
    (gradient,) = torch.autograd.grad(loss(terms, coefficients), now)
    expected = -coefficients * advantages * objective.correction(old - sampler, trajectory)
    if objective.ratio == "product" and objective.name("trust_region") not in LOG_FORM:
        expected = expected * lengths[trajectory]
    torch.testing.assert_close(gradient, expected, rtol=1e-10, atol=1e-13)


def test_a_fair_share_of_the_combinations_is_accepted() -> None:
    generator = np.random.default_rng(0)
    words = {
        "advantage": sorted(ADVANTAGES), "scale": sorted(SCALES), "ratio": sorted(RATIOS),
        "trust_region": sorted(TRUST_REGIONS), "aggregation": ["token", "sequence", "constant", "sum"],
    }  # fmt: skip
    accepted = 0
    for _ in range(300):
        chosen = {name: str(generator.choice(values)) for name, values in words.items()}
        try:
            resolve("grpo", chosen, max_new_tokens=5)
        except ValueError:
            continue
        accepted += 1
    assert accepted > 60


@pytest.mark.parametrize("ratio", ["sequence", "product"])
def test_a_choice_for_single_tokens_is_refused_where_the_answer_is_one_action(ratio: str) -> None:
    base = {"ratio": ratio, "aggregation": "sequence"}
    for choice in ({"advantage": "tempo"}, {"weight_exponent": 1.0}, {"top_entropy": 0.5}, {"correction": "mask"}):
        with pytest.raises(ValueError, match="would be averaged away"):
            resolve("grpo", base | choice)
    resolve("grpo", base | {"correction": "mask", "correction_level": "geometric"})
