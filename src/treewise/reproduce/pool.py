"""Cells in worker processes: as many at a time as asked for, and nothing that was measured is lost.

cells ──▶ at most `jobs` workers ──▶ FOLDER/cells.jsonl, a line as soon as a cell is measured
"""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from treewise import track

Cell = Mapping[str, Any]  # what is measured at once: its place in the experiment, in JSON's types
Measure = Callable[[Cell], list[dict[str, Any]]]  # must be picklable

REPORTS = 20  # lines of progress where there is no terminal


def measure_all(
    measure: Measure, cells: Sequence[Cell], path: Path, *, jobs: int, console: Console, done: int = 0
) -> None:
    """Measure all cells, and append each to `path` with its rows, seconds, threads and commit.

    Args:
        jobs: cells at a time; each gets its share of the processor's threads, however few cells are left.
        done: cells that were measured before, for the progress bar.

    Raises:
        ValueError, FloatingPointError: of a cell, which is named; what runs beside it is finished and written first.
    """
    threads, commit = max(1, (os.cpu_count() or 1) // jobs), track.git_commit()
    context = multiprocessing.get_context("spawn")
    waiting, running = iter(cells), dict[Future[tuple[list[dict[str, Any]], float]], Cell]()
    fault: Exception | None = None
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_settle, initargs=(threads,))
    try:
        with path.open("a", encoding="utf-8") as file, _progress(console, done, len(cells)) as advance:
            if file.tell() and not path.read_bytes().endswith(b"\n"):
                file.write("\n")  # behind a line that a kill has cut
            while True:
                # Handed out one by one: a cell in the pool's queue can't be taken back.
                while fault is None and len(running) < jobs and (cell := next(waiting, None)) is not None:
                    running[pool.submit(_timed, measure, cell)] = cell
                if not running:
                    break
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    cell = running.pop(future)
                    try:
                        rows, seconds = future.result()
                    except (ValueError, FloatingPointError) as error:
                        fault = fault or type(error)(f"{_named(cell)}: {error}")
                        continue
                    except BrokenProcessPool:
                        fault = ValueError(
                            f"{_named(cell)}: its process was killed, perhaps for want of memory; "
                            "the same command goes on, with a smaller --jobs it needs less"
                        )
                        continue
                    line = {"cell": cell, "rows": rows, "seconds": round(seconds, 3)}
                    file.write(json.dumps({**line, "threads": threads, "commit": commit}, ensure_ascii=False) + "\n")
                    file.flush()
                    advance()
        if fault is not None:
            raise fault
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _named(cell: Cell) -> str:
    return ", ".join(f"{name} {value}" for name, value in cell.items())


@contextmanager
def _progress(console: Console, done: int, left: int) -> Iterator[Callable[[], None]]:
    """A bar with the time left; a line now and then where there is no terminal."""
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
    task = progress.add_task("cells", total=done + left, completed=done)
    started, finished = time.perf_counter(), 0

    def advance() -> None:
        nonlocal finished
        finished += 1
        progress.update(task, advance=1)
        if not console.is_terminal and (finished == left or finished % max(1, left // REPORTS) == 0):
            remaining = (time.perf_counter() - started) / finished * (left - finished)
            console.print(f"measured {done + finished} of {done + left}, about {remaining / 60:.0f} min left")

    with progress:
        yield advance


def _settle(threads: int) -> None:
    """In a worker: it ends when the command has been killed, and takes its share of the processor only."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None, "a worker has a parent"
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    import torch

    torch.set_num_threads(threads)


def _timed(measure: Measure, cell: Cell) -> tuple[list[dict[str, Any]], float]:
    started = time.perf_counter()
    rows = [track.plain({name: _python(value) for name, value in row.items()}) for row in measure(cell)]
    return rows, time.perf_counter() - started


def _python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
