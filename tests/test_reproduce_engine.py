"""What runs the experiments: nothing measured is lost, nothing is measured twice, and faults are said in one line."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from treewise import cli
from treewise.reproduce.engine import Table, run
from treewise.reproduce.options import Theorem
from treewise.reproduce.pool import measure_all

QUIET = Console(quiet=True)


def square(folder: Path, cell: dict[str, Any]) -> list[dict[str, Any]]:
    """One row, and a mark that the cell was measured; some cells fail, each in its own way."""
    (folder / f"did_{cell['n']}").touch()
    match cell.get("fault"):
        case "value":
            raise ValueError("there is no square")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    return [{"n": cell["n"], "square": np.float64(cell["n"] ** 2), "big": np.bool_(cell["n"] > 2), "none": np.nan}]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_cell_is_written_with_its_threads(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    measure_all(partial(square, tmp_path), [{"n": n} for n in range(4)], path, jobs=2, console=QUIET)
    found = sorted(lines(path), key=lambda line: line["cell"]["n"])
    assert [line["rows"] for line in found] == [
        [{"n": n, "square": n**2, "big": n > 2, "none": None}] for n in range(4)
    ]
    assert {line["threads"] for line in found} == {max(1, (os.cpu_count() or 1) // 2)}


def test_a_fault_names_its_cell_and_nothing_new_is_begun(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    cells = [{"n": 0}, {"n": 1, "fault": "value"}, {"n": 2}, {"n": 3}]
    with pytest.raises(ValueError, match="n 1, fault value: there is no square"):
        measure_all(partial(square, tmp_path), cells, path, jobs=1, console=QUIET)
    assert [line["cell"]["n"] for line in lines(path)] == [0]
    assert not (tmp_path / "did_2").exists()


def test_a_killed_worker_is_told_in_one_line(tmp_path: Path) -> None:
    cells = [{"n": 0}, {"n": 1, "fault": "killed"}]
    with pytest.raises(ValueError, match="n 1, fault killed: its process was killed"):
        measure_all(partial(square, tmp_path), cells, tmp_path / "cells.jsonl", jobs=1, console=QUIET)
    assert len(lines(tmp_path / "cells.jsonl")) == 1


def test_workers_end_with_a_command_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "treewise.cli", "reproduce", "theorem", "--device", "cpu"]
    process = subprocess.Popen([*command, "--output", str(tmp_path / "run")], stdout=subprocess.DEVNULL)
    children: list[str] = []
    for _ in range(600):
        time.sleep(0.1)
        if (tmp_path / "run/cells.jsonl").exists():
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if len(children) > 1 and (tmp_path / "run/cells.jsonl").stat().st_size:
            break
    process.kill()
    process.wait()
    assert len(children) > 1  # the worker, and Python's own tracker of resources
    for _ in range(100):
        alive = [pid for pid in children if Path(f"/proc/{pid}/cmdline").exists()]
        alive = [pid for pid in alive if Path(f"/proc/{pid}/cmdline").read_bytes()]
        if not alive:
            return
        time.sleep(0.1)
    pytest.fail(f"still there: {alive}")


def test_two_commands_do_not_measure_in_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["reproduce", "theorem", "--seeds", "1", "--device", "cpu", "--output", str(tmp_path)]
    settings = {"experiment": "theorem", **Theorem(seeds=1, device="cpu").record()}
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert cli.main(words) == 2
    assert "another command is measuring in" in capsys.readouterr().err


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="not empty, and no experiment's folder"):
        run("theorem", Theorem(), folder=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["theorem", "--sedes", "3"], "theorem has no option --sedes; the nearest is --seeds"),
        (["theorem", "--train.steps", "3"], "theorem has no option --train.steps"),
        (["theorem", "--seeds", "0"], "seeds = 0"),
        (["theorem", "--size", "large"], "size = 'large'"),
        (["theorem", "--jobs", "0"], "--jobs is 0"),
        (["theorem", "runs/x"], "theorem reads no recorded runs"),
        (["process-trees", "runs/x", "--seeds", "2"], "--seeds has no effect on runs that are recorded already"),
    ],
)
def test_what_can_not_be_meant_is_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert cli.main(["reproduce", *words, "--output", str(tmp_path / "new")]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_cell_of_a_table_may_hold_a_bar() -> None:
    text = Table("t", ("|λ|", "x"), [("1", "a|b")]).markdown()
    assert text.splitlines()[2:] == ["| \\|λ\\| | x |", "|---|---|", "| 1 | a\\|b |"]
