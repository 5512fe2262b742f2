"""Cells in worker processes: as many at a time as asked for, and nothing that was measured is lost.

cells ──▶ `jobs` workers, one cell at a time each ──▶ FOLDER/cells.jsonl, a line as soon as a cell is measured

a cell that                       what runs beside it          what is not begun yet
diverges (FloatingPointError)     is measured and written      too
fails otherwise, or is killed     is measured and written      is left for the next command
Ctrl-C, SIGTERM                   saves what it can, and ends  is left for the next command
"""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from treewise import __version__, track
from treewise.signals import interruptible

Cell = Mapping[str, Any]  # what is measured at once: its place in the experiment, in JSON's types
Measure = Callable[[Cell], list[dict[str, Any]]]  # must be picklable

REPORTS = 20  # lines of progress where there is no terminal


class Worker(NamedTuple):
    """A pool of one process, so that a process that is killed takes no other with it; and its id."""

    pool: ProcessPoolExecutor
    pid: Future[int]


class Measured(NamedTuple):
    """What a worker sends back of a cell."""

    rows: list[dict[str, Any]]
    seconds: float
    threads: int


def measure_all(
    measure: Measure, cells: Sequence[Cell], path: Path, *, jobs: int, console: Console, done: int = 0
) -> None:
    """Measure all cells, and append each to `path` with its rows, seconds, threads, version and commit.

    Args:
        jobs: cells at a time; each gets its share of the processor's threads, however few cells are left, unless
            OMP_NUM_THREADS says how many.
        done: cells that were measured before, for the progress bar.

    Raises:
        ValueError, FloatingPointError: of a cell, which is named. Other exceptions get that as a note.
        KeyboardInterrupt: when told to stop. All of them say how much is measured.
    """
    commit, waiting, measured = track.git_commit(), list(reversed(cells)), 0
    running: dict[Future[Measured], tuple[Cell, Worker]] = {}
    faults: list[tuple[Cell, BaseException]] = []
    workers: list[Worker] = []
    stop = passed_on = False
    with interruptible() as interrupted:
        try:
            share = max(1, (os.cpu_count() or 1) // jobs)
            workers += [_worker(share) for _ in range(min(jobs, len(cells)))]
            free = list(workers)
            with _appended(path) as file, _progress(console, done, len(cells)) as advance:
                while True:
                    # Handed out one by one: a cell in a pool's queue can't be taken back.
                    while free and waiting and not stop:
                        worker, cell = free.pop(), waiting.pop()
                        running[worker.pool.submit(_timed, measure, cell)] = cell, worker
                    if not running:
                        break
                    for future in wait(running, timeout=0.5, return_when=FIRST_COMPLETED).done:
                        cell, worker = running.pop(future)
                        free.append(worker)
                        if error := future.exception():
                            stop = stop or not isinstance(error, FloatingPointError)
                            faults.append((cell, error))
                            continue
                        rows, seconds, threads = future.result()
                        line = {"cell": cell, "rows": rows, "seconds": round(seconds, 3), "threads": threads}
                        line |= {"version": __version__, "commit": commit}
                        file.write(json.dumps(line, ensure_ascii=False) + "\n")
                        file.flush()
                        measured += 1
                        advance()
                    if interrupted() and not passed_on:
                        stop = passed_on = True
                        console.print("stopping: runs in training are saved first; press Ctrl-C again to stop at once")
                        _interrupt(running.values())
        except KeyboardInterrupt:  # the second one
            _interrupt(running.values())
        finally:
            for worker in workers:
                worker.pool.shutdown(wait=True, cancel_futures=True)
        kept = f"{done + measured} of {done + len(cells)} measured, kept in {path.parent}; the same command goes on"
        if faults or interrupted():
            raise _fault(faults, kept, stopped=interrupted())


@contextmanager
def _appended(path: Path) -> Iterator[TextIO]:
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        if file.tell() and not path.read_bytes().endswith(b"\n"):
            file.write("\n")  # behind a line that a kill has cut
        yield file


def _worker(threads: int) -> Worker:
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(1, mp_context=context, initializer=_settle, initargs=(threads,))
    return Worker(pool, pool.submit(os.getpid))


def _interrupt(running: Iterable[tuple[Cell, Worker]]) -> None:
    for _, worker in running:
        with suppress(ProcessLookupError, BrokenProcessPool):
            os.kill(worker.pid.result(), signal.SIGINT)


def _fault(faults: Sequence[tuple[Cell, BaseException]], kept: str, *, stopped: bool) -> BaseException:
    """One exception for all cells that failed, of the kind of the worst."""
    lines = []
    for cell, error in faults:
        name = ", ".join(f"{name} {value}" for name, value in cell.items())
        match error:
            case KeyboardInterrupt():
                stopped = True
            case BrokenProcessPool():
                lines.append(f"{name}: its process was killed, perhaps for want of memory; a smaller --jobs needs less")
            case _:
                lines.append(f"{name}: {error}")
    if stopped:
        return KeyboardInterrupt("\n".join([*lines, f"stopped; {kept}"]))
    worst = next((error for _, error in faults if not isinstance(error, FloatingPointError)), None)
    if worst is None:
        lines.append(
            "What has diverged is tried again from its last checkpoint. If that ends alike, choose a lower learning "
            "rate and another --output, or leave it out of the experiment"
        )
    text = "\n".join([*lines, kept])
    if worst is None:
        return FloatingPointError(text)
    if isinstance(worst, ValueError | BrokenProcessPool | SystemExit):
        return ValueError(text)
    worst.add_note(text)
    return worst


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
        if not console.is_terminal and (finished in (1, left) or finished % max(1, left // REPORTS) == 0):
            remaining = (time.perf_counter() - started) / finished * (left - finished)
            console.print(f"measured {done + finished} of {done + left}{time_left(remaining)}")

    with progress:
        yield advance


def time_left(seconds: float) -> str:
    """`, about 3 min left`; in seconds below two minutes, and empty at the end."""
    if not seconds:
        return ""
    return f", about {seconds:.0f} s left" if seconds < 120 else f", about {seconds / 60:.0f} min left"


def _settle(threads: int) -> None:
    """In a worker: it ends when the command has been killed, and takes its share of the processor only."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None, "a worker has a parent"
        parent.join()
        os._exit(1)

    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # a terminal's Ctrl-C goes to the command alone, which passes it on once
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # see _heard
    threading.Thread(target=follow, daemon=True).start()
    import torch

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)


def _timed(measure: Measure, cell: Cell) -> Measured:
    import torch

    started = time.perf_counter()
    with _heard():
        try:
            rows = [track.plain({name: _python(value) for name, value in row.items()}) for row in measure(cell)]
        except Exception as error:  # of the user's rewards, models and data
            try:
                pickle.loads(pickle.dumps(error))
            except Exception:  # some can't be sent, and the command would take this process for killed
                raise RuntimeError("".join(traceback.format_exception(error))) from None
            raise
    return Measured(rows, time.perf_counter() - started, torch.get_num_threads())


@contextmanager
def _heard() -> Iterator[None]:
    """In a worker: a signal ends the cell that is measured, not the worker; one that comes too early waits for it."""
    if not hasattr(signal, "pthread_sigmask"):  # not there on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _python(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
