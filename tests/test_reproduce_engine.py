"""What runs the experiments: nothing measured is lost, nothing is measured twice, and faults are said in one line."""

from __future__ import annotations

import fcntl
import io
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
import torch
from rich.console import Console

from treewise import cli, track
from treewise.reproduce import ab, theorem
from treewise.reproduce.engine import Table, run, show
from treewise.reproduce.options import AB, EXPERIMENTS, Theorem, make_options
from treewise.reproduce.pool import _progress, _timed, measure_all, time_left

QUIET = Console(quiet=True)


class OddError(RuntimeError):
    """Can't be unpickled: it takes two arguments, and keeps one."""

    def __init__(self, text: str, more: int) -> None:
        super().__init__(text)


def square(folder: Path, cell: dict[str, Any]) -> list[dict[str, Any]]:
    """One row, and a mark that the cell was measured; some cells fail, each in its own way."""
    (folder / f"did_{cell['n']}").touch()
    if "threads" in cell:
        torch.set_num_threads(cell["threads"])
    while "after" in cell and not (folder / f"did_{cell['after']}").exists():
        time.sleep(0.05)
    match cell.get("fault"):
        case "value":
            raise ValueError("there is no square")
        case "memory":
            raise RuntimeError("out of memory")
        case "diverged":
            raise FloatingPointError("the weights are no longer finite")
        case "odd":
            raise OddError("not to be sent", 1)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    if "after" in cell:
        time.sleep(1.0)  # until the other one's fault is known
    return [{"n": cell["n"], "square": np.float64(cell["n"] ** 2), "big": np.bool_(cell["n"] > 2), "none": np.nan}]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_cell_is_written_with_the_threads_that_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # what the person wants counts, not what there is
    path = tmp_path / "cells.jsonl"
    cells = [{"n": 0}, {"n": 3, "threads": 2}]
    measure_all(partial(square, tmp_path), cells, path, jobs=1, console=QUIET)
    found = lines(path)
    assert [line["rows"] for line in found] == [[{"n": n, "square": n**2, "big": n > 2, "none": None}] for n in (0, 3)]
    assert [line["threads"] for line in found] == [1, 2]
    assert {line["commit"] for line in found} == {track.git_commit()}


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("value", ValueError, "n 1, fault value, after 0: there is no square"),
        ("memory", RuntimeError, "n 1, fault memory, after 0: out of memory"),
        ("killed", ValueError, "n 1, fault killed, after 0: its process was killed"),
    ],
)
def test_a_fault_names_its_cell_and_what_runs_beside_it_is_written(
    fault: str, kind: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "cells.jsonl"
    cells = [{"n": 0, "after": 1}, {"n": 1, "fault": fault, "after": 0}, {"n": 2}]
    with pytest.raises(kind) as caught:
        measure_all(partial(square, tmp_path), cells, path, jobs=2, console=QUIET)
    assert [line["cell"]["n"] for line in lines(path)] == [0]
    assert not (tmp_path / "did_2").exists()  # nothing new is begun
    said = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert message in said
    assert f"1 of 3 measured, kept in {tmp_path}; the same command goes on" in said


def test_a_cell_that_diverges_does_not_keep_the_others_from_being_measured(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    cells = [{"n": 0, "fault": "diverged"}, {"n": 1}]
    with pytest.raises(
        FloatingPointError, match=r"^n 0, fault diverged: the weights (.|\n)*rate(.|\n)*1 of 2 measured"
    ):
        measure_all(partial(square, tmp_path), cells, path, jobs=1, console=QUIET)
    assert [line["cell"]["n"] for line in lines(path)] == [1]


def test_an_exception_that_can_not_be_sent_is_not_taken_for_a_killed_process(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="OddError: not to be sent") as caught:
        _timed(partial(square, tmp_path), {"n": 0, "fault": "odd"})
    assert type(caught.value) is RuntimeError


def begin(folder: Path) -> tuple[subprocess.Popen[str], list[str]]:
    """A command in a process group of its own that has measured something, and its children."""
    words = ["reproduce", "theorem", "--device", "cpu", "--output", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-m", "treewise.cli", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for _ in range(6000):
        time.sleep(0.1)
        if (folder / "cells.jsonl").exists() and (folder / "cells.jsonl").stat().st_size:
            break
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) > 1  # the worker, and Python's own tracker of resources
    return process, children


def test_a_command_that_is_told_to_stop_says_what_is_kept(tmp_path: Path) -> None:
    process, _ = begin(tmp_path / "run")
    os.killpg(process.pid, signal.SIGTERM)
    _, error = process.communicate()
    measured = len(lines(tmp_path / "run/cells.jsonl"))
    assert error == (
        f"treewise: stopped; {measured} of 20 measured, kept in {tmp_path / 'run'}; the same command goes on\n"
    )
    assert process.returncode == 130


def test_workers_end_with_a_command_that_is_killed(tmp_path: Path) -> None:
    process, children = begin(tmp_path / "run")
    process.kill()
    process.communicate()
    for _ in range(100):
        alive = [pid for pid in children if Path(f"/proc/{pid}/cmdline").exists()]
        alive = [pid for pid in alive if Path(f"/proc/{pid}/cmdline").read_bytes()]
        if not alive:
            return
        time.sleep(0.1)
    pytest.fail(f"still there: {alive}")


@pytest.mark.parametrize("begun", [True, False])
def test_two_commands_do_not_measure_in_one_folder(begun: bool, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    words = ["reproduce", "theorem", "--seeds", "1", "--device", "cpu", "--output", str(tmp_path)]
    if begun:
        settings = {"experiment": "theorem", **Theorem(seeds=1, device="cpu").record()}
        (tmp_path / "settings.json").write_text(json.dumps(settings))
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert cli.main(words) == 2
    assert "another command is measuring in" in capsys.readouterr().err
    assert (tmp_path / "settings.json").exists() == begun  # what the other one will measure is not for this one to say


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ValueError, match="not empty, and no experiment's folder"):
        run("theorem", Theorem(), folder=tmp_path)
    with pytest.raises(ValueError, match="can't write to the folder"):
        run("theorem", Theorem(), folder=tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    (tmp_path / "settings.json").write_text('{"editor.fontSize": 12}')
    with pytest.raises(ValueError, match="is no experiment's settings"):
        run("theorem", Theorem(), folder=tmp_path)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_claims_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="finds no GPU; choose cpu"):
        run("theorem", Theorem(device="cuda"), folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_terminal_or_a_path_that_is_no_unicode_costs_no_result(tmp_path: Path) -> None:
    rows = [{"group": "a", "tokens": [1, n], "reward": n} for n in (0, 1)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [sys.executable, "-m", "treewise.cli", "inspect", str(tmp_path / "rows.jsonl")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert "|\\u03bb|" in done.stdout
    name = {"command": "treewise --output o/\udcff"}
    track.write_json(tmp_path / "odd.json", name)
    assert json.loads((tmp_path / "odd.json").read_text(encoding="utf-8")) == name


def test_seeds_may_be_added_in_the_same_folder_and_the_results_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    rows = theorem.measure(Theorem(device="cpu"), {"seed": 0}, tmp_path)
    for seed in range(2):
        line = {
            "cell": {"seed": seed},
            "rows": [row | {"seed": seed} for row in rows],
            "threads": 1,
            "version": "0.1.0",
        }
        with (tmp_path / "cells.jsonl").open("a") as file:
            file.write(json.dumps(line | {"commit": None if seed else "0123456789-dirty"}) + "\n")
    (tmp_path / "settings.json").write_text(
        json.dumps({"experiment": "theorem", **Theorem(seeds=1, device="cpu").record()})
    )
    run("theorem", Theorem(seeds=2, device="cpu"), folder=tmp_path, command="treewise reproduce theorem")
    assert "theorem: 2 batches, 2 measured before" in capsys.readouterr().out
    settings = json.loads((tmp_path / "settings.json").read_text())
    assert (settings["seeds"], settings["seeds_before"]) == (2, [1])
    made = (tmp_path / "results.md").read_text().splitlines()[0]
    assert "begun with 1 seeds" in made
    assert "treewise 0.1.0 (0123456-dirty), treewise 0.1.0 · " in made
    with pytest.raises(ValueError, match=r"made with seeds = 2, not 1.*only --seeds may grow"):
        run("theorem", Theorem(seeds=1, device="cpu"), folder=tmp_path)
    with pytest.raises(ValueError, match="made with size = 'tiny', not 'small'"):
        run("theorem", Theorem(seeds=2, size="small", device="cpu"), folder=tmp_path)


def test_with_more_seeds_runs_of_the_baseline_move_from_its_own_control_to_the_comparison() -> None:
    few, many = (make_options("ab", {"seeds": seeds, "evaluations": 1, "smoothing": 1}) for seeds in (2, 3))
    assert isinstance(few, AB)
    assert isinstance(many, AB)
    assert all(cell in ab.cells(many) for cell in ab.cells(few))
    rows = [
        {**cell, "step": step, "tokens": step, "seconds": float(step), "problems": 9, "score": step * score}
        for cell in ab.cells(many)
        for score in [cell["seed"] if cell["preset"] == many.presets[0] else cell["seed"] + 0.5]
        for step in (0, 1)
    ]
    scores = [[float(curve.score[-1]) for curve in arm.runs] for arm in ab.arms_of(many, rows)]
    assert scores == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [0.5, 1.5, 2.5]]  # the baseline, its control, the other preset


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["theorem", "--sedes", "3"], "theorem has no option --sedes; the nearest is --seeds"),
        (["theorem", "--train.steps", "3"], "theorem has no option --train.steps"),
        (["theorem", "--seeds", "0"], "--seeds 0: must be at least 1"),
        (["theorem", "--size", "large"], "--size large: must be 'tiny' or 'small'"),
        (["theorem", "--jobs", "0"], "--jobs is 0"),
        (["theorem", "runs/x"], "theorem reads no recorded runs"),
        (["process-trees", "runs/x", "--seeds", "2"], "--seeds has no effect on runs that are recorded already"),
        (["process-trees", "runs/x", "runs/x"], "runs: runs/x is given twice"),
        (["process-trees", "--group-sizes", "6,36,6"], "--group-sizes: 6 is given twice"),
        (["process-trees", "--rollout.group_size", "6"], "has no effect: the experiment sets it in every run"),
        (["synthetic-tree", "--traps=-1,-1.0"], "--traps: -1.0 is given twice"),
        (["synthetic-tree", "--methods", "grpo, grpo"], "--methods: grpo is given twice"),
        (["synthetic-tree", "--shared", "[]"], "--shared needs at least 1"),
        (["openrs", "--betas", "0,0.0"], "--betas: 0.0 is given twice"),
        (["openrs", "--presets", "grpo,grpo"], "--presets: grpo is given twice"),
        (["openrs", "--presets", "grpo+model.path=x"], "grpo+model.path=x: model.path has no effect"),
        (["openrs", "--presets", "grpo+data.source=x"], "data.source has no effect"),
        (["openrs", "--presets", "grpo+kl_coef=1"], "in every run that it trains; use --betas"),
        (["openrs", "--presets", "lambda_grpo+preset=dapo"], "--objective.preset is given twice"),
        (["ab", "--presets", "grpo"], "at least 2 (the baseline, then what is compared with it"),
        (["ab", "--presets", "grpo,dapo+train.seed=7"], "train.seed has no effect"),
        (["ab", "--presets", "grpo,dapo+train.output=x"], "train.output has no effect"),
        (["ab", "--presets", "grpo,dapo+eval.every=3"], "in every run that it trains; use --evaluations"),
        (["ab", "--presets", "grpo,dapo+eval.limit=3"], "must be the same for all; give --eval.limit"),
        (["ab", "--presets", "grpo,dapo+train.steps=3"], "must be the same for all; give --train.steps"),
        (["ab", "--presets", "grpo+lora.rank=2,dapo+lora.rank=4", "--lora.rank", "8"], "--lora.rank has no effect"),
        (["ab", "--evaluations", "2"], "--evaluations 2 is fewer than --smoothing 3; add --smoothing 1"),
        (["ab", "--smoothing", "4"], "--smoothing 4: a centred mean takes an odd number"),
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


def test_a_table_is_as_wide_as_it_is_and_no_row_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = io.StringIO()
    show(Console(file=text), Table("t", ("a", "[b]"), [("x " * 40, "y " * 40)], "A note. " * 20))
    title, _, header, _, row, *note = (line.rstrip() for line in text.getvalue().splitlines())
    assert (title, header.split()) == ("t", ["a", "[b]"])
    assert row.split() == ["x"] * 40 + ["y"] * 40
    assert max(map(len, note)) <= 80


def test_the_time_left_is_not_zero_minutes() -> None:
    assert [time_left(seconds) for seconds in (0.0, 7.4, 119.0, 200.0)] == [
        "", ", about 7 s left", ", about 119 s left", ", about 3 min left",
    ]  # fmt: skip


def test_without_a_terminal_the_first_cell_and_the_last_are_told() -> None:
    text = io.StringIO()
    with _progress(Console(file=text), 5, 100) as advance:
        for _ in range(100):
            advance()
    told = text.getvalue().splitlines()
    assert told[0].startswith("measured 6 of 105, about ")
    assert told[-1] == "measured 105 of 105"
    assert len(told) == 1 + 20


def test_what_is_to_be_measured_is_said_in_words() -> None:
    plans = {name: make_options(name, {}).plan(8) for name in EXPERIMENTS}
    assert plans == {
        "theorem": "8 batches",
        "synthetic-tree": "8 trainings",
        "process-trees": "8 runs",
        "ab": "8 trainings (2 presets × 6 seeds, and the baseline with 6 more)",
        "openrs": "8 models (2 as they are, 6 trained)",
    }
    assert Theorem().plan(1) == "1 batch"


def test_help_is_of_the_experiment_that_is_named(capsys: pytest.CaptureFixture) -> None:
    for name in ([], ["openrs"]):
        with pytest.raises(SystemExit):
            cli.main(["reproduce", *name, "--help"])
    everything, one = capsys.readouterr().out.split("usage: ")[1:]
    assert "--smoothing" in everything
    assert "--betas" in everything
    assert "--betas" in one
    assert "--smoothing" not in one
    assert "treewise reproduce --help" in one
    assert "(default None)" not in everything
    assert "(default )" not in everything


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    return subprocess.run(["git", "-C", str(folder), *names, *words], capture_output=True, text=True, check=True).stdout


def test_the_commit_is_that_of_the_package_and_not_of_the_folder_that_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = track.git_commit()
    git(tmp_path, "init", "--quiet")
    (tmp_path / "thesis.tex").write_text("1")
    (tmp_path / ".gitignore").write_text(".venv")
    git(tmp_path, "add", ".")
    monkeypatch.chdir(tmp_path)
    assert track.git_commit(tmp_path) is None  # no commit yet
    git(tmp_path, "commit", "--quiet", "-m", "x")
    head = git(tmp_path, "rev-parse", "HEAD").strip()
    found = track.versions()
    assert (found["commit"], found["directory_commit"]) == (here, head)
    (tmp_path / "thesis.tex").write_text("2")
    assert track.git_commit(tmp_path) == f"{head}-dirty"
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "track.py").touch()
    assert track.git_commit(tmp_path / ".venv") is None  # a repository lies around it by chance
