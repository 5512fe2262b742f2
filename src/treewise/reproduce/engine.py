"""Runs an experiment: what is not measured yet is measured, then all of it is reported.

FOLDER/settings.json    what was asked for, down to the resolved recipe: written first, and never changed
FOLDER/cells.jsonl      one measured cell a line: {"cell", "rows", "seconds", "threads", "commit"}
FOLDER/results.json     command, settings, versions, rows, tables      results.csv   the rows alone
FOLDER/results.md       tables with command, commits and machine       figure.png, figure.svg

A cell on the disk is not measured again, so a command that was stopped goes on where it was.
"""

from __future__ import annotations

import csv
import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from treewise import track
from treewise.reproduce.options import Options
from treewise.reproduce.pool import Cell, measure_all
from treewise.track import read_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, Any]  # one line of results.csv


@dataclass(frozen=True, slots=True)
class Table:
    """A table for people; `note` says below it what they should know."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    note: str = ""

    def markdown(self) -> str:
        """The table as Markdown, with its title above and its note below."""
        header, *rows = (
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (self.header, *self.rows)
        )
        lines = [header, "|" + "---|" * len(self.header), *rows]
        return "\n\n".join(part for part in (f"**{self.title}**", "\n".join(lines), self.note) if part)


@dataclass(frozen=True, slots=True)
class Report:
    """What an experiment found, for people; the rows are for programs."""

    tables: list[Table]
    figure: Figure


class Experiment(Protocol):
    """The functions that an experiment's module has."""

    def cells(self, options: Any) -> list[dict[str, Any]]:
        """Everything to measure, most interesting first."""
        ...

    def measure(self, options: Any, cell: Cell, folder: Path) -> list[dict[str, Any]]:
        """One cell's rows, in a process of its own; `folder` is the experiment's, for what is too large for a row."""
        ...

    def report(self, options: Any, rows: Sequence[Row]) -> Report:
        """Tables and picture of all rows."""
        ...


def experiment(name: str) -> Experiment:
    """The module of an experiment."""
    module: Any = importlib.import_module(f"treewise.reproduce.{name.replace('-', '_')}")
    return module  # type: ignore[no-any-return]


def run(name: str, options: Options, *, folder: Path, jobs: int = 1, command: str = "") -> Report:
    """Measure what is not there yet, then write and return the report.

    Args:
        folder: where everything is written; one that is there already must have the same settings.
        jobs: cells that are measured at one time. They share the processor's threads.
        command: what the person typed, for the record.

    Raises:
        ValueError: if the folder belongs to something else or is in use, or a cell can't be measured.
        ModuleNotFoundError: without the packages of the extra `reproduce`.
    """
    for package in ("scipy", "matplotlib"):  # or hours would pass until they are missed
        importlib.import_module(package)
    console = Console(highlight=False)
    study = experiment(name)
    cells = study.cells(options)
    _claim(folder, name, options)
    with _alone(folder):
        measured = _measured(folder)
        missing = [cell for cell in cells if _key(cell) not in measured]
        before = len(cells) - len(missing)
        console.print(f"{name}: {len(cells)} cells, {before} measured before; folder {folder}", markup=False)
        if missing:
            measure = partial(_measure, name, options, folder)
            measure_all(measure, missing, folder / "cells.jsonl", jobs=jobs, console=console, done=before)
            measured = _measured(folder)
        lines = [measured[_key(cell)] for cell in cells]
        report = study.report(options, [row for line in lines for row in line["rows"]])
        _write(folder, name, options, command, lines, report)
    for table in report.tables:
        _show(console, table)
    console.print(f"results: {folder}/results.md, .json, .csv, figure.png, .svg", markup=False)
    return report


def _measure(name: str, options: Options, folder: Path, cell: Cell) -> list[dict[str, Any]]:
    return experiment(name).measure(options, cell, folder)


def _claim(folder: Path, name: str, options: Options) -> None:
    settings = {"experiment": name, **options.record()}
    path = folder / "settings.json"
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        changed = sorted(key for key in settings.keys() | before.keys() if settings.get(key) != before.get(key))
        if changed:
            key = changed[0]
            raise ValueError(
                f"{folder} was made with {key} = {before.get(key)!r}, not {settings.get(key)!r}; "
                "choose another --output, or give the same options to go on"
            )
        return
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty, and no experiment's folder; choose another --output")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"can't make the folder {folder}: {error.strerror}") from error
    track.write_json(path, settings)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two commands in one folder would train the same runs over each other. A killed one's lock is freed ."""
    try:
        import fcntl
    except ImportError:  # not there on Windows
        yield
        return
    with (folder / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"another command is measuring in {folder}; wait for it, or choose another --output"
            ) from None
        yield


def _key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def _measured(folder: Path) -> dict[str, dict[str, Any]]:
    """What `cells.jsonl` holds, by cell; a line that was cut by a kill is measured again."""
    lines, _ = read_lines(folder / "cells.jsonl")
    return {_key(line["cell"]): line for line in lines}


def _show(console: Console, table: Table) -> None:
    """The table; where it is too wide for the terminal, a line for each of its rows, with the names of the columns."""
    grid = RichTable(*(escape(name) for name in table.header), box=box.SIMPLE)
    for row in table.rows:
        grid.add_row(*(escape(cell) for cell in row))
    console.print(f"[bold]{escape(table.title)}[/]")
    if Console(width=1000).measure(grid).maximum <= console.width:
        console.print(grid)
    else:
        for first, *rest in table.rows:
            cells = zip(table.header[1:], rest, strict=True)
            shown = (f"[dim]{escape(name)}[/] {escape(cell)}" for name, cell in cells if cell)
            console.print(f"[bold]{escape(table.header[0])} {escape(first)}[/]  " + " · ".join(shown))
        console.print()
    if table.note:
        console.print(escape(table.note), style="dim")
    console.print()


def _write(
    folder: Path, name: str, options: Options, command: str, lines: Sequence[Mapping[str, Any]], report: Report
) -> None:
    versions, rows = track.versions(), [row for line in lines for row in line["rows"]]
    settings = {"experiment": name, **options.record()}
    content = {"command": command, "settings": settings, "versions": versions, "rows": rows}
    track.write_json(folder / "results.json", content | {"tables": [asdict(table) for table in report.tables]})
    with (folder / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    made = " · ".join(
        [
            f"`{command}`",
            "commit " + ", ".join(dict.fromkeys(str(line["commit"]) for line in lines)),
            f"{versions['cores']} cores ({versions['processor']})",
            *(["cpu"] if options.device == "cpu" else [versions["device"]]),
            ", ".join(dict.fromkeys(f"threads a cell: {line['threads']}" for line in lines)),
            ", ".join(
                [f"Python {versions['python']}"]
                + [f"{package} {versions['packages'][package]}" for package in ("torch", "transformers")]
            ),
        ]
    )
    text = "\n\n".join([made, *(table.markdown() for table in report.tables)])
    (folder / "results.md").write_text(text + "\n", encoding="utf-8")
    for suffix in ("png", "svg"):
        report.figure.savefig(folder / f"figure.{suffix}")
