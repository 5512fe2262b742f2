"""What the pictures read of a run folder: curves, and one group that is worth a look.

    RUN/metrics.jsonl, eval.jsonl ─▶ Curves        RUN/rollouts.jsonl ─▶ Candidate × many ─▶ the one to draw

A run may have been killed while it wrote: damaged and half-written lines are left out and counted.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from treewise.analysis import GroupReport, inspect_group
from treewise.records import RecordedGroup, RecordedTrajectory
from treewise.track import read_lines
from treewise.types import FloatArray

TAIL = 64 * 2**20  # bytes of rollouts.jsonl that are searched for a group to draw
LAST_STEPS = 0.2  # share of the steps that the group comes from
CANDIDATES = 200  # groups whose trees are compared


@dataclass(frozen=True, slots=True)
class Points:
    """Held-out scores of one name: `mean[n]` with 95 % limits at `steps[n]`."""

    steps: FloatArray
    mean: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, slots=True)
class Curves:
    """What a run's metrics and evaluations say; `skipped` counts unreadable lines."""

    steps: FloatArray
    reward: FloatArray
    held_out: dict[str, Points]
    skipped: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """One recorded group, ready to draw."""

    step: int
    problem: str
    prompt: str
    rows: list[RecordedTrajectory]
    pieces: list[list[str] | None]
    report: GroupReport


def _number(value: Any) -> float:
    """A finite number as it stands, nan for anything else."""
    try:
        return float(value) if type(value) in (int, float) and math.isfinite(value) else math.nan
    except OverflowError:  # an integer beyond float64
        return math.nan


def read_curves(run: Path) -> Curves:
    """Rewards per step and evaluations of a run; of a step that was done twice the later line counts."""
    metrics, damaged = read_lines(run / "metrics.jsonl")
    evaluations, damaged_too = read_lines(run / "eval.jsonl")
    rewards = {_number(row.get("step")): _number(row.get("reward")) for row in metrics}
    rewards = {step: reward for step, reward in sorted(rewards.items()) if not math.isnan(step + reward)}
    found: dict[str, dict[float, tuple[float, float, float]]] = defaultdict(dict)
    for row in evaluations:
        scores = row.get("accuracy")
        for name, score in scores.items() if isinstance(scores, Mapping) else ():
            if isinstance(score, Mapping):
                mean, low, high = (_number(score.get(key)) for key in ("mean", "low", "high"))
                if not math.isnan(mean + _number(row.get("step"))):
                    found[name][_number(row["step"])] = (mean, low, high)
    held_out = {
        name: Points(np.array(sorted(points)), *np.array([points[step] for step in sorted(points)]).T)
        for name, points in found.items()
    }
    return Curves(np.array(list(rewards)), np.array(list(rewards.values())), held_out, damaged + damaged_too)


def running_mean(values: FloatArray) -> FloatArray:
    """Centred mean over a tenth of the values; at both ends over what there is."""
    window = np.ones(2 * (len(values) // 20) + 1)
    return np.convolve(values, window, "same") / np.convolve(np.ones(len(values)), window, "same")


def _candidate(lines: Sequence[Mapping[str, Any]]) -> Candidate | None:
    """A group from its lines, None if one of them lacks what a drawing needs."""
    try:
        rows = [
            RecordedTrajectory(
                where="",
                number=number,
                tokens=np.array(line["tokens"], dtype=np.int64),
                sampled=np.array(line.get("mask") or [1] * len(line["tokens"]), dtype=bool),
                reward=None if line["reward"] is None else float(line["reward"]),
                text=str(line.get("text") or ""),
            )
            for number, line in enumerate(lines)
        ]
        report = inspect_group(RecordedGroup(str(lines[0]["group"]), tuple(rows)))
        step, problem = int(lines[0]["step"]), str(lines[0].get("problem", ""))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    pieces = [line.get("pieces") if _is_text(line.get("pieces")) else None for line in lines]
    return Candidate(step, problem, _prompt_text(lines[0].get("prompt")), rows, pieces, report)


def _is_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(piece, str) for piece in value)


def _prompt_text(prompt: Any) -> str:
    """A prompt's text; of a chat the last message's."""
    if isinstance(prompt, list) and prompt and isinstance(prompt[-1], Mapping):
        prompt = prompt[-1].get("content")
    return prompt if isinstance(prompt, str) else ""


def _branching_sets(report: GroupReport) -> int:
    """Sets below the root that several answers share before they part."""
    sets = report["sets"]
    pairs = itertools.pairwise(sets[1:])  # a set's first child follows it
    return sum(s["size"] > 1 and set(child["members"]) < set(s["members"]) for s, child in pairs)


def choose_group(run: Path) -> tuple[Candidate | None, int]:
    """The most instructive group of a run's last steps, and how many lines of its rollouts were unreadable.

    That is one whose rewards are spread and whose answers part in several places (six fill a picture).
    """
    path = run / "rollouts.jsonl"
    lines, skipped = read_lines(path, tail=TAIL)
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in lines:
        if not math.isnan(_number(line.get("step"))):
            groups[str(line.get("group"))].append(line)
    if len(groups) > 1 and path.stat().st_size > TAIL:
        del groups[next(iter(groups))]  # its first lines may be missing
    last = max((group[0]["step"] for group in groups.values()), default=0)
    recent = [group for group in groups.values() if group[0]["step"] >= (1 - LAST_STEPS) * last]
    varied = [group for group in recent if len({_number(line.get("reward")) for line in group}) > 1]
    candidates = [_candidate(group) for group in (varied or recent)[-CANDIDATES:]]

    def rank(candidate: Candidate) -> tuple[float, int]:
        spread = candidate.report["std"] or 0.0
        return spread * (1 + min(_branching_sets(candidate.report), 6)), candidate.step

    found = [c for c in candidates if c is not None and c.report["mean"] is not None]
    return max(found, key=rank, default=None), skipped
