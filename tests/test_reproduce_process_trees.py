"""`treewise reproduce process-trees`: real runs, recorded ones, damaged ones, and figures counted by hand."""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from folders import write_problems, write_tiny_model
from treewise.recipe import make_recipe
from treewise.records import read_groups
from treewise.reproduce import engine
from treewise.reproduce.options import ProcessTrees, make_options
from treewise.reproduce.process_trees import cells, change, measure, report, share_of, short_names
from treewise.reproduce.recorded import read_steps, step_rows
from treewise.reproduce.training import run_training

REWARD = """
import os, pathlib, signal

def early_letters(completion):
    stop = pathlib.Path(__file__).with_name("stop")
    if stop.exists():
        stop.unlink()
        os.kill(os.getpid(), signal.SIGTERM)
    return sum("a" <= c < "n" for c in completion) / 4
"""
# The worked example of arXiv 2509.21154, each letter a token.
EXAMPLE = {"ABCD": 0.5, "ABEFHI": 0.5, "JKLM": 1.0, "JKLNQST": 0.0, "JKLNQU": 0.0, "VWYZ": 0.5}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, problems and a reward."""
    folder = tmp_path_factory.mktemp("trees")
    write_tiny_model(folder / "model")
    write_problems(folder / "problems.jsonl", 6)
    (folder / "reward.py").write_text(REWARD)
    return folder


def changes(place: Path, **more: Any) -> dict[str, Any]:
    return {
        "model.path": str(place / "model"),
        "model.dtype": "float32",
        "data.source": str(place / "problems.jsonl"),
        "data.options": {},
        "data.system": None,
        "data.examples": [],
        "reward": [{"function": f"{place / 'reward.py'}:early_letters"}],
        "rollout.problems_per_step": 3,
        "rollout.max_new_tokens": 4,
        "optimizer.learning_rate": 1e-2,
        "optimizer.warmup_steps": 0,
        "train.steps": 2,
        "eval.source": None,
        "eval.options": {},
        **more,
    }


@pytest.fixture(scope="module")
def live(place: Path) -> tuple[Path, engine.Report]:
    """A whole experiment with its folder: two group sizes, two steps."""
    options = make_options("process-trees", {"group-sizes": "2,4", **changes(place)})
    folder = place / "experiment"
    return folder, engine.run("process-trees", options, folder=folder, jobs=2, command="treewise reproduce …")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write(path: Path, *rows: dict[str, Any] | str) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def answers(group: str, answers: dict[str, float | None] | Sequence[tuple[str, float | None]], **keys: Any) -> Any:
    """Lines of one group from answers whose letters are tokens."""
    pairs = answers.items() if isinstance(answers, dict) else answers
    return [{"group": group, "tokens": [ord(c) for c in text], "reward": reward, **keys} for text, reward in pairs]


def test_every_step_of_a_live_run_has_the_trees_that_its_own_metrics_say(live: tuple[Path, engine.Report]) -> None:
    folder, _ = live
    with (folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["group_size"], row["step"]) for row in rows] == [
        ("G2_seed0", "2", "1"),
        ("G2_seed0", "2", "2"),
        ("G4_seed0", "4", "1"),
        ("G4_seed0", "4", "2"),
    ]
    recorded = [row for name in ("G2_seed0", "G4_seed0") for row in lines(folder / "runs" / name / "metrics.jsonl")]
    for row, metrics in zip(rows, recorded, strict=True):
        assert int(row["groups"]) == metrics["groups/kept"] == 3
        assert float(row["scored"]) == int(row["group_size"])
        for name in ("path_depth", "intermediate_proportion", "shared_proportion"):
            assert float(row[name]) == pytest.approx(metrics[f"tree/{name}"], abs=1e-12)
        assert int(row["flat"]) / 3 == pytest.approx(metrics["tree/flat"])
        assert float(row["reward"]) == pytest.approx(metrics["reward"])
        assert float(row["length"]) == pytest.approx(metrics["completions/mean_length"])


def test_a_live_run_gives_tables_and_a_picture_and_keeps_what_training_said(live: tuple[Path, engine.Report]) -> None:
    folder, found = live
    shares, training, paper = found.tables
    assert [row[:3] for row in shares.rows] == [
        *(("G2_seed0", "2", trivial) for trivial in ("flat", "no inner set", "no credit")),
        *(("G4_seed0", "4", trivial) for trivial in ("flat", "no inner set", "no credit")),
    ]
    assert (
        paper.header == shares.header == ("run", "G", "no tree if", "no tree", "% with a tree [95 %]", "against 99 %")
    )
    assert paper.rows[0] == ("paper", "6", "flat", "12 of 6,700", "99.82 [99.69, 99.91]", "above")
    assert [row[1] for row in training.rows] == ["1–2", "1–2"]
    assert "**How many groups are a tree**" in (folder / "results.md").read_text()
    assert "step 2  reward" in (folder / "runs" / "G4_seed0.log").read_text()
    if found.figure is not None:
        assert [axes.get_title("left") for axes in found.figure.axes] == [
            "Inner depth",
            "Intermediate proportion",
            "Training reward",
        ]
        assert (folder / "figure.png").stat().st_size < 200_000


def test_a_recorded_folder_its_file_and_the_live_run_say_the_same(live: tuple[Path, engine.Report]) -> None:
    folder, _ = live
    run = folder / "runs" / "G4_seed0"
    options = ProcessTrees(runs=(str(run), str(run / "rollouts.jsonl")))
    whole, file = cells(options)
    size = (run / "rollouts.jsonl").stat().st_size
    assert whole == {"run": str(run), "bytes": size}
    assert file == {"run": str(run / "rollouts.jsonl"), "bytes": size}
    measured = [
        [{k: v for k, v in row.items() if k not in ("run", "seed")} for row in rows]
        for rows in (measure(options, whole, folder), measure(options, file, folder))
    ]
    assert measured[0] == measured[1] == step_rows(run / "rollouts.jsonl")
    assert [row["step"] for row in measured[0]] == [1, 2]
    tables = report(options, [*measure(options, whole, folder), *measure(options, file, folder)]).tables
    assert [row[0] for row in tables[1].rows] == ["G4_seed0", "rollouts.jsonl"]


def test_a_run_that_has_grown_is_read_again(tmp_path: Path) -> None:
    path = write(tmp_path / "plain.jsonl", *answers("a", [("AB", 1.0), ("AC", 0.0)], step=1))
    options = ProcessTrees(runs=(str(path),))
    engine.run("process-trees", options, folder=tmp_path / "out")
    text = path.read_text()
    write(path, *text.splitlines(), *answers("b", [("AB", 1.0), ("CC", 0.0)], step=2))
    shares, training, _ = engine.run("process-trees", options, folder=tmp_path / "out").tables
    assert [row[3] for row in shares.rows] == ["1 of 2", "2 of 2", "2 of 2"]
    assert training.rows[0][1] == "1–2"


def test_without_steps_there_is_no_course_to_draw(tmp_path: Path) -> None:
    path = write(tmp_path / "plain.jsonl", *answers("a", EXAMPLE))
    options = ProcessTrees(runs=(str(path),))
    found = report(options, measure(options, cells(options)[0], tmp_path))
    assert found.tables[1].rows == [("plain.jsonl", 'unknown (no key "step")', "1.17", "0.522", "0.42", "5.2")]
    for axes in found.figure.axes:
        assert all(not len(line.get_xdata()) for line in axes.lines if line.get_marker() != "None")
        assert [text.get_text() for text in axes.texts] == ["one step: no course"]


def test_the_paper_s_own_example_counted_by_hand(tmp_path: Path) -> None:
    """Inner sets are AB, JKL and JKLNQ. A seventh answer has no verdict, so it is in none of them."""
    (row,) = step_rows(write(tmp_path / "plain.jsonl", *answers("g", EXAMPLE), *answers("g", {"ABCX": None})))
    assert row == {
        "group_size": 7,
        "step": 0,
        "groups": 1,
        "flat": 0,
        "without_inner": 0,
        "without_credit": 0,
        "inner_depth": pytest.approx((1 + 1 + 1 + 2 + 2 + 0) / 6),
        "path_depth": pytest.approx((2 + 2 + 2 + 3 + 3 + 1) / 6),
        "intermediate_proportion": pytest.approx((2 / 4 + 2 / 6 + 3 / 4 + 5 / 7 + 5 / 6 + 0) / 6),
        "shared_proportion": pytest.approx((2 / 4 + 2 / 6 + 3 / 4 + 5 / 7 + 5 / 6 + 0) / 6),
        "scored": 6,
        "reward": pytest.approx(2.5 / 6),
        "length": pytest.approx(31 / 6),
        "damaged_lines": 0,
        "incomplete_groups": 0,
        "dropped_groups": 0,
        "unscored_groups": 0,
        "damage": None,
    }


@pytest.mark.parametrize(
    ("group", "flat", "without_inner", "without_credit"),
    [
        ([("AB", 1.0), ("CD", 0.0), ("EF", 0.0)], 1, 1, 1),
        ([("AB", 1.0), ("AC", 0.0), ("AD", 0.0)], 0, 1, 1),  # shared by all: the root's advantage is 0
        ([("AB", 1.0), ("AB", 1.0), ("CD", 0.0)], 0, 1, 1),  # copies: one leaf
        ([("AB", 1.0), ("AC", 0.0), ("DE", 0.0)], 0, 0, 0),
        ([("AB", 1.0), ("AC", 0.0), ("DE", 0.5)], 0, 0, 1),  # A is worth what the group is worth
        ([("AB", 0.3), ("AC", 0.3), ("DE", 0.3)], 0, 0, 1),
        ([("AB", 1.0), ("AC", None), ("DE", 0.0)], 1, 1, 1),  # no verdict: as if it had never been sampled
        ([("AB", 1.0), ("AB", 1.0), ("ABC", 0.0), ("DE", 0.0)], 0, 0, 0),  # an inner set in which two answers end
    ],
)
def test_what_is_flat_and_what_has_an_inner_set(
    tmp_path: Path, group: Any, flat: int, without_inner: int, without_credit: int
) -> None:
    (row,) = step_rows(write(tmp_path / "plain.jsonl", *answers("g", group)))
    assert (row["flat"], row["without_inner"], row["without_credit"]) == (flat, without_inner, without_credit)


def test_what_the_environment_said_is_no_sharing(tmp_path: Path) -> None:
    rows = answers("g", [("xAB", 1.0), ("xAC", 0.0), ("yD", 0.0)])
    (sampled,) = step_rows(write(tmp_path / "a.jsonl", *(row | {"mask": [1] * len(row["tokens"])} for row in rows)))
    assert (sampled["flat"], sampled["without_inner"]) == (0, 0)
    given = (row | {"mask": [0] * (len(row["tokens"]) - 1) + [1]} for row in rows)
    (row,) = step_rows(write(tmp_path / "b.jsonl", *given))
    assert (row["flat"], row["without_inner"], row["inner_depth"]) == (1, 1, 0.0)


def test_lines_of_a_group_need_not_be_adjacent_and_equal_ids_of_two_steps_are_two_groups(tmp_path: Path) -> None:
    first, second = answers("p", [("AB", 1.0), ("AC", 0.0)], step=1), answers("p", [("D", 0.0), ("E", 0.0)], step=2)
    mixed = [first[0], second[0], first[1], second[1]]
    rows = step_rows(write(tmp_path / "plain.jsonl", *mixed))
    assert [(row["step"], row["groups"], row["flat"]) for row in rows] == [(1, 1, 0), (2, 1, 1)]


def test_damaged_lines_and_what_they_leave_behind_are_counted(live: tuple[Path, engine.Report], tmp_path: Path) -> None:
    folder, _ = live
    run = tmp_path / "run"
    shutil.copytree(folder / "runs" / "G4_seed0", run)
    text = (run / "rollouts.jsonl").read_text().splitlines()
    text[1] = text[1][:30]  # of the first group of step 1
    bad = json.loads(text[6]) | {"tokens": [1, -2]}  # of its second group
    text[6] = json.dumps(bad)
    text[8] = json.dumps(json.loads(text[8]) | {"logprobs": "what is not read can be wrong"})
    (run / "rollouts.jsonl").write_text("\n".join(text)[:-20])  # a kill in the last line
    first, second = step_rows(run / "rollouts.jsonl")
    assert (first["groups"], first["damaged_lines"], first["incomplete_groups"]) == (1, 2, 2)
    assert (second["groups"], second["damaged_lines"], second["incomplete_groups"]) == (2, 1, 1)
    table = report(ProcessTrees(runs=(str(run),)), [{"run": "x", "seed": None, **row} for row in (first, second)])
    left_out = "Left out of x: 3 damaged lines, 3 incomplete groups; first damaged line: "
    assert f"{left_out}{run / 'rollouts.jsonl'}:2: " in table.tables[1].note


def test_filtered_groups_and_those_without_verdicts_are_left_out_by_name(tmp_path: Path) -> None:
    rows = [
        *answers("a", [("AB", 1.0), ("AC", 0.0)], step=1),
        *answers("b", [("AB", 1.0), ("AC", 1.0)], step=1, kept=False),
        *answers("c", [("AB", None), ("AC", 1.0)], step=2),
    ]
    first, second = step_rows(write(tmp_path / "plain.jsonl", *rows))
    assert (first["groups"], first["dropped_groups"]) == (1, 1)
    assert (second["groups"], second["unscored_groups"], second["inner_depth"]) == (0, 1, None)


def test_a_file_without_any_group_to_use_says_why(tmp_path: Path) -> None:
    path = write(tmp_path / "plain.jsonl", "not json", *answers("c", [("AB", None), ("AC", 1.0)]))
    with pytest.raises(
        ValueError,
        match="no whole group with two verdicts; left out: 1 damaged line, 1 unscored group; first damaged line: ",
    ):
        step_rows(path)
    with pytest.raises(ValueError, match="there is no file"):
        cells(ProcessTrees(runs=(str(tmp_path / "nowhere"),)))


def test_groups_of_a_known_size_are_given_before_the_file_ends(live: tuple[Path, engine.Report]) -> None:
    path = live[0] / "runs" / "G4_seed0" / "rollouts.jsonl"
    left_out: Counter[tuple[int, str]] = Counter()
    early = read_steps(path, 4, left_out, {})
    step, group = next(early)
    assert (step, group.id, group.trajectories[-1].where) == (1, read_groups(path)[0].id, f"{path}:4")
    assert [g.id for _, g in early] == [g.id for g in read_groups(path)[1:]]
    assert not left_out


def test_the_exact_interval_has_the_closed_forms_at_its_ends() -> None:
    """With all of n the lower limit is .025^(1/n); with none the upper one is its complement (Clopper & Pearson)."""
    assert share_of(1100, 1100) == (f"100 [{100 * 0.025 ** (1 / 1100):.2f}, 100]", "above")
    assert share_of(320, 320) == (f"100 [{100 * 0.025 ** (1 / 320):.2f}, 100]", "can't tell")
    assert share_of(0, 10) == (f"0 [0, {100 * (1 - 0.025**0.1):.2f}]", "below")
    assert share_of(6688, 6700) == ("99.82 [99.69, 99.91]", "above")


def test_first_and_last_tenth_weigh_every_group_alike() -> None:
    rows = [{"step": n, "groups": 1 + n % 2, "reward": float(n)} for n in range(20)]
    assert change(rows, "reward", 3) == "0.667 → 18.667"
    assert change([*rows[:1], {"step": 1, "groups": 0, "reward": None}], "reward", 1) == "0.0"


def test_runs_are_named_by_as_much_of_their_path_as_tells_them_apart() -> None:
    assert short_names(["/x/a/run", "/x/b/run"]) == ["a/run", "b/run"]
    assert short_names(["/x/a/run"]) == ["run"]


def test_bad_options_are_refused_before_anything_is_trained(place: Path) -> None:
    with pytest.raises(ValueError, match=r"rollout.group_size = 1"):
        cells(ProcessTrees(group_sizes=(4, 1), changes=changes(place)))
    assert cells(ProcessTrees(group_sizes=(4,), seeds=2, changes=changes(place))) == [
        {"group_size": 4, "seed": 0},
        {"group_size": 4, "seed": 1},
    ]


# Going on with a run


def recipe(place: Path, output: Path, **more: Any) -> Any:
    return make_recipe(
        {},
        changes(
            place,
            **{
                "rollout.group_size": 2,
                "train.steps": 4,
                "train.save_every": 1,
                "train.keep_last": 9,
                "train.output": str(output),
                "train.name": "run",
                **more,
            },
        ),
    )


@pytest.fixture(scope="module")
def whole(place: Path) -> Path:
    return run_training(recipe(place, place / "whole"), place / "whole" / "run.log", keep_weights=True)


def killed(whole: Path, output: Path, *, saved: int) -> None:
    """What is left of the run if it is killed in step 4, with so many steps saved."""
    shutil.copytree(whole, output / "run")
    (output / "run" / "summary.json").unlink()
    shutil.rmtree(output / "run" / "model")
    for step in range(saved + 1, 5):
        shutil.rmtree(output / "run" / "checkpoints" / f"step_{step:06d}")


def test_a_killed_run_goes_on_from_its_checkpoint_wherever_it_lies_now(
    place: Path, whole: Path, tmp_path: Path
) -> None:
    killed(whole, tmp_path, saved=2)
    run = run_training(recipe(place, tmp_path), tmp_path / "run.log")
    assert (run / "rollouts.jsonl").read_bytes() == (whole / "rollouts.jsonl").read_bytes()
    assert (run / "summary.json").is_file()
    said = (tmp_path / "run.log").read_text()
    assert "step 3  reward" in said
    assert "step 2  reward" not in said
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["run"]


def test_a_killed_run_without_a_checkpoint_is_put_aside_and_begun_anew(
    place: Path, whole: Path, tmp_path: Path
) -> None:
    killed(whole, tmp_path, saved=0)
    (tmp_path / "run.stopped1").mkdir()
    run = run_training(recipe(place, tmp_path), tmp_path / "run.log")
    assert (run / "rollouts.jsonl").read_bytes() == (whole / "rollouts.jsonl").read_bytes()
    assert (tmp_path / "run.stopped2" / "metrics.jsonl").is_file()


def test_a_finished_run_is_not_trained_again_and_another_recipe_is_refused(
    place: Path, whole: Path, tmp_path: Path
) -> None:
    assert run_training(recipe(place, place / "whole"), tmp_path / "again.log", keep_weights=True) == whole
    assert not (tmp_path / "again.log").exists()
    with pytest.raises(ValueError, match="is a run of another recipe"):
        run_training(recipe(place, place / "whole", **{"train.seed": 3}), tmp_path / "again.log")


def test_weights_are_deleted_when_a_run_is_finished_unless_they_are_asked_for(
    place: Path, whole: Path, tmp_path: Path
) -> None:
    assert (whole / "model" / "model.safetensors").is_file()
    assert (whole / "checkpoints").is_dir()
    shutil.copytree(whole, tmp_path / "run")
    run = run_training(recipe(place, tmp_path), tmp_path / "run.log")
    assert sorted(path.name for path in run.iterdir() if path.is_dir()) == []
    assert (run / "rollouts.jsonl").is_file()


def test_a_run_that_is_told_to_stop_is_no_result_and_goes_on_next_time(
    place: Path, whole: Path, tmp_path: Path
) -> None:
    (place / "stop").touch()
    with pytest.raises(KeyboardInterrupt, match="the same command goes on"):
        run_training(recipe(place, tmp_path), tmp_path / "run.log")
    assert len(lines(tmp_path / "run" / "metrics.jsonl")) == 1
    run = run_training(recipe(place, tmp_path), tmp_path / "run.log")
    assert (run / "rollouts.jsonl").read_bytes() == (whole / "rollouts.jsonl").read_bytes()


def test_a_step_is_a_whole_number_however_it_is_written(tmp_path: Path) -> None:
    rows = [{"group": "a", "step": step, "tokens": [1, n], "reward": float(n)} for step in (3.0, 4) for n in (0, 1)]
    odd = [{"group": "b", "step": step, "tokens": [1], "reward": 1.0} for step in ("3", True, 1.5, 10**400)]
    found = step_rows(write(tmp_path / "rows.jsonl", *rows, *odd))
    assert [(row["step"], row["groups"], row["scored"]) for row in found if row["groups"]] == [(3, 1, 2.0), (4, 1, 2.0)]
    assert sum(row["damaged_lines"] for row in found) == 4
    assert any('"step" is 3; it must be a whole number' in (row["damage"] or "") for row in found)
