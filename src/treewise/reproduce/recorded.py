"""Recorded rollouts as trees, step by step.

    {"group": "1:a", "step": 1, "tokens": […], "reward": 1.0}  ┐
    {"group": "1:a", "step": 1, "tokens": […], "reward": 0.0}  ┘ group ─▶ figures ┐
    …                                                            group ─▶ figures ┘ one row for step 1

A run may have been killed while it wrote, so what is damaged or lacks answers is left out and counted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from treewise.analysis import GroupReport, ProcessSet, inspect_group
from treewise.records import RecordedGroup, RecordedTrajectory, parse_group, parse_object, parse_trajectory, run_recipe
from treewise.statistics import counted

USED = ("tokens", "completion_ids", "mask", "reward", "kept")  # keys of a line; what is wrong with others is no matter
COUNTS = ("flat", "without_inner", "without_credit")
MEANS = ("inner_depth", "path_depth", "intermediate_proportion", "shared_proportion", "scored", "reward", "length")
LEFT_OUT = ("damaged_lines", "incomplete_groups", "dropped_groups", "unscored_groups")
ROUNDING = 1e-9  # an advantage below is 0


def step_rows(path: Path) -> list[dict[str, Any]]:
    """The figures of a file's groups, a row for every step; step 0 holds what has no step.

    Of a step's groups a row has the number, how many of them are what COUNTS names, the means of what MEANS names
    (None without a group), what was left out, and the first damaged line with its reason.

    Raises:
        ValueError: if no group can be used.
    """
    recipe = run_recipe(path)
    left_out: Counter[tuple[int, str]] = Counter()
    damage: dict[int, str] = {}
    steps: dict[int, list[dict[str, Any]]] = defaultdict(list)
    sizes: Counter[int] = Counter()
    for step, group in read_steps(path, None if recipe is None else recipe.rollout.group_size, left_out, damage):
        if not all(row.kept for row in group.trajectories):
            left_out[step, "dropped_groups"] += 1
        elif sum(row.scored for row in group.trajectories) < 2:
            left_out[step, "unscored_groups"] += 1
        else:
            steps[step].append(figures(group))
            sizes[len(group.trajectories)] += 1
    if not sizes:
        reasons = listed((reason, number) for (_, reason), number in left_out.items())
        first = f"; first damaged line: {next(iter(damage.values()))}" if damage else ""
        raise ValueError(f"{path} has no whole group with two verdicts; left out: {reasons or 'nothing'}{first}")
    return [
        {
            "group_size": sizes.most_common(1)[0][0],
            "step": step,
            "groups": len(steps[step]),
            **{name: int(sum(found[name] for found in steps[step])) for name in COUNTS},
            **{name: float(np.mean([found[name] for found in steps[step]])) if steps[step] else None for name in MEANS},
            **{reason: left_out[step, reason] for reason in LEFT_OUT},
            "damage": damage.get(step),
        }
        for step in sorted(steps.keys() | {step for step, _ in left_out})
    ]


def read_steps(
    path: Path, size: int | None, left_out: Counter[tuple[int, str]], damage: dict[int, str]
) -> Iterator[tuple[int, RecordedGroup]]:
    """The groups of a file with their steps.

    What can't be read is counted by (step, reason) in `left_out`, and the first damaged line of a step is named in
    `damage`. A group of `size` answers is given as soon as it is whole, so that a long run needs little memory, and one
    that lacks answers is left out. Where the size is not known all groups are given, at the end.
    """
    groups: dict[tuple[int, str | int], list[RecordedTrajectory]] = defaultdict(list)
    step = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                row = parse_object(line, where)
                step = _step(row, where)
                key = step, parse_group(row, where)
                answer = parse_trajectory({name: row[name] for name in USED if name in row}, where, number)
            except ValueError as error:
                left_out[step, "damaged_lines"] += 1
                damage.setdefault(step, str(error))
                continue
            groups[key].append(answer)
            if len(groups[key]) == size:
                yield step, RecordedGroup(key[1], tuple(groups.pop(key)))
    for (step, name), answers in groups.items():
        if size is None:
            yield step, RecordedGroup(name, tuple(answers))
        else:
            left_out[step, "incomplete_groups"] += 1


def _step(row: Mapping[str, Any], where: str) -> int:
    """The step of a line, 0 if it has none."""
    value = row.get("step")
    if value is None:
        return 0
    if type(value) not in (int, float) or not (abs(value) < 2**53 and value == int(value)):
        raise ValueError(f'{where}: "step" is {str(value)[:40]}; it must be a whole number')
    return int(value)


def figures(group: RecordedGroup) -> dict[str, Any]:
    """What COUNTS and MEANS name, of a group with two scored answers or more."""
    found = inspect_group(group)
    rows = [row for row in group.trajectories if row.scored]
    inner = inner_sets(group, found)
    return {
        "flat": found["shared_proportion"] == 0.0,  # `flat` of the report counts what the environment said, too
        "without_inner": not inner,
        "without_credit": not any(abs(between["advantage"] or 0.0) > ROUNDING for between in inner),
        "inner_depth": sum(between["size"] for between in inner) / len(rows),
        **{name: found[name] for name in ("path_depth", "intermediate_proportion", "shared_proportion")},
        "scored": len(rows),
        "reward": np.mean([row.reward for row in rows]),
        "length": np.mean([row.sampled.sum() for row in rows]),
    }


def inner_sets(group: RecordedGroup, report: GroupReport) -> list[ProcessSet]:
    """The process sets between the root and the leaves that span a sampled token. Copies of an answer are one leaf."""
    return [
        found
        for found, following in pairwise(report["sets"][1:])  # depth-first: a child follows its parent
        if {*following["members"]} <= {*found["members"]}
        and group.trajectories[found["members"][0]].sampled[found["start"] : found["end"]].any()
    ]


def listed(left_out: Iterable[tuple[str, int]]) -> str:
    """How much was left out for each reason, for people; empty if nothing was."""
    total: Counter[str] = Counter()
    for reason, number in left_out:
        total[reason] += number
    names = {reason: reason.replace("_", " ").removesuffix("s") for reason in LEFT_OUT}
    return ", ".join(counted(total[reason], name) for reason, name in names.items() if total[reason])
