"""Pictures: real run folders are written, drawn, and read back as images."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from treewise.plot import draw_run
from treewise.plot.figure import STYLE
from treewise.plot.runlog import choose_group, read_curves, running_mean
from treewise.plot.text import CHARACTER, FONT, LINE, SIZES, fit, last_words, printable
from treewise.plot.tree import draw_tree, layout
from treewise.records import RecordedTrajectory

pytest.importorskip("matplotlib")
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread

HOSTILE = "$\\frac{1}$ $$ <script>alert(1)</script> \x00\x1b[31m\u202eabc \ud800 日本 🙂 " + "w" * 5000


def answer(
    words: Sequence[str], reward: float | None, *, step: int = 9, group: str = "a", **keys: Any
) -> dict[str, Any]:
    """A rollout line whose tokens are the words; equal words have equal ids."""
    tokens = [int.from_bytes(word.encode("utf-8", "replace")[-3:], "big") for word in words]
    return {
        "group": f"{step}:{group}",
        "step": step,
        "problem": group,
        "prompt": [{"role": "user", "content": "What is the greatest common divisor of 12 and 18?"}],
        "tokens": tokens,
        "mask": [1] * len(tokens),
        "pieces": list(words),
        "text": "".join(words),
        "reward": reward,
        **keys,
    }


ANSWERS = [
    answer(["The", " divisor", " is", " 6"], 1.0),
    answer(["The", " divisor", " is", " 6"], 1.0),
    answer(["The", " divisor", " is", " 12", "."], 0.0),
    answer(["The", " divisor", " of"], 0.0),
    answer(["The", " divisor"], 0.25),
    answer(["It", " is", " 6"], 1.0),
]


BARE = [{key: row[key] for key in ("group", "step", "tokens", "reward")} for row in ANSWERS]


def write_run(
    run: Path,
    rollouts: Sequence[dict[str, Any]] = (),
    *,
    steps: int = 0,
    scores: Sequence[tuple[int, float]] = (),
) -> Path:
    run.mkdir(parents=True)
    metrics = [{"step": n + 1, "reward": n / 40, "reward_std": 0.4} for n in range(steps)]
    evaluations = [
        {"step": n, "accuracy": {"last_number": {"mean": x, "low": x - 0.05, "high": x + 0.05, "n": 200}}}
        for n, x in scores
    ]
    for name, rows in (("metrics", metrics), ("eval", evaluations), ("rollouts", rollouts)):
        (run / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return run


def recorded(rows: Sequence[dict[str, Any]]) -> list[RecordedTrajectory]:
    return [
        RecordedTrajectory(
            where="",
            number=n,
            tokens=np.array(row["tokens"], dtype=np.int64),
            sampled=np.array(row["mask"], dtype=bool),
            reward=row["reward"],
            text=row["text"],
        )
        for n, row in enumerate(rows)
    ]


def draw(rows: Sequence[dict[str, Any]], *, pieces: bool = True, prompt: str = "How many?") -> Figure:
    from matplotlib import style

    with style.context(["default", STYLE]):
        figure = Figure(figsize=(10, 6), dpi=100)
        axes = figure.add_axes((0.02, 0.1, 0.95, 0.7))
        words = [row["pieces"] for row in rows] if pieces else None
        draw_tree(axes, recorded(rows), pieces=words, prompt=prompt)
    return figure


def texts(figure: Figure) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in figure.axes[0].texts]


def test_a_run_is_drawn_at_1600_by_900_with_a_tree_that_has_both_colours(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ANSWERS, steps=10, scores=[(0, 0.3), (10, 0.6)])
    picture = draw_run(run)
    assert picture == run / "summary.png"
    pixels = imread(picture)[:, :, :3]
    assert pixels.shape == (900, 1600, 3)
    tree = pixels[130:820, 650:1450]
    assert (tree[:, :, 2] - tree[:, :, 0] > 0.3).mean() > 0.05  # blue: better than the mean
    assert (tree[:, :, 0] - tree[:, :, 2] > 0.3).mean() > 0.05  # vermilion: worse
    assert (pixels[200:820, 60:460] < 0.9).any(axis=-1).sum() > 2000  # the curve


@pytest.mark.parametrize(
    "rollouts",
    [
        [],
        [answer(["one"], 1.0)],
        [answer([], 0.0), answer([], 0.0)],
        [answer([], 0.0), answer(["a"], 1.0), answer(["a"], None, cause="grader")],
        [answer(["a"], None), answer(["b"], None)],
        [answer([HOSTILE, f" {n}"], n, group=HOSTILE, prompt=HOSTILE) for n in range(2)],
        BARE,
        [answer([f"w{(n * k) % 5}" for k in range(n % 9)] + ["end"], float(n % 3)) for n in range(64)],
        [answer(["a"] * 3000 + [str(n)] * 1000, -1e6 * n) for n in range(4)],
    ],
    ids=["none", "one", "empty", "no verdict", "no verdicts", "hostile", "bare", "64", "long"],
)
def test_odd_groups_are_drawn(tmp_path: Path, rollouts: list[dict[str, Any]]) -> None:
    run = write_run(tmp_path / "run $x$", rollouts, steps=2)
    assert imread(draw_run(run)).shape[:2] == (900, 1600)


def test_a_run_without_metrics_or_with_evaluations_only_is_drawn(tmp_path: Path) -> None:
    assert draw_run(write_run(tmp_path / "rollouts", ANSWERS)).is_file()
    run = write_run(tmp_path / "eval", scores=[(0, 0.5)])
    assert draw_run(run, tmp_path / "other.png").is_file()
    assert not (run / "summary.png").exists()


def test_a_folder_without_records_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run has nothing to draw"):
        draw_run(write_run(tmp_path / "run"))


def test_damaged_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ANSWERS, steps=3, scores=[(0, 0.5), (3, 0.7)])
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "reward": null}\n{"step": 1e999, "reward": 1}\n[1]\n{"step": 5, "rew')
    with (run / "rollouts.jsonl").open("ab") as file:
        file.write(b'\xff\xfe\n{"group": "9:b", "step": 9, "reward": 1}\n{"group"')
    with (run / "eval.jsonl").open("a") as file:
        file.write('{"step": 5, "accuracy": {"last_number": 3}}\n{"step": 6}\n')
    curves = read_curves(run)
    assert curves.steps.tolist() == [1, 2, 3]
    assert curves.held_out["last_number"].mean.tolist() == [0.5, 0.7]
    assert curves.skipped == 2
    group, skipped = choose_group(run)
    assert group is not None
    assert (len(group.rows), skipped) == (len(ANSWERS), 2)
    assert draw_run(run).is_file()


def test_the_later_line_of_a_step_counts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps=2)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "reward": 0.75}\n')
    assert read_curves(run).reward.tolist() == [0.0, 0.75]


def test_the_group_comes_from_the_last_steps_and_has_spread_and_branches(tmp_path: Path) -> None:
    branching = [["a", "b", "c"], ["a", "b", "d"], ["a", "e"], ["f"]]
    flat = [["a"], ["b"], ["c"], ["d"]]
    rewards = [1.0, 0.0, 0.0, 1.0]

    def group(name: str, step: int, words: list[list[str]], values: list[float]) -> list[dict[str, Any]]:
        return [answer(w, r, step=step, group=name) for w, r in zip(words, values, strict=True)]

    rows = group("early", 10, branching, rewards)
    rows += group("flat", 99, flat, rewards)
    rows += group("branching", 98, branching, rewards)
    rows += group("equal", 100, branching, [1.0] * 4)
    chosen, _ = choose_group(write_run(tmp_path / "run", rows))
    assert chosen is not None
    assert (chosen.problem, chosen.step) == ("branching", 98)


def test_boxes_tell_reward_and_members_and_the_text_of_their_tokens() -> None:
    shown = texts(draw(ANSWERS))
    assert "0.45 ×5" in shown  # "The divisor": 1, 1, 0, 0, .25
    assert "0.67 ×3" in shown  # " is"
    assert "1.00 ×2" in shown  # " 6"
    assert "The divisor" in shown
    assert "12." in shown
    assert {"1 ×2", "0", "0.25", "1"} <= set(shown)  # rewards at the right
    assert "How many?" in shown


def test_without_pieces_a_single_answer_shows_its_text_and_shared_sets_their_ids() -> None:
    shown = texts(draw(ANSWERS, pieces=False))
    assert "[…] It is 6" in shown
    assert " ".join(str(token) for token in ANSWERS[0]["tokens"][:2]) in shown


def test_rows_of_a_set_lie_together_with_the_better_branch_on_top() -> None:
    figure = Figure(figsize=(10, 6))
    report = draw_tree(figure.add_axes((0.0, 0.1, 1.0, 0.8)), recorded(ANSWERS))
    placed = layout(report["sets"])
    assert placed.order == [5, 4, 0, 1, 2, 3]
    place = {row: n for n, row in enumerate(placed.order)}
    for found in report["sets"]:
        lines = sorted(place[row] for row in found["members"])
        assert lines == list(range(lines[0], lines[0] + found["size"]))
    assert placed.edges == [0, 2, 3, 4, 5]
    widths = np.sqrt([2, 1, 1, 1])
    np.testing.assert_allclose(placed.x, np.cumsum([0, *widths]) / widths.sum())


def test_a_group_without_a_verdict_is_no_tree() -> None:
    with pytest.raises(ValueError, match="verdict"):
        draw([answer(["a"], None)])


def test_no_text_leaves_its_box() -> None:
    rows = [*ANSWERS, answer([HOSTILE], 1.0), answer(["a $x^2$ long answer "] * 60, 0.0)]
    figure = draw(rows, prompt=HOSTILE * 9)
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxed = [text for text in figure.axes[0].texts if text.get_fontfamily() == [FONT]]
    assert len(boxed) > 12
    for text in boxed:
        assert not text.get_parse_math()
        assert text.get_clip_on()
        box = text.get_clip_box()
        assert box is not None
        assert box.width < 0.8 * figure.bbox.width  # a box of the tree, not the axes
        drawn = text.get_window_extent(renderer)
        assert box.x0 - 1 <= drawn.x0 <= drawn.x1 <= box.x1 + 1
        assert box.y0 - 1 <= drawn.y0 <= drawn.y1 <= box.y1 + 1


def test_printable_text_has_no_control_characters_and_only_glyphs_of_the_font() -> None:
    assert printable("a\nb\r\nc\td") == "a↵ b↵ c d"
    assert printable("\x00\x1b\u202e\ud800\u200b") == "·····"
    assert printable("日🙂é λ $x$") == "□□é λ $x$"
    assert len(printable(HOSTILE * 100)) <= 2100


def test_fitted_text_is_whole_and_large_where_there_is_room_and_cut_where_not() -> None:
    point = 100 / 72
    whole = fit("The divisor of 12 and 18", 400, 60, point=point)
    assert whole is not None
    assert (whole.whole, whole.upright, whole.size) == (True, False, SIZES[0])
    upright = fit("divisor", 18, 300, point=point)
    assert upright is not None
    assert (upright.whole, upright.upright) == (True, True)
    cut = fit("word " * 500, 200, 60, point=point)
    assert cut is not None
    assert cut.text.endswith("…")
    assert not cut.whole
    assert cut.width <= 200
    assert cut.height <= 60
    assert fit("divisor", 3, 3, point=point) is None
    assert fit("", 300, 300, point=point) is None
    chopped = fit("8.<|im_end|>", 50, 12, point=point)
    assert chopped is not None
    assert chopped.text.startswith("8.<")
    space = fit("  ", 30, 30, point=point)
    assert space is not None
    assert space.text == "␣"


def test_characters_are_as_wide_as_the_fitting_counts() -> None:
    from matplotlib import style

    with style.context(["default", STYLE]):
        figure = Figure(dpi=100)
        renderer = FigureCanvasAgg(figure).get_renderer()
        for size in SIZES:
            text = figure.text(0, 0, "\n".join(["mg" * 50] * 10), size=size, family=FONT, linespacing=1.2)
            extent = text.get_window_extent(renderer)
            assert extent.width == pytest.approx(100 * CHARACTER * size * 100 / 72, rel=0.01)
            assert extent.height <= 10 * LINE * size * 100 / 72


def test_a_long_prompt_shows_its_last_words() -> None:
    text = " ".join(map(str, range(10_000)))
    end = last_words(text, 160, 400, point=100 / 72)
    assert end.startswith("…")
    assert text.endswith(end[1:])
    assert last_words("short", 160, 400, point=100 / 72) == "short"


def test_the_running_mean_is_centred_and_exact_at_the_ends() -> None:
    np.testing.assert_allclose(running_mean(np.arange(40.0))[[0, 1, 20, 38, 39]], [1, 1.5, 20, 37.5, 38])
    np.testing.assert_allclose(running_mean(np.array([3.0])), [3.0])


def test_drawing_leaves_pyplot_and_global_settings_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", ANSWERS, steps=2)
    code = (
        "import sys, pathlib, treewise.plot as plot\n"
        "assert 'matplotlib' not in sys.modules and 'torch' not in sys.modules\n"
        "import matplotlib\n"
        "matplotlib.rcParams['font.size'] = 33\n"
        "plot.draw_run(pathlib.Path(sys.argv[1]))\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
        "assert matplotlib.rcParams['font.size'] == 33\n"
    )
    subprocess.run([sys.executable, "-c", code, str(run)], check=True)
