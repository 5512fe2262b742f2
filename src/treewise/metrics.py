"""The figures of a step that are known before the model learns from it; names follow TRL's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treewise.analysis import tree_statistics
from treewise.credit import CreditedGroup, reward_statistics
from treewise.types import Group


def _mean(values: Sequence[float | None]) -> float | None:
    """Mean of the values that exist; `None` if there are none."""
    present = [value for value in values if value is not None]
    return float(np.mean(present)) if present else None


def step_metrics(groups: Sequence[Group], credited: Sequence[CreditedGroup]) -> dict[str, Any]:
    """Rewards, lengths and trees of one sampled batch.

    `reward` is the mean over all scored answers and `reward_std` the mean of the groups' deviations;
    `groups/no_comparison` counts the groups with fewer than two verdicts, whose advantages are 0.
    """
    answers = [trajectory for group in groups for trajectory in group.trajectories]
    lengths = np.array([int(answer.sampled.sum()) for answer in answers])
    cut = np.array([answer.stop_reason == "length" for answer in answers])
    spreads = [reward_statistics([t.reward for t in group.trajectories])[1] for group in groups]
    names = dict.fromkeys(name for answer in answers for name in answer.scores)
    trees = [tree_statistics(group.tree) for group in credited]
    return {
        "reward": _mean([answer.reward for answer in answers]),
        "reward_std": _mean(spreads),
        "frac_reward_zero_std": _mean([float(spread == 0.0) for spread in spreads if spread is not None]),
        **{f"rewards/{name}/mean": _mean([answer.scores.get(name) for answer in answers]) for name in names},
        "completions/mean_length": float(lengths.mean()),
        "completions/min_length": int(lengths.min()),
        "completions/max_length": int(lengths.max()),
        "completions/clipped_ratio": float(cut.mean()),
        "completions/stop_string_ratio": float(np.mean([answer.stop_reason == "stop" for answer in answers])),
        "completions/split_ratio": float(np.mean([bool(answer.starts) for answer in answers])),
        "groups/no_comparison": sum(
            sum(answer.reward is not None for answer in group.trajectories) < 2 for group in groups
        ),
        "no_verdict": sum(answer.reward is None for answer in answers),
        "completions/total_tokens": int(lengths.sum()),
        "tree/path_depth": _mean([tree.path_depth for tree in trees]),
        "tree/intermediate_proportion": _mean([tree.intermediate_proportion for tree in trees]),
        "tree/shared_proportion": _mean([tree.shared_proportion for tree in trees]),
        "tree/flat": _mean([float(tree.flat) for tree in trees]),
    }
