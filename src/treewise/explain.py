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

from treewise.credit import credit_group, denominator, token_weights
from treewise.presets import Objective
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


def explain_groups(groups: Sequence[RecordedGroup], objective: Objective) -> LossReport:
    """The loss of one optimizer step on all groups, token by token, through the functions that training uses.

    Without `logprobs` or `old_logprobs` the ratio is 1 (its gradient is not 0). `terms` hold the minus
    sign, |λ|^(−p) and 1/length: their sum is loss · D. `kl` is None without `ref_logprobs`.

    Raises:
        ValueError: if log-probs are missing that the objective needs.
    """
    import torch

    from treewise.objective import k3, loss, token_terms

    credited = [credit_group(_as_group(group), objective) for group in groups]
    total = denominator(
        [length for group in credited for length in group.lengths],
        aggregation=objective.aggregation,
        max_completion_tokens=objective.max_completion_tokens,
    )
    scored = [row for group in groups for row in group.trajectories if row.scored]
    logprobs, old_logprobs, ref_logprobs = map(torch.tensor, _logprob_columns(scored, objective))
    advantages = np.concatenate([group.advantages for group in credited])
    coefficients = np.concatenate([group.coefficients for group in credited])

    logprobs.requires_grad_()
    terms = token_terms(
        logprobs,
        advantages=torch.tensor(advantages),
        old_logprobs=old_logprobs,
        ref_logprobs=ref_logprobs,
        objective=objective,
    )
    value = loss(terms, torch.tensor(coefficients / total if total else np.zeros_like(coefficients)))
    (gradient,) = torch.autograd.grad(value, logprobs)

    columns = {
        "advantages": advantages,
        "sizes": np.concatenate([group.tree.size[group.tree.index] for group in credited]),
        "weights": np.concatenate(
            [token_weights(group.tree, exponent=objective.weight_exponent) for group in credited]
        ),
        "ratios": terms.ratios.detach().numpy(),
        "kl": k3(logprobs.detach(), ref_logprobs).numpy(),
        "terms": -coefficients * terms.objective.detach().numpy(),
        "grad": gradient.numpy(),
    }
    return LossReport(
        loss=value.item() + 0.0,
        denominator=total,
        trajectories=_in_file_order([row for group in groups for row in group.trajectories], columns),
    )


def _as_group(group: RecordedGroup) -> Group:
    """The same group as training has it; what doesn't count has no reward."""
    trajectories = tuple(
        Trajectory(
            tokens=row.tokens,
            sampled=row.sampled,
            logprobs=np.zeros(len(row.tokens)) if row.logprobs is None else row.logprobs,
            text=row.text or "",
            reward=row.reward if row.scored else None,
            stop_reason="eos",
        )
        for row in group.trajectories
    )
    return Group(Problem(id=str(group.id), prompt=""), trajectories)


def _logprob_columns(
    rows: Sequence[RecordedTrajectory], objective: Objective
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """log π, log π_old and log π_ref (nan where unknown) of the sampled tokens of all rows, each [A]."""
    logprobs: list[FloatArray] = [np.empty(0)]
    old: list[FloatArray] = [np.empty(0)]
    ref: list[FloatArray] = [np.empty(0)]
    for row in rows:
        length = int(row.sampled.sum())
        if row.logprobs is None and row.old_logprobs is not None:
            raise ValueError(f'{row.where}: "old_logprobs" without "logprobs"; give both or neither')
        known = row.logprobs is not None and row.ref_logprobs is not None
        if objective.kl_coef != 0.0 and length and not known:
            raise ValueError(
                f"{row.where}: objective.kl_coef = {objective.kl_coef} needs "
                '"logprobs" and "ref_logprobs"; add them, or set kl_coef to 0'
            )
        now = np.zeros(length) if row.logprobs is None else row.logprobs[row.sampled]
        logprobs.append(now)
        old.append(now if row.old_logprobs is None else row.old_logprobs[row.sampled])
        ref.append(row.ref_logprobs[row.sampled] if known and row.ref_logprobs is not None else now * np.nan)
    return np.concatenate(logprobs), np.concatenate(old), np.concatenate(ref)


def _in_file_order(
    rows: Sequence[RecordedTrajectory], columns: Mapping[str, FloatArray | IntArray]
) -> list[TrajectoryReport | None]:
    """Cut columns [A] over the scored rows into one report per row, a list entry for every token."""
    reports: list[TrajectoryReport | None] = [None] * len(rows)
    start = 0
    for row in rows:
        if not row.scored:
            continue
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
