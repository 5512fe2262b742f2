"""Runs an experiment: what is not measured yet is measured, then all of it is reported.

FOLDER/settings.json    what was asked for, down to the resolved recipe: written first; only its seeds may grow
FOLDER/cells.jsonl      one measured cell a line: {"cell", "rows", "seconds", "threads", "version", "commit"}
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
from treewise.device import compute_device
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
        folder: where everything is written; one that is there already must have the same settings, or fewer seeds.
        jobs: cells that are measured at one time. They share the processor's threads.
        command: what the person typed, for the record.

    Raises:
        ValueError: if the folder belongs to something else or is in use.
        ModuleNotFoundError: without the packages of the extra `reproduce`.
    """
    console = Console(highlight=False)
    console.print(f"{name}: loading")
    for package in ("scipy", "matplotlib"):  # or hours would pass until they are missed
        importlib.import_module(package)
    compute_device(options.device)  # before the folder is claimed for a device that isn't there
    study = experiment(name)
    cells = study.cells(options)
    with _alone(folder):
        settings = _claim(folder, name, options)
        measured = _measured(folder)
        missing = [cell for cell in cells if _key(cell) not in measured]
        before = len(cells) - len(missing)
        console.print(f"{name}: {options.plan(len(cells))}, {before} measured before; in {folder}", markup=False)
        if missing:
            if options.trains:
                console.print(f"progress of each: {folder}/runs/*.log", markup=False)
            measure = partial(_measure, name, options, folder)
            measure_all(measure, missing, folder / "cells.jsonl", jobs=jobs, console=console, done=before)
            measured = _measured(folder)
        lines = [measured[_key(cell)] for cell in cells]
        report = study.report(options, [row for line in lines for row in line["rows"]])
        _write(folder, settings, command, lines, report)
    for table in report.tables:
        show(console, table)
    console.print(f"results: {folder}/results.md, .json, .csv, figure.png, .svg", markup=False)
    return report


def _measure(name: str, options: Options, folder: Path, cell: Cell) -> list[dict[str, Any]]:
    return experiment(name).measure(options, cell, folder)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Two commands in one folder would train the same runs over each other. A killed one's lock is freed.

    Makes the folder, unless something else is in it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = {path.name for path in folder.iterdir()}
        if there - {"lock", ".settings.json.partial"} and "settings.json" not in there:
            raise ValueError(f"{folder} is not empty, and no experiment's folder; choose another --output")
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise ValueError(f"can't write to the folder {folder}: {error.strerror}; choose another --output") from error
    with lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # not there on Windows
            pass
        except OSError:
            raise ValueError(
                f"another command is measuring in {folder}; wait for it, or choose another --output"
            ) from None
        yield


def _claim(folder: Path, name: str, options: Options) -> dict[str, Any]:
    """Write down what is asked for, or compare it with what was; `seeds_before` are those that have grown since."""
    settings: dict[str, Any] = {"experiment": name, **options.record()}
    path = folder / "settings.json"
    if path.is_file():
        try:
            before = dict(json.loads(path.read_text(encoding="utf-8")))
            history, seeds = before.pop("seeds_before", []), before.pop("seeds")
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"{path} is no experiment's settings; choose another --output") from None
        if seeds < settings["seeds"]:
            history = [*history, seeds]
            seeds = settings["seeds"]
        before["seeds"] = seeds
        now, then = _flat(settings), _flat(before)
        changed = sorted(key for key in now.keys() | then.keys() if now.get(key) != then.get(key))
        if changed:
            key = changed[0]
            raise ValueError(
                f"{folder} was made with {key} = {then.get(key)!r}, not {now.get(key)!r}; choose another --output, or "
                "give the same options to go on (only --seeds may grow)"
            )
        if history:
            settings["seeds_before"] = history
    track.write_json(path, settings)
    return settings


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return found


def _key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def _measured(folder: Path) -> dict[str, dict[str, Any]]:
    """What `cells.jsonl` holds, by cell; a line that was cut by a kill is measured again."""
    lines, _ = read_lines(folder / "cells.jsonl")
    return {_key(line["cell"]): line for line in lines if "cell" in line}


def show(console: Console, table: Table) -> None:
    """The table as wide as it is, for its lines break alike where a terminal is narrower."""
    grid = RichTable(*(escape(name) for name in table.header), box=box.SIMPLE)
    for row in table.rows:
        grid.add_row(*(escape(cell) for cell in row))
    console.print(f"[bold]{escape(table.title)}[/]")
    Console(width=Console(width=10_000).measure(grid).maximum, file=console.file).print(grid)
    if table.note:
        console.print(escape(table.note), style="dim")
    console.print()


def _write(
    folder: Path, settings: Mapping[str, Any], command: str, lines: Sequence[Mapping[str, Any]], report: Report
) -> None:
    versions, rows = track.versions(), [row for line in lines for row in line["rows"]]
    content = {"command": command, "settings": settings, "versions": versions, "rows": rows}
    track.write_json(folder / "results.json", content | {"tables": [asdict(table) for table in report.tables]})
    with (folder / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    grown = settings.get("seeds_before")
    made = " · ".join(
        [
            f"`{command}`",
            *([f"begun with {grown[0]} seeds, but p-values take their number for fixed before"] if grown else []),
            ", ".join(dict.fromkeys(_source(line) for line in lines)),
            f"{versions['cores']} cores ({versions['processor']})",
            *(["cpu"] if settings["device"] == "cpu" else [versions["device"]]),
            ", ".join(dict.fromkeys(f"threads a cell: {line['threads']}" for line in lines)),
            ", ".join(
                [f"Python {versions['python']}"]
                + [f"{package} {versions['packages'][package]}" for package in ("torch", "transformers")]
            ),
        ]
    )
    text = "\n\n".join([made, *(table.markdown() for table in report.tables)])
    (folder / "results.md").write_text(text + "\n", encoding="utf-8", errors="backslashreplace")
    for suffix in ("png", "svg"):
        report.figure.savefig(folder / f"figure.{suffix}")


def _source(line: Mapping[str, Any]) -> str:
    """What has measured a cell: `treewise 0.1.0 (edf98b6-dirty)`, without a commit where it is installed."""
    commit, dash, dirty = (line["commit"] or "").partition("-")
    return f"treewise {line.get('version', '')}" + (f" ({commit[:7]}{dash}{dirty})" if commit else "")
