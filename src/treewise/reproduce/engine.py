"""Runs an experiment: its cells in worker processes, its rows on the disk, its report on the screen.

FOLDER/settings.json    what was asked for: written first, and never changed     versions.json   with which code
FOLDER/cells.jsonl      one measured cell a line: {"cell", "rows", "seconds"}
FOLDER/results.json     command, settings, versions, rows, tables      results.csv   the rows alone
FOLDER/results.md       tables with command, commit and machine        figure.png, figure.svg

A cell on the disk is not measured again, so a command that was stopped goes on where it was.
"""

from __future__ import annotations

import csv
import importlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as RichTable

from treewise import track
from treewise.plot.runlog import read_lines
from treewise.reproduce.options import Options

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = Mapping[str, Any]  # what is measured at once: its place in the experiment, in JSON's types
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
    """What an experiment found. `figure` is `None` where matplotlib is not installed."""

    tables: list[Table]
    figure: Figure | None


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
        ValueError: if the folder belongs to something else, or a cell can't be measured.
    """
    console = Console(highlight=False)
    study = experiment(name)
    cells = study.cells(options)
    _claim(folder, name, options, console)
    measured = _measured(folder)
    missing = [cell for cell in cells if _key(cell) not in measured]
    console.print(escape(f"{name}: {len(cells)} cells, {len(cells) - len(missing)} measured before; folder {folder}"))
    if missing:
        _measure_all(name, options, missing, folder, jobs, console, done=len(cells) - len(missing))
        measured = _measured(folder)
    rows = [row for cell in cells for row in measured[_key(cell)]["rows"]]
    report = study.report(options, rows)
    _write(folder, name, options, command, rows, report)
    for table in report.tables:
        console.print(_rendered(table))
        if table.note:
            console.print(escape(table.note) + "\n", style="dim")
    console.print(
        escape(f"results: {folder}/results.md, .json, .csv" + ("" if report.figure is None else ", figure.png, .svg"))
    )
    if report.figure is None:
        console.print("no picture: matplotlib is not installed (pip install 'treewise\\[reproduce]')")
    return report


def _claim(folder: Path, name: str, options: Options, console: Console) -> None:
    settings = {"experiment": name, **options.model_dump(mode="json")}
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
        commit = track.git_commit()
        if commit != (made := json.loads((folder / "versions.json").read_text(encoding="utf-8"))["commit"]):
            console.print(f"[bold yellow]warning:[/] begun at commit {made}, going on at {commit}", soft_wrap=True)
        return
    if folder.exists() and any(folder.iterdir()):
        raise ValueError(f"{folder} is not empty, and no experiment's folder; choose another --output")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"can't make the folder {folder}: {error.strerror}") from error
    track.write_json(folder / "versions.json", track.versions())
    track.write_json(path, settings)


def _key(cell: Cell) -> str:
    return json.dumps(cell, sort_keys=True)


def _measured(folder: Path) -> dict[str, dict[str, Any]]:
    """What `cells.jsonl` holds, by cell; a line that was cut by a kill is measured again."""
    lines, _ = read_lines(folder / "cells.jsonl")
    return {_key(line["cell"]): line for line in lines}


def _measure_all(
    name: str, options: Options, cells: Sequence[Cell], folder: Path, jobs: int, console: Console, *, done: int
) -> None:
    cores = os.cpu_count() or 1
    jobs = min(jobs, len(cells))
    pool = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_settle, initargs=(max(1, cores // jobs),)
    )
    try:
        futures = {pool.submit(_measure, name, options, cell, folder): cell for cell in cells}
        with (folder / "cells.jsonl").open("a", encoding="utf-8") as file:
            if file.tell() and not (folder / "cells.jsonl").read_bytes().endswith(b"\n"):
                file.write("\n")
            for future in _watched(futures, console, done):
                rows, seconds = future.result()
                line = {
                    "cell": futures[future],
                    "rows": [track.plain(row) for row in rows],
                    "seconds": round(seconds, 3),
                }
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                file.flush()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _watched(futures: Mapping[Future[Any], Cell], console: Console, done: int) -> Iterator[Future[Any]]:
    """The futures as they finish, with a bar; a line now and then where there is no terminal."""
    progress = Progress(
        TextColumn("measured"),
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        speed_estimate_period=3600.0,
    )
    started, total = time.perf_counter(), done + len(futures)
    with progress:
        task = progress.add_task("cells", total=total, completed=done)
        for number, future in enumerate(as_completed(futures), start=1):
            yield future
            progress.update(task, advance=1)
            if not console.is_terminal and (number == len(futures) or number % max(1, len(futures) // 20) == 0):
                left = (time.perf_counter() - started) / number * (len(futures) - number)
                console.print(f"measured {done + number} of {total}, about {left / 60:.0f} min left")


def _settle(threads: int) -> None:
    """A worker's share of the processor; and it ends when the command has been killed."""
    import torch

    torch.set_num_threads(threads)
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _measure(name: str, options: Options, cell: Cell, folder: Path) -> tuple[list[dict[str, Any]], float]:
    started = time.perf_counter()
    rows = experiment(name).measure(options, cell, folder)
    return rows, time.perf_counter() - started


def _rendered(table: Table) -> RichTable:
    shown = RichTable(title=escape(table.title), box=box.SIMPLE, title_justify="left")
    for name in table.header:
        shown.add_column(escape(name), overflow="fold")
    for row in table.rows:
        shown.add_row(*(escape(entry) for entry in row))
    return shown


def _write(folder: Path, name: str, options: Options, command: str, rows: Sequence[Row], report: Report) -> None:
    versions = json.loads((folder / "versions.json").read_text(encoding="utf-8"))
    track.write_json(
        folder / "results.json",
        {
            "experiment": name,
            "command": command,
            "settings": options.model_dump(mode="json"),
            "versions": versions,
            "rows": [track.plain(row) for row in rows],
            "tables": [asdict(table) for table in report.tables],
        },
    )
    with (folder / "results.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in rows for key in row)))
        writer.writeheader()
        writer.writerows(rows)
    packages = versions["packages"]
    made = (
        f"`{command}` · commit {versions['commit'] or 'unknown'} · {versions['cores']} cores "
        f"({versions['processor']}), {versions['device']} · Python {versions['python']}, torch {packages['torch']}, "
        f"transformers {packages['transformers']}"
    )
    text = "\n\n".join([made, *(table.markdown() for table in report.tables)])
    (folder / "results.md").write_text(text + "\n", encoding="utf-8")
    if report.figure is not None:
        for suffix in ("png", "svg"):
            report.figure.savefig(folder / f"figure.{suffix}")
