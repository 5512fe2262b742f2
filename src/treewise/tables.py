"""Reports on recorded rollouts for a terminal: JSON for programs, tables for people.

     |λ|   reward   advantage   tokens   answers
       3   0.6667           0     0..1   0, 1, 2
       2      0.5     -0.2886     1..2   ├ 0, 1
       1        1     +0.5773     2..3   │ ├ 0  so it is 4

Whatever comes from the file is shown as inert text: control characters escaped, long text cut.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from treewise.analysis import GroupReport, ProcessSet, inspect_group
from treewise.axes import Objective
from treewise.explain import LossReport, TrajectoryReport, explain_groups
from treewise.records import RecordedGroup, RecordedTrajectory, read_groups, reward_weights, run_recipe
from treewise.text import inert

SHOWN_TEXT = 60  # characters of an answer
SHOWN_MEMBERS = 8
SHOWN_LINES = 40  # of a trajectory's token table
INDENTED = 8  # levels; deeper sets show their depth as a number


def inspect_command(path: str | Path, *, as_json: bool) -> None:
    """Print the process sets of every group in the file. Raises ValueError as `read_groups` does."""
    groups = read_groups(path)
    reports = [inspect_group(group) for group in groups]
    if as_json:
        _print_json(reports)
    else:
        pairs = zip(groups, reports, strict=True)
        Console(highlight=False).print(Group(*(render_inspect(group, report) for group, report in pairs)))


def explain_command(path: str | Path, objective: Objective, *, as_json: bool) -> None:
    """Print the loss of the file, token by token. Raises ValueError as `explain_groups` does."""
    groups = read_groups(path)
    weights = reward_weights(run_recipe(path), groups)
    report = explain_groups(groups, objective, weights=weights)
    if weights is None and objective.name("advantage") == "decoupled":
        print("every reward function weighs 1: the file stands in no run folder that knows better", file=sys.stderr)
    if as_json:
        _print_json(report)
    else:
        sampling = objective.group_filter != "none" or objective.overlong_penalty
        note = ["(filter and penalty belong to sampling: the groups are explained as recorded)"] if sampling else []
        Console(highlight=False).print(f"objective: {objective}", *note, render_explain(groups, report), sep="\n")


def _print_json(value: Any) -> None:
    print(json.dumps(value, allow_nan=False))


def render_inspect(group: RecordedGroup, report: GroupReport) -> RenderableType:
    """One group: a line of figures, and its process sets as an indented tree."""
    rows = group.trajectories
    table = _table("|λ|", "reward", "advantage", "tokens")
    table.add_column("answers")  # may wrap as far as the column knows, so a narrow window cuts this one
    for guide, stem, found, ending in _tree_lines(report["sets"]):
        alone = rows[found["members"][0]] if found["size"] == 1 else None
        table.add_row(
            str(found["size"]),
            _number(found["reward"]),
            _number(found["advantage"], sign=True),
            f"{found['start']}..{found['end']}",
            _line(guide + _members(found["members"]), alone),
        )
        for row in ending if alone is None else []:
            table.add_row(
                "",
                _number(rows[row].reward),
                _number(report["advantages"][row], sign=True),
                "",
                _line(f"{stem}· {row} ends", rows[row]),
                style="dim",
            )
    title = Text.assemble(("group ", "bold"), (inert(str(report["group"])), "bold"))
    return Group(title, Text(_summary(report), style="dim"), table, Text())


def _summary(report: GroupReport) -> str:
    lines = []
    if report["path_depth"] is not None:
        sharing = "flat: nothing is shared"
        if not report["flat"]:
            sharing = (
                f"path depth {report['path_depth']:.2f} · shared {report['shared_proportion']:.0%} · "
                f"intermediate {report['intermediate_proportion']:.0%}"
            )
        lines.append(f"reward {_number(report['mean'])} ± {_number(report['std'])} · {sharing}")
    missing = [row for row, advantage in enumerate(report["advantages"]) if advantage is None]
    if missing:
        lines.append(f"no verdict: {_members(missing)}")
    return "\n".join(lines)


def _tree_lines(sets: Sequence[ProcessSet]) -> Iterator[tuple[str, str, ProcessSet, list[int]]]:
    """Of sets listed depth-first: what stands left of each, what stands left of the lines below it, the
    set, and the rows whose answer ends in it."""
    parents, path = [-1] * len(sets), [0]
    deepest: dict[int, int] = dict.fromkeys(sets[0]["members"], 0)
    for number, found in enumerate(sets[1:], start=1):
        while found["members"][0] not in sets[path[-1]]["members"]:
            path.pop()
        parents[number] = path[-1]
        path.append(number)
        deepest.update(dict.fromkeys(found["members"], number))

    last_child = {parent: number for number, parent in enumerate(parents)}
    depths, stems = [0] * len(sets), [""] * len(sets)
    for number, (found, parent) in enumerate(zip(sets, parents, strict=True)):
        guide = ""
        if number:
            depths[number] = depths[parent] + 1
            last = last_child[parent] == number
            guide = stems[parent] + ("└ " if last else "├ ")
            stems[number] = stems[parent] + ("  " if last else "│ ")
        if depths[number] > INDENTED:
            guide, stems[number] = f"{stems[parent]}{depths[number]}: ", stems[parent]
        yield guide, stems[number], found, [row for row in found["members"] if deepest[row] == number]


def render_explain(groups: Sequence[RecordedGroup], report: LossReport) -> RenderableType:
    """The step's loss, and one table per trajectory; tokens with equal figures share a line."""
    rows = sorted(((row, group.id) for group in groups for row in group.trajectories), key=lambda pair: pair[0].number)
    parts: list[RenderableType] = [
        Text(f"loss {report['loss']:.6g} · denominator {report['denominator']:g}", style="bold"),
        Text("the terms sum to loss · denominator; grad is ∂loss/∂logprob", style="dim"),
        Text(),
    ]
    for (row, group), trajectory in zip(rows, report["trajectories"], strict=True):
        name = f"answer {row.number}, group {inert(str(group))}"
        if trajectory is None:
            parts += [_line(f"{name}: no verdict, left out"), Text()]
        elif not len(row.tokens):
            parts += [_line(f"{name}: empty, counts in the denominator only"), Text()]
        else:
            parts += [_line(f"{name}, reward {_number(row.reward)}", row), _token_table(trajectory), Text()]
    return Group(*parts)


def _token_table(report: TrajectoryReport) -> Table:
    table = _table("tokens", "|λ|", "weight", "ratio", "kl", "advantage", "term", "grad")
    columns = zip(
        report["sizes"],
        report["weights"],
        report["ratios"],
        report["kl"],
        report["advantages"],
        report["terms"],
        report["grad"],
        strict=True,
    )
    runs = [(values, [n for n, _ in run]) for values, run in groupby(enumerate(columns), key=lambda e: e[1])]
    for (size, weight, ratio, kl, advantage, term, grad), tokens in runs[:SHOWN_LINES]:
        table.add_row(
            f"{tokens[0]}..{tokens[-1] + 1}",
            "·" if size is None else str(size),
            _number(weight),
            _number(ratio),
            _number(kl),
            _number(advantage, sign=True),
            _number(term, sign=True),
            _number(grad, sign=True),
        )
    if len(runs) > SHOWN_LINES:
        table.add_row(f"{runs[SHOWN_LINES][1][0]}.. : --json")
    return table


def _table(*numbers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True, min_width=min(len(name), 9))
    return table


def _number(value: float | None, *, sign: bool = False) -> str:
    return "·" if value is None else f"{value:+.4g}" if sign and value else f"{value:.4g}"


def _members(rows: Sequence[int]) -> str:
    shown = ", ".join(map(str, rows[:SHOWN_MEMBERS]))
    return shown + (f", … ({len(rows)})" if len(rows) > SHOWN_MEMBERS else "")


def _line(text: str, row: RecordedTrajectory | None = None) -> Text:
    """One line, cut where the window ends: what is said about an answer, and the answer."""
    line = Text(text, no_wrap=True, overflow="ellipsis")
    return line.append(f"  {inert(row.text, limit=SHOWN_TEXT)}", style="cyan") if row is not None and row.text else line
