"""Advantages, rollout weights, losses and gradients against TRL's GRPO family and verl, from their golden files.

A row names a case, and what of treewise computes the same. Where upstream computes something else, the row has the
relation between the two and a comment with its reason; `tests/golden/README.md` describes every case. Needs neither
of the two libraries.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from treewise.assess import kl_estimate, learn_from_uncertain
from treewise.axes import Estimator, Objective
from treewise.axes.correction import Truncate
from treewise.credit import CreditedGroup, credit, denominator_of
from treewise.objective import loss, token_terms
from treewise.presets import resolve
from treewise.types import FloatArray, Group, Problem, Trajectory

FOLDER = Path(__file__).resolve().parent / "golden"
EXACT = 1e-12  # relative; all inputs are float64
ROUNDED = 0.03  # relative; of the differences that the README states

Rows = Sequence[Sequence[float | None]]  # per answer and completion token, as the files have them


@cache
def trl() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / "family_trl_1.16.json").read_text())
    return content


@cache
def verl() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((FOLDER / "verl_0.9.1.json").read_text())
    return content


def named(cases: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(case for case in cases if case["name"] == name)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The batch of a golden file as groups. `masks` and `weights` are those of the case; an answer's `text` is its
    number in the file."""

    groups: list[Group]
    masks: Sequence[Sequence[int]]
    weights: Mapping[str, float]

    def per_group(self, rows: Rows, credited: Sequence[CreditedGroup]) -> list[FloatArray]:
        """The file's values at the sampled tokens of the scored answers, [A] per group; nan for null."""
        return [
            np.array(
                [
                    rows[int(answer.text)][t]
                    for answer in group.trajectories
                    for t, sampled in enumerate(self.masks[int(answer.text)])
                    if sampled
                ],
                dtype=np.float64,
            )
            for group in credited
        ]

    def flat(self, rows: Rows, credited: Sequence[CreditedGroup]) -> FloatArray:
        """The same over all groups."""
        return np.concatenate(self.per_group(rows, credited))

    def spread(self, values: Sequence[float], credited: Sequence[CreditedGroup]) -> FloatArray:
        """One value an answer, at the same tokens."""
        return self.flat([[v] * len(mask) for v, mask in zip(values, self.masks, strict=True)], credited)


def inputs(
    batch: dict[str, Any],
    *,
    rewards: str,
    ones: bool = False,
    owners: Sequence[int] | None = None,
    weights: Sequence[float] | None = None,
) -> Inputs:
    """`ones`: every token is sampled. `owners`: the group of every answer, where it isn't that of its prompt."""
    masks = [[1] * len(c) for c in batch["completions"]] if ones else batch["masks"]
    factors = weights or batch["rewards"][rewards]["weights"]
    scores = [own for group in batch["rewards"][rewards]["scores"] for own in group]
    groups: dict[int, list[Trajectory]] = {}
    for number, (completion, mask, own) in enumerate(zip(batch["completions"], masks, scores, strict=True)):
        at = number // batch["group_size"]
        prompt = batch["prompts"][at]
        known = [weight * score for weight, score in zip(factors, own, strict=True) if score is not None]
        groups.setdefault(owners[number] if owners else at, []).append(
            Trajectory(
                tokens=np.array(prompt + completion),
                sampled=np.array([0] * len(prompt) + mask, dtype=bool),
                logprobs=np.zeros(len(prompt) + len(mask)),
                text=str(number),
                reward=sum(known) if known else None,
                stop_reason="eos",
                scores={str(k): score for k, score in enumerate(own)},
            )
        )
    return Inputs(
        [Group(Problem(str(key), ""), tuple(rows)) for key, rows in groups.items()],
        masks,
        {str(k): weight for k, weight in enumerate(factors)},
    )


def assessed(given: Inputs, objective: Objective, *, old: Rows, reference: Rows) -> list[CreditedGroup]:
    """Credit, with the KL in the reward where the objective has one."""
    credited = credit(given.groups, objective, weights=given.weights)
    if not (objective.kl_coef and objective.kl_in == "reward"):
        return credited
    pairs = zip(given.per_group(old, credited), given.per_group(reference, credited), strict=True)
    return credit(
        given.groups,
        objective,
        weights=given.weights,
        penalties=[objective.kl_coef * kl_estimate(before - anchor, objective) for before, anchor in pairs],
    )


class Step(NamedTuple):
    """One optimizer step in trajectory space: `gradient`, `corrections` and `kl` are [A]."""

    loss: float
    gradient: FloatArray
    corrections: FloatArray
    kl: FloatArray | None


class Seen(NamedTuple):
    """What a relation may look at, [A]: ρ of the token, our rollout weight, and which answer it belongs to."""

    ratios: FloatArray
    corrections: FloatArray
    answers: FloatArray


Times = float | Callable[[Seen], FloatArray]


def take(
    given: Inputs,
    credited: Sequence[CreditedGroup],
    objective: Objective,
    *,
    now: Rows,
    old: Rows,
    sampler: Rows,
    reference: Rows,
    advantages: FloatArray | None = None,
    times: Times = 1.0,
    cap: float | None = None,
) -> Step:
    """`advantages` [A] in the place of the credited ones; `times` multiplies the terms; `cap` bounds π_old/π_sampler
    before anything looks at it."""

    def tensor(values: FloatArray) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    lengths = [length for group in credited for length in group.lengths]
    trajectory = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    before, drawn = given.flat(old, credited), given.flat(sampler, credited)
    leaf = tensor(given.flat(now, credited)).requires_grad_()
    terms = token_terms(
        leaf,
        advantages=tensor(np.concatenate([g.advantages for g in credited]) if advantages is None else advantages),
        old_logprobs=tensor(before),
        sampler_logprobs=tensor(drawn if cap is None else np.maximum(drawn, before - np.log(cap))),
        ref_logprobs=tensor(given.flat(reference, credited)),
        trajectory=trajectory,
        objective=objective,
    )
    seen = Seen(np.exp(given.flat(now, credited) - before), terms.corrections.numpy(), trajectory.numpy())
    factor = times(seen) if callable(times) else times
    coefficients = np.concatenate([group.coefficients for group in credited]) / denominator_of(credited, objective)
    value = loss(terms, tensor(coefficients * factor))
    value.backward()
    assert leaf.grad is not None
    kl = None if terms.kl is None else terms.kl.detach().numpy()
    return Step(value.item(), leaf.grad.numpy(), terms.corrections.numpy(), kl)


@dataclass(frozen=True, slots=True)
class Ours:
    """What of treewise a case is compared with, and the relation: upstream's terms are `times` ours, with `cap` on
    π_old/π_sampler, or with another set of log-probs as `old`. `refused`: what `resolve` does not combine."""

    preset: str
    options: Mapping[str, Any] = field(default_factory=dict)
    times: Times = 1.0
    cap: float | None = None
    old: str | None = None
    refused: Mapping[str, Any] = field(default_factory=dict)

    @property
    def related(self) -> bool:
        return (self.times, self.cap, self.old) != (1.0, None, None)

    def objective(self) -> Objective:
        resolved = resolve(self.preset, self.options, max_new_tokens=trl()["batch"]["max_completion_length"])
        return replace(resolved, **self.refused)


def clip(low: float, high: float | None = None, most: float | None = None) -> dict[str, Any]:
    bounds = {"clip_low": low, "clip_high": low if high is None else high}
    return bounds if most is None else bounds | {"clip_max": most}


def log_clip(low: float, high: float) -> dict[str, Any]:
    return {"log_clip_low": low, "log_clip_high": high}


def weights(level: str, low: float, high: float) -> dict[str, Any]:
    return {"correction_level": level, "correction_low": low, "correction_high": high}


def dppo(bound: float) -> dict[str, Any]:
    return {"divergence_low": bound, "divergence_high": bound, "weight_max": 3.0, "aggregation": "token"}


def relative_clip(seen: Seen) -> FloatArray:
    """verl's weight of CISPO over ours."""
    return np.clip(seen.ratios, 0.8, 1.2) / np.minimum(seen.ratios, 5.0)


def geometric(seen: Seen) -> FloatArray:
    """An answer's geometric mean of the rollout weights, with verl's 1e-10, over their arithmetic mean."""
    result = np.empty(len(seen.answers))
    for answer in np.unique(seen.answers):
        own = seen.answers == answer
        result[own] = np.exp(np.log(seen.corrections[own] + 1e-10).mean()) / seen.corrections[own].mean()
    return result


K3 = {"kl_coef": 0.04}
UNBIASED = {"kl_coef": 0.04, "kl_estimator": "k3_unbiased"}
NO_KL = {"kl_coef": 0.0}
TO_TRAINER = {"ratio_base": "trainer"}
PPO = {"trust_region": "clip"}

TRL: list[tuple[str, Ours]] = [
    ("gspo old=near", Ours("gspo")),
    ("gspo old=near", Ours("gspo_token")),
    ("gspo old=same", Ours("gspo")),
    ("gspo old=same", Ours("gspo_token")),
    ("gspo wide clip old=far", Ours("gspo", clip(0.2))),
    ("gspo kl k3 old=near", Ours("gspo", K3)),
    ("two-sided old=far", Ours("dapo", clip(0.2, 0.2, 4.0))),
    ("two-sided kl k3 old=far", Ours("intellect_2")),
    # TRL's δ of 1.1 is below 1 + ε = 1.2, which we refuse: the two change places, δ clips a > 0 and 1 + ε bounds a < 0.
    ("two-sided below the upper clip old=far", Ours("dapo", clip(0.2, 0.1, 1.2))),
    ("dapo old=far", Ours("dapo")),
    ("cispo 5 old=far", Ours("cispo")),
    ("cispo 5 old=same", Ours("cispo")),
    # TRL reads its default ε = 0.2 as the absolute cap: every ratio above it weighs 0.2, where on policy ours weighs 1.
    ("cispo defaults old=wide", Ours("cispo", times=0.2, old="same")),
    ("cispo defaults old=same", Ours("cispo", times=0.2)),
    ("sapo old=wide", Ours("sapo")),
    ("sapo old=far", Ours("sapo")),
    ("sapo other gates old=far", Ours("sapo", {"gate_positive": 2.0, "gate_negative": 4.0})),
    ("luspo old=middle", Ours("luspo")),
    ("luspo old=same", Ours("luspo")),
    ("luspo wide clip old=far", Ours("luspo", clip(0.2))),
    ("luspo kl k3 old=middle", Ours("luspo", K3)),
    ("vespo old=wide", Ours("vespo", TO_TRAINER)),
    ("vespo old=far", Ours("vespo", TO_TRAINER)),
    ("vespo scaled old=wide", Ours("vespo", TO_TRAINER | {"scale": "std"})),
    ("vespo sampler uncapped old=wide", Ours("vespo")),
    # TRL builds its ratio to the sampler from rollout weights that are truncated already.
    ("vespo sampler cap 2 old=wide", Ours("vespo", cap=2.0)),
    ("grpo kl unbiased old=wide", Ours("grpo", UNBIASED)),
    ("grpo kl unbiased old=same", Ours("grpo", UNBIASED)),
    ("dapo kl unbiased old=far", Ours("dapo", UNBIASED)),
    ("dapo batch scale old=wide", Ours("dapo", {"scale": "batch_std"})),
    # TRL counts the tokens of unscored answers: 16 of 34.
    ("dapo batch scale missing old=wide", Ours("dapo", {"scale": "batch_std"}, times=18 / 34)),
    ("gdpo old=wide", Ours("gdpo")),
    ("gdpo old=same", Ours("gdpo")),
    ("gdpo some missing old=wide", Ours("gdpo")),
    # TRL counts the unscored answer.
    ("gdpo one answer without any old=wide", Ours("gdpo", times=11 / 12)),
    ("gdpo of one function old=wide", Ours("gdpo")),
    ("sum of two functions old=wide", Ours("dapo")),
    ("top entropy old=wide", Ours("top_entropy")),
    ("top entropy kl k3 old=wide", Ours("top_entropy", K3)),
    ("token truncate old=wide", Ours("tis")),
    ("token truncate low old=wide", Ours("tis", weights("token", 0.5, 2.0))),
    ("token truncate kl k3 old=wide", Ours("tis", K3)),
    ("token mask old=wide", Ours("icepop")),
    ("sequence truncate old=wide", Ours("tis", weights("sequence", 0.0, 3.0))),
    ("sequence mask old=wide", Ours("icepop", weights("sequence", 0.0, 3.0) | {"aggregation": "token"})),
    ("sequence mask both old=wide", Ours("icepop", weights("sequence", 0.125, 3.0))),
    ("rloo without kl and clip old=wide", Ours("rloo", NO_KL)),
    ("rloo kl without clip old=wide", Ours("rloo")),
    ("rloo kl without clip old=same", Ours("rloo")),
    ("rloo kl clip old=wide", Ours("rloo", PPO)),
    ("rloo kl clip old=far", Ours("rloo", PPO)),
    ("rloo kl of a group of equal rewards old=wide", Ours("rloo")),
    ("rloo without kl, a group of equal rewards old=wide", Ours("rloo", NO_KL)),
    # TRL counts the four unscored answers.
    ("rloo missing old=wide", Ours("rloo", NO_KL, times=8 / 12)),
    ("rloo whitened old=wide", Ours("rloo", NO_KL | {"scale": "whiten"})),
    ("gmpo 0.4 old=wide", Ours("gmpo")),
    ("gmpo 0.4 old=far", Ours("gmpo")),
    ("gmpo 0.4 old=same", Ours("gmpo")),
    ("gmpo 0.3 and 0.5 old=far", Ours("gmpo", log_clip(0.3, 0.5))),
    ("gmpo kl k3 old=far", Ours("gmpo", K3)),
]
SEQUENCE_KL = "gspo kl times the sequence ratio old=far"

VERL: list[tuple[str, Ours]] = [
    ("vanilla", Ours("dapo", clip(0.2, 0.2, 3.0))),
    ("vanilla clip-higher", Ours("dapo", clip(0.2, 0.28, 3.0))),
    ("vanilla clip-higher c 10", Ours("dapo", clip(0.2, 0.28, 10.0))),
    ("vanilla without dual clip", Ours("dapo")),
    ("vanilla sequence", Ours("grpo", {"clip_max": 3.0})),
    ("vanilla sum", Ours("grpo", {"clip_max": 3.0, "aggregation": "sum"})),
    ("vanilla constant", Ours("dr_grpo", {"clip_max": 3.0})),
    ("gspo", Ours("gspo")),
    ("gspo", Ours("gspo_token")),
    ("gspo wide clip", Ours("gspo", clip(0.2))),
    ("gspo wide clip", Ours("gspo_token", clip(0.2))),
    ("gspo default aggregation", Ours("gspo", {"aggregation": "token"})),
    ("gspo as luspo", Ours("luspo")),
    # verl's cap is relative to 1, and it has a floor: its detached weight is clip(ρ, 0.8, 1.2).
    ("cispo defaults", Ours("cispo", times=relative_clip)),
    ("cispo 5", Ours("cispo")),
    ("gmpo defaults", Ours("gmpo", log_clip(0.2, 0.2))),
    ("gmpo 0.4", Ours("gmpo")),
    ("gmpo 0.3 and 0.5", Ours("gmpo", log_clip(0.3, 0.5))),
    ("sapo", Ours("sapo")),
    ("sapo asked for token-mean", Ours("sapo")),
    ("dppo tv", Ours("dppo")),
    ("dppo tv token-mean", Ours("dppo", {"aggregation": "token"})),
    ("dppo tv defaults", Ours("dppo", dppo(0.2))),
    ("dppo kl", Ours("dppo_kl")),
    ("dppo kl defaults", Ours("dppo_kl", dppo(0.2))),
    ("tis", Ours("tis", {"clip_max": 3.0})),
    ("tis sequence", Ours("tis", {"clip_max": 3.0, "correction_level": "sequence"})),
    ("icepop", Ours("icepop", {"clip_max": 3.0})),
    ("cispo 5 tis", Ours("cispo", {"correction": "truncate"})),
    # verl takes the geometric mean of the weights along with that of the ratios; ours has one weight a token.
    ("gmpo tis", Ours("gmpo", times=geometric, refused={"correction": Truncate()})),
]


def gradient_of(case: dict[str, Any], given: Inputs, credited: Sequence[CreditedGroup]) -> FloatArray:
    """Upstream's gradient at the same tokens; everywhere else it is 0."""
    gradient = given.flat(case["grad"], credited)
    assert np.abs(np.concatenate(case["grad"])).sum() == pytest.approx(np.abs(gradient).sum(), rel=EXACT)
    return gradient


def compare_trl(name: str, ours: Ours) -> tuple[Step, FloatArray, dict[str, Any]]:
    """Our step on the inputs of TRL's case, TRL's gradient at the same tokens, and the case."""
    batch, case = trl()["batch"], named(trl()["cases"], name)
    objective = ours.objective()
    given = inputs(batch, rewards=case["rewards"], ones=case["masks"] == "ones")
    sets = {**batch["old"], "same": batch["logprobs"]}
    old = sets[ours.old or case["old"]]
    credited = assessed(given, objective, old=old, reference=batch["reference"])
    assert np.concatenate([g.advantages for g in credited]) == pytest.approx(
        given.spread(case["advantages"], credited), rel=EXACT, abs=1e-14
    )
    if objective.top_entropy is not None:
        entropies = given.per_group(batch["entropies"], credited)
        credited = learn_from_uncertain(credited, entropies, objective.top_entropy)
    step = take(
        given,
        credited,
        objective,
        now=batch["logprobs"],
        old=old,
        sampler=batch["sampler"] if case["sampler"] else old,
        reference=batch["reference"],
        times=ours.times,
        cap=ours.cap,
    )
    if objective.name("correction") != "none":
        told = case["rollout_weights"]
        expected = given.flat(told, credited) if isinstance(told[0], list) else given.spread(told, credited)
        assert step.corrections == pytest.approx(expected, rel=EXACT, abs=0.0)
    return step, gradient_of(case, given, credited), case


def compare_verl(name: str, ours: Ours) -> tuple[Step, FloatArray, dict[str, Any]]:
    """The same for a loss of verl, whose advantages are given."""
    batch, case = verl()["batch"], named(verl()["losses"], name)
    objective = ours.objective()
    given = inputs(batch, rewards="varied")
    credited = credit(given.groups, objective)
    old = batch["old"][case["old"]]
    sampler = batch["sampler"] if case["correction"] else old
    step = take(
        given,
        credited,
        objective,
        now=batch["logprobs"],
        old=old,
        sampler=sampler,
        reference=batch["reference"]["near"],
        advantages=given.spread(batch["advantages"], credited),
        times=ours.times,
    )
    return step, gradient_of(case, given, credited), case


COMPARE = {"trl": compare_trl, "verl": compare_verl}
LOSSES = [("trl", name, ours) for name, ours in TRL] + [("verl", name, ours) for name, ours in VERL]


def row_id(value: object) -> str | None:
    return f"{value.preset} {dict(value.options) or ''}".strip() if isinstance(value, Ours) else None


@pytest.mark.parametrize(("whose", "name", "ours"), LOSSES, ids=row_id)
def test_loss_and_gradient_of_every_logprob_equal_upstreams(whose: str, name: str, ours: Ours) -> None:
    step, gradient, case = COMPARE[whose](name, ours)
    largest = np.abs(gradient).max()
    assert step.loss == pytest.approx(case["loss"], rel=EXACT, abs=EXACT * largest)
    assert step.gradient == pytest.approx(gradient, rel=EXACT, abs=EXACT * largest)


@pytest.mark.parametrize(("whose", "name", "ours"), [row for row in LOSSES if row[2].related], ids=row_id)
def test_a_relation_is_needed(whose: str, name: str, ours: Ours) -> None:
    step, gradient, _ = COMPARE[whose](name, replace(ours, times=1.0, cap=None, old=None))
    assert np.abs(step.gradient - gradient).max() > 0.05 * np.abs(gradient).max()


def test_trl_multiplies_the_kl_by_the_answers_ratio_and_we_by_the_tokens() -> None:
    step, gradient, _ = compare_trl(SEQUENCE_KL, Ours("gspo", clip(0.2) | UNBIASED))
    lengths = [sum(mask) for mask in trl()["batch"]["masks"]]
    alone = np.repeat(lengths, lengths) == 1  # there the two are one
    assert step.gradient[alone] == pytest.approx(gradient[alone], rel=EXACT)
    off = np.abs(step.gradient - gradient)
    assert (off[~alone] > 1e-6).all()
    assert off.max() / np.abs(gradient).max() == pytest.approx(0.035, rel=ROUNDED)


def test_a_clip_bound_below_the_upper_clip_is_refused() -> None:
    with pytest.raises(ValueError, match="clip_max"):
        resolve("dapo", clip(0.2, 0.2, 1.1))


# verl's advantages, from ours before scaling.


def per_answer(group: CreditedGroup) -> FloatArray:
    return np.array([group.advantages[group.tree.trajectory == number][0] for number in range(group.tree.count)])


def keep_alone(groups: Sequence[CreditedGroup]) -> FloatArray:
    """An answer alone in its group keeps its reward, where ours is worth 0."""
    return np.concatenate([g.advantages if g.tree.count > 1 else g.advantages + alone(g) for g in groups])


def alone(group: CreditedGroup) -> float:
    reward = group.trajectories[0].reward
    assert reward is not None
    return reward


def by_group(groups: Sequence[CreditedGroup]) -> FloatArray:
    """1e-6 beside the group's standard deviation, where ours is 1e-4; that of an answer alone is 1."""
    deviations = [per_answer(group).std(ddof=1) if group.tree.count > 1 else 1.0 for group in groups]
    return keep_alone(groups) / np.repeat(np.array(deviations) + 1e-6, [sum(group.lengths) for group in groups])


def by_tokens(groups: Sequence[CreditedGroup]) -> FloatArray:
    """1e-8 beside the variance and the count, where our 1e-4 is beside the standard deviation."""
    every: FloatArray = np.concatenate([group.advantages for group in groups])
    count = len(every)
    centred = every - every.sum() / (count + 1e-8)
    variance = (centred**2).sum() / (count + 1e-8) * count / (count - 1)
    whitened: FloatArray = centred / np.sqrt(variance + 1e-8)
    return whitened


@dataclass(frozen=True, slots=True)
class Credited:
    """What of treewise has verl's advantages, `off` by at most so much, and what makes verl's exactly from ours before
    scaling."""

    preset: str
    options: Mapping[str, Any] = field(default_factory=dict)
    off: float = 0.0
    makes: Callable[[Sequence[CreditedGroup]], FloatArray] | None = None
    within: float = EXACT


WHITEN_TOKENS = {"scale": "whiten_tokens"}
LARGE_KL = {"kl_coef": 0.25}

ADVANTAGES: list[tuple[str, Credited]] = [
    ("grpo", Credited("grpo", off=3.1e-4, makes=by_group)),
    ("grpo with a group of equal rewards", Credited("grpo", off=2.7e-4, makes=by_group)),
    ("grpo with one answer alone", Credited("grpo", off=0.75, makes=by_group)),
    ("grpo vectorized", Credited("grpo", off=3.1e-4, makes=by_group, within=1e-7)),  # verl's mean of squares
    ("grpo without std", Credited("dr_grpo")),
    ("rloo", Credited("rloo", NO_KL)),
    ("rloo kl", Credited("rloo")),
    ("rloo with one answer alone", Credited("rloo", NO_KL, off=0.75, makes=keep_alone)),
    ("rloo vectorized", Credited("rloo", NO_KL)),
    ("rloo vectorized with one answer alone", Credited("rloo", NO_KL)),
    ("reinforce_pp", Credited("reinforce_pp", NO_KL, off=3.9e-4, makes=by_tokens)),
    ("reinforce_pp kl", Credited("reinforce_pp", off=3.9e-4, makes=by_tokens)),
    ("reinforce_pp kl large", Credited("reinforce_pp", LARGE_KL, off=4.8e-4, makes=by_tokens)),
    ("reinforce_pp_baseline", Credited("reinforce_pp_baseline", WHITEN_TOKENS, off=4.4e-4, makes=by_tokens)),
    # verl counts an answer once per token, the preset once.
    ("reinforce_pp_baseline", Credited("reinforce_pp_baseline", off=0.24, makes=by_tokens)),
    # verl shifts a group of equal rewards along with the others; ours stays 0.
    (
        "reinforce_pp_baseline with a group of equal rewards",
        Credited("reinforce_pp_baseline", WHITEN_TOKENS, off=0.052, makes=by_tokens),
    ),
    # In float32, with verl's ε twice, and the preset's scale counts an answer once.
    ("gdpo", Credited("gdpo", WHITEN_TOKENS, off=3.5e-4)),
    ("gdpo", Credited("gdpo", off=0.56)),
    ("gdpo default weights", Credited("gdpo", WHITEN_TOKENS, off=2.8e-4)),
]


def credited_by(name: str, preset: str, options: Mapping[str, Any]) -> tuple[list[CreditedGroup], Inputs]:
    """Ours for an advantage case of verl."""
    batch, case = verl()["batch"], named(verl()["advantages"], name)
    factors = [1.0, 1.0] if name == "gdpo default weights" else None
    given = inputs(batch, rewards=case["rewards"], owners=batch["groups"][case["groups"]], weights=factors)
    objective = resolve(preset, options, max_new_tokens=batch["max_completion_length"])
    in_reward = objective.kl_coef if objective.kl_in == "reward" else 0.0
    assert in_reward == case["kl_coef"]
    return assessed(given, objective, old=batch["old"]["wide"], reference=batch["reference"]["near"]), given


@pytest.mark.parametrize(("name", "ours"), ADVANTAGES)
def test_advantages_equal_verls_or_are_off_by_what_the_readme_says(name: str, ours: Credited) -> None:
    case = named(verl()["advantages"], name)
    credited, given = credited_by(name, ours.preset, ours.options)
    theirs = given.flat(case["advantages"], credited)
    off = np.abs(np.concatenate([group.advantages for group in credited]) - theirs).max()
    assert off == pytest.approx(ours.off, rel=ROUNDED, abs=1e-14)
    if ours.makes is not None:
        unscaled, _ = credited_by(name, ours.preset, {**ours.options, "scale": "none"})
        assert ours.makes(unscaled) == pytest.approx(theirs, rel=ours.within, abs=ours.within)
        if case["returns"] is not None:
            returns = np.concatenate([group.advantages for group in unscaled])
            assert returns == pytest.approx(given.flat(case["returns"], credited), rel=EXACT, abs=1e-14)


# Options of tis and icepop, which take verl's weights.
CORRECTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "token truncate 2": ("tis", {}),
    "token mask 0.5 5": ("icepop", {}),
    "sequence truncate 2": ("tis", {"correction_level": "sequence"}),
    "sequence mask 0.125 3": ("icepop", weights("sequence", 0.125, 3.0)),
    # verl bounds 1/k, and only says who stays: 1 where our weight is not 0.
    "reject token k1 0.5 5": ("icepop", weights("token", 1 / 5, 1 / 0.5)),
    "reject sequence k1 0.125 3": ("icepop", weights("sequence", 1 / 3, 1 / 0.125)),
    "reject geometric k1 0.6 1.4": ("icepop", weights("geometric", 1 / 1.4, 1 / 0.6)),
}


@pytest.mark.parametrize("name", CORRECTIONS)
def test_rollout_weights_equal_verls(name: str) -> None:
    batch, case = verl()["batch"], named(verl()["corrections"], name)
    preset, options = CORRECTIONS[name]
    objective = resolve(preset, options)
    given = inputs(batch, rewards="varied")
    credited = credit(given.groups, objective)
    old = batch["old"]["wide"]
    step = take(
        given, credited, objective, now=old, old=old, sampler=batch["sampler"], reference=batch["reference"]["near"]
    )
    ours = step.corrections != 0 if case["kind"] == "rollout_rs" else step.corrections
    assert ours == pytest.approx(given.flat(case["weights"], credited), rel=EXACT, abs=0.0)


# The estimator of the value, and that of the gradient.
KL: dict[str, tuple[Estimator, Estimator]] = {
    "k1": ("k1", "k1"),
    "k2": ("k2", "k2"),
    "k3": ("k3", "k3"),
    "k3 sequence": ("k3", "k3"),
    "k3 far from the reference": ("k3", "k3"),
    "k3 with the gradient of k2": ("k3", "k2"),
}
CLAMPED = {"k3 far from the reference": 2}  # tokens that verl clamps to 10, which takes their gradient away


@pytest.mark.parametrize("name", KL)
def test_kl_values_and_gradients_equal_verls(name: str) -> None:
    batch, case = verl()["batch"], named(verl()["kl"], name)
    now, reference = batch["logprobs"], batch["reference"][case["reference"]]
    given = inputs(batch, rewards="varied")
    aggregation = {"token-mean": "token", "seq-mean-token-mean": "sequence"}[case["aggregation"]]
    plain = resolve("grpo", {"kl_coef": 1.0, "aggregation": aggregation})
    credited = credit(given.groups, plain)
    nothing = given.flat(now, credited) * 0
    valued, sloped = (
        take(
            given,
            credited,
            replace(plain, kl_estimator=estimator),  # behind the check, which refuses k1 in the loss
            now=now,
            old=now,
            sampler=now,
            reference=reference,
            advantages=nothing,
        )
        for estimator in KL[name]
    )
    assert valued.kl is not None
    above = valued.kl > 10
    assert above.sum() == CLAMPED.get(name, 0)
    values, gradient = valued.kl.clip(max=10), np.where(above, 0.0, sloped.gradient)
    coefficients = np.concatenate([g.coefficients for g in credited]) / denominator_of(credited, plain)
    assert values == pytest.approx(given.flat(case["values"], credited), rel=EXACT, abs=1e-15)
    assert coefficients @ values == pytest.approx(case["loss"], rel=EXACT)
    assert gradient == pytest.approx(gradient_of(case, given, credited), rel=EXACT, abs=1e-15)
    if not above.any():
        assert valued.loss == pytest.approx(case["loss"], rel=EXACT)
    penalty = kl_estimate(
        given.flat(now, credited) - given.flat(reference, credited), replace(plain, kl_estimator=KL[name][0])
    )
    assert penalty == pytest.approx(valued.kl, rel=EXACT)


@pytest.mark.parametrize(
    ("cases", "compared"),
    [
        (lambda: trl()["cases"], [name for name, _ in TRL] + [SEQUENCE_KL]),
        (lambda: verl()["losses"], [name for name, _ in VERL]),
        (lambda: verl()["advantages"], [name for name, _ in ADVANTAGES]),
        (lambda: verl()["corrections"], list(CORRECTIONS)),
        (lambda: verl()["kl"], list(KL)),
    ],
    ids=["trl", "verl losses", "verl advantages", "verl corrections", "verl kl"],
)
def test_no_case_is_forgotten(cases: Callable[[], list[dict[str, Any]]], compared: list[str]) -> None:
    assert {case["name"] for case in cases()} == set(compared)
