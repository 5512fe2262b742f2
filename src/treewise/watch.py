"""What a person would want to know before hours are lost: warnings after a step, and the end of a diverged run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from treewise.batch import Batch
from treewise.config import Recipe
from treewise.credit import CreditedGroup, has_signal, no_verdict
from treewise.display import Display
from treewise.lifecycle import Progress
from treewise.session import Session


def watch(
    metrics: dict[str, Any],
    batch: Batch,
    credited: Sequence[CreditedGroup],
    progress: Progress,
    recipe: Recipe,
    session: Session,
    display: Display,
) -> None:
    """Say what a person would want to know before hours are lost, and stop a run that has diverged."""
    if metrics["updates/skipped"]:
        display.warn(f"step {metrics['step']}: the gradient was not finite; the weights were left as they are")
    if progress.skipped_in_a_row >= recipe.train.max_skipped_steps:
        raise FloatingPointError(
            f"{progress.skipped_in_a_row} optimizer steps in a row had a gradient that was not finite; "
            "lower optimizer.learning_rate, or look at the last rows of metrics.jsonl"
        )
    objective, weights = session.objective, session.weights
    silent = [
        (g.problem.id, t.cause) for g in batch.sampled for t in g.trajectories if no_verdict(t, objective, weights)
    ]
    answers = len(batch.sampled) * recipe.rollout.group_size
    progress.count(cause for _, cause in silent)
    if silent:
        (problem, cause), _ = Counter(silent).most_common(1)[0]
        what = (
            f"step {metrics['step']}: {len(silent)} of {answers} answers got no verdict and were left out, "
            f"for instance of problem {problem!r}: {cause}"
        )
        if len(silent) == answers and metrics["step"] == 1:
            raise ValueError(f"{what}. There is nothing to learn from; mend the rewards")
        if len(silent) > 0.01 * answers:
            display.warn(f"{what}. Leaving answers out is unbiased only if it doesn't depend on the answer")
    if metrics["completions/split_ratio"]:
        display.once(
            "the chat template changes earlier turns (as many do with thinking), so these "
            "episodes are trained as several transcripts, each as the model was given it"
        )
    if objective.group_filter != "none" and len(batch.kept) < recipe.rollout.problems_per_step:
        display.warn(
            f"step {metrics['step']}: {len(batch.kept)} of {recipe.rollout.problems_per_step} groups had reward spread "
            f"after {batch.draws} draws (objective.max_refills = {objective.max_refills}); "
            + ("learning from those" if batch.kept else "nothing is learned")
        )
    for name in (name for name, weight in weights.items() if weight):
        scores = [t.scores[name] for g in batch.sampled for t in g.trajectories if name in t.scores]
        if scores and len(silent) < answers and all(score is None for score in scores):
            display.warn(f"step {metrics['step']}: the reward {name} gave no verdict for any answer")
    nothing = not any(has_signal(group) for group in credited)
    if metrics["step"] <= 5 and metrics["completions/clipped_ratio"] > 0.9 and nothing:
        display.warn(
            f"step {metrics['step']}: {metrics['completions/clipped_ratio']:.0%} of the answers were cut at "
            f"rollout.max_new_tokens = {recipe.rollout.max_new_tokens} and no group has any reward spread, so "
            "nothing is learned; raise the limit"
        )
