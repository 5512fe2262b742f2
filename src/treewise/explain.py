"""The loss of recorded rollouts, token by token, through the functions that training uses.

    token    a      |λ|  weight  ratio   term   ∂loss/∂log π
    A      -.707    2     .5      1     +.354       +.088
    B      -.707    1     1       1     +.707       +.177

(λ-GRPO; answers A B and A C, rewards 0 and 1, so D = 4.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np

from treewise.axes import Objective
from treewise.axes.aggregation import token_weights
from treewise.axes.conflicts import LOG_FORM
from treewise.axes.length_weight import LearnedPreference
from treewise.credit import CreditedGroup, credit, denominator_of
from treewise.records import RecordedGroup, RecordedTrajectory
from treewise.types import FloatArray, Group, IntArray, Problem, Trajectory


class TrajectoryReport(TypedDict):
    """One entry per token. Where the model did not sample, `terms` and `grad` are 0 and the rest is None."""

    advantages: list[float | None]
    sizes: list[int | None]
    weights: list[float | None]
    ratios: list[float | None]
    kl: list[float | None]
    terms: list[float]
    grad: list[float]


class LossReport(TypedDict):
    """What `treewise explain --json` prints: trajectories in file order, None where there is no verdict."""

    loss: float
    denominator: float
    trajectories: list[TrajectoryReport | None]


def explain_groups(
    groups: Sequence[RecordedGroup], objective: Objective, *, weights: Mapping[str, float] | None = None
) -> LossReport:
    """The loss of one optimizer step on all groups, token by token, through the functions that training uses.

    Without `logprobs` or `old_logprobs` the ratio is 1 (its gradient is not 0). `terms` hold the minus
    sign, |λ|^(−p) and 1/length: their sum is loss · D. `kl` is None without `ref_logprobs`. What belongs to sampling
    (group filter, overlong penalty) is not applied: the groups are explained as they were recorded.

    Args:
        weights: of the reward functions by name, for rules that look at single scores; default 1 each.

    Raises:
        ValueError: if something is missing that the objective needs.
    """
    import torch

    from treewise.assess import kl_estimate, learn_from_uncertain
    from treewise.axes.kl import ESTIMATORS
    from treewise.objective import loss, token_terms

    recorded = [_as_group(group) for group in groups]
    _refuse_missing(groups, objective)
    credited = credit(recorded, objective, weights=weights)
    scored = [group.trajectories[n] for group, own in zip(groups, credited, strict=True) for n in own.members]
    bounds = np.cumsum([len(group.tree.index) for group in credited])[:-1]
    now, old, ref, sampler = _logprob_columns(scored, objective)
    if objective.kl_coef and objective.kl_in == "reward":
        kl = objective.kl_coef * kl_estimate(old - ref, objective)
        credited = credit(recorded, objective, weights=weights, penalties=np.split(kl, bounds))
    if objective.top_entropy is not None:
        credited = learn_from_uncertain(credited, np.split(_entropies(scored), bounds), objective.top_entropy)
    total = denominator_of(credited, objective)
    advantages = np.concatenate([group.advantages for group in credited])
    coefficients = np.concatenate([group.coefficients * _length_weights(group, objective) for group in credited])
    lengths = [length for group in credited for length in group.lengths]

    logprobs = torch.tensor(now, requires_grad=True)
    terms = token_terms(
        logprobs,
        advantages=torch.tensor(advantages),
        old_logprobs=torch.tensor(old),
        sampler_logprobs=torch.tensor(sampler),
        ref_logprobs=torch.tensor(ref),
        trajectory=torch.repeat_interleave(torch.tensor(lengths, dtype=torch.long)),
        objective=objective,
    )
    value = loss(terms, torch.tensor(coefficients / total if total else np.zeros_like(coefficients)))
    (gradient,) = torch.autograd.grad(value, logprobs)
    policy = old if objective.kl_in == "reward" else now  # whose KL it is
    to_reference = ESTIMATORS[objective.kl_estimator](torch.tensor(policy - ref), torch.tensor(policy - old))

    columns = {
        "advantages": advantages,
        "sizes": np.concatenate([group.tree.size[group.tree.index] for group in credited]),
        "weights": np.concatenate(
            [token_weights(group.tree, exponent=objective.weight_exponent) for group in credited]
        ),
        "ratios": terms.ratios.detach().numpy(),
        "kl": to_reference.numpy(),
        "terms": -coefficients * terms.objective.detach().numpy(),
        "grad": gradient.numpy(),
    }
    return LossReport(
        loss=value.item() + 0.0,
        denominator=total,
        trajectories=_in_file_order(sum(len(group.trajectories) for group in groups), scored, columns),
    )


def _as_group(group: RecordedGroup) -> Group:
    """The same group as training has it; what doesn't count has neither reward nor scores."""
    counted = [row.kept and (len(row.tokens) == 0 or bool(row.sampled.any())) for row in group.trajectories]
    trajectories = tuple(
        Trajectory(
            tokens=row.tokens,
            sampled=row.sampled,
            logprobs=np.zeros(len(row.tokens)) if row.logprobs is None else row.logprobs,
            text=row.text or "",
            reward=row.reward if counts else None,
            stop_reason="length" if row.cut else "eos",
            scores=row.scores if counts else {},
            steps=row.steps,
            starts=row.starts,
        )
        for row, counts in zip(group.trajectories, counted, strict=True)
    )
    branched = any(row.branched for row in group.trajectories)
    return Group(Problem(id=str(group.id), prompt=""), trajectories, branched)


def _refuse_missing(groups: Sequence[RecordedGroup], objective: Objective) -> None:
    """Refuse an advantage rule or a trust region that has nothing to look at."""
    rule, rows = objective.name("advantage"), [row for group in groups for row in group.trajectories]
    if rule == "decoupled" and not any(row.scores for row in rows):
        raise ValueError(
            f'{rows[0].where}: advantage {rule!r} needs "scores", {{name: number}} of the reward functions'
        )
    unknown = [row for row in rows if row.logprobs is None and row.sampled.any()]
    if objective.name("trust_region") in LOG_FORM and unknown:
        raise ValueError(
            f"{unknown[0].where}: trust_region {objective.name('trust_region')!r} is worth a · log π: "
            'it needs "logprobs", one number per token'
        )
    if rule == "steps" and not any(row.steps for row in rows):
        raise ValueError(
            f'{rows[0].where}: advantage {rule!r} needs "steps", [[position of its last token, reward], …]'
        )


def _length_weights(group: CreditedGroup, objective: Objective) -> FloatArray:
    """[A] the length weight of each token's trajectory, a learned one at its start."""
    import torch

    from treewise.objective import length_weights

    rule = objective.length_weight
    if not isinstance(rule, LearnedPreference):
        return np.ones(len(group.tree.index))
    start = torch.tensor(rule.preference_start, dtype=torch.float64)
    weights: FloatArray = length_weights(group, objective, start).numpy()
    return weights[group.tree.trajectory]


def _entropies(rows: Sequence[RecordedTrajectory]) -> FloatArray:
    missing = [row for row in rows if row.entropies is None and row.sampled.any()]
    if missing:
        raise ValueError(
            f'{missing[0].where}: objective.top_entropy needs "entropies", one number per token; add them, or choose '
            "another preset"
        )
    return np.concatenate([np.empty(0), *(row.entropies[row.sampled] for row in rows if row.entropies is not None)])


def _logprob_columns(
    rows: Sequence[RecordedTrajectory], objective: Objective
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """log π, log π_old, log π_ref and log π_sampler (nan where unknown) of the sampled tokens of all rows, each [A]."""
    columns: list[tuple[FloatArray, ...]] = [(np.empty(0),) * 4]
    corrected, from_sampler = objective.name("correction") != "none", objective.ratio_base == "sampler"
    for row in rows:
        length = int(row.sampled.sum())
        if row.logprobs is None and (row.old_logprobs is not None or row.sampler_logprobs is not None):
            given = "old_logprobs" if row.old_logprobs is not None else "sampler_logprobs"
            raise ValueError(f'{row.where}: "{given}" without "logprobs"; give both or neither')
        known = row.logprobs is not None and row.ref_logprobs is not None
        if objective.kl_coef != 0.0 and length and not known:
            raise ValueError(
                f"{row.where}: objective.kl_coef = {objective.kl_coef} needs "
                '"logprobs" and "ref_logprobs"; add them, or set kl_coef to 0'
            )
        moved = row.old_logprobs is not None
        if length and row.sampler_logprobs is None and (corrected or (from_sampler and moved)):
            what, instead = ("the correction", "correction none") if corrected else ("the ratio", "ratio_base trainer")
            raise ValueError(
                f'{row.where}: {what} compares with the sampler: add "sampler_logprobs", one number per token, or set '
                f"objective.{instead}"
            )
        now = np.zeros(length) if row.logprobs is None else row.logprobs[row.sampled]
        old = now if row.old_logprobs is None else row.old_logprobs[row.sampled]
        ref = row.ref_logprobs[row.sampled] if known and row.ref_logprobs is not None else now * np.nan
        sampler = old if row.sampler_logprobs is None else row.sampler_logprobs[row.sampled]
        columns.append((now, old, ref, sampler))
    now, old, ref, sampler = (np.concatenate(column) for column in zip(*columns, strict=True))
    return now, old, ref, sampler


def _in_file_order(
    count: int, scored: Sequence[RecordedTrajectory], columns: Mapping[str, FloatArray | IntArray]
) -> list[TrajectoryReport | None]:
    """Cut columns [A] over the scored rows into one report per row, a list entry for every token."""
    reports: list[TrajectoryReport | None] = [None] * count
    start = 0
    for row in scored:
        own = slice(start, start := start + int(row.sampled.sum()))
        report: dict[str, list[float | None]] = {}
        for name, values in columns.items():
            entries = np.full(len(row.tokens), 0.0 if name in ("terms", "grad") else None, dtype=object)
            figures = (values[own] + 0).astype(object)  # + 0 turns -0.0 into 0.0
            figures[np.isnan(values[own])] = None
            entries[row.sampled] = figures
            report[name] = entries.tolist()
        reports[row.number] = TrajectoryReport(**report)  # type: ignore[typeddict-item]
    return reports
