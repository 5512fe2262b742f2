"""From the recipe to its problems: mixes, duplicates, streams, curricula and conditions, through real runs."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from folders import write_tiny_model
from treewise.config import Recipe
from treewise.data import make_problems
from treewise.loop import train
from treewise.recipe import make_recipe
from treewise.reward import Reply, score
from treewise.reward.load import load_reward
from treewise.session import Session, open_session
from treewise.sources import Stream

OWN = """
def length(completion):
    return float(len(completion))

def one(completion):
    return 1.0

class Game:
    weights = {"won": 1.0}

    def __init__(self, problem):
        self.problem, self.won = problem, 0.0

    @staticmethod
    def check(problem):
        if problem.answer is None:
            raise ValueError("there is no answer")

    def start(self):
        return self.problem.prompt

    def step(self, reply):
        self.won = float(reply == self.problem.answer)
        return []

    def scores(self):
        return {"won": self.won}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def jsonl(path: Path, *rows: dict[str, Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def numbered(path: Path, count: int, word: str = "a") -> str:
    return jsonl(path, *({"prompt": f"{word} {n}", "answer": str(n)} for n in range(count)))


def recipe(model: Path, folder: Path, values: dict[str, Any], **overrides: Any) -> Recipe:
    return make_recipe(
        {"reward": [{"function": f"{folder / 'own.py'}:length"}], **values},
        {
            "model.path": str(model),
            "model.dtype": "float32",
            "rollout.problems_per_step": 2,
            "rollout.group_size": 2,
            "rollout.max_new_tokens": 4,
            "train.steps": 4,
            "train.save_every": 2,
            "train.keep_last": 9,
            "train.output": str(folder / "runs"),
            "train.name": "run",
            **overrides,
        },
    )


def open_with(model: Path, folder: Path, data: dict[str, Any], **values: Any) -> Session:
    return open_session(recipe(model, folder, {"data": data, **values}))


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def asked(run: Path) -> list[str]:
    """The problems of a run in their order."""
    return list(dict.fromkeys(row["group"] for row in rows(run / "rollouts.jsonl")))


def test_a_mix_takes_its_sources_by_weight_and_names_them(model: Path, folder: Path) -> None:
    sources = [
        {"source": numbered(folder / "a.jsonl", 6), "name": "easy", "weight": 3},
        {"source": numbered(folder / "b.jsonl", 6, "b"), "weight": 1},
    ]
    data = {"mix": sources}
    run = train(recipe(model, folder, {"data": data}))
    names = Counter(group.partition(":")[2].rpartition("/")[0] for group in asked(run))
    assert names == {"easy": 6, sources[1]["source"]: 2}
    session = open_with(model, folder, data)
    assert any(note.startswith("75% of the problems from ") for note in session.notes)
    assert {p.info["data_source"] for p in session.supply.problems} == {"easy", sources[1]["source"]}


def test_a_mix_without_weights_takes_every_row_alike(model: Path, folder: Path) -> None:
    sources = [{"source": numbered(folder / f"{word}.jsonl", count, word)} for word, count in (("a", 6), ("b", 2))]
    session = open_with(model, folder, {"mix": sources})
    assert session.supply.shares == [0.75, 0.25]
    assert len({problem.id for _ in range(4) for problem in session.supply.draw(2)}) == 8


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"source": "a.jsonl", "mix": [{"source": "b.jsonl"}]}, r"data\.source has no effect beside data\.mix"),
        ({"limit": 3, "mix": [{"source": "b.jsonl"}]}, r"data\.limit has no effect beside data\.mix"),
        ({"mix": [{"source": "a", "weight": 1}, {"source": "b"}]}, "the source b of data.mix needs a weight"),
        ({"mix": [{"source": "a", "stream": 5}]}, "the source a of data.mix needs a weight"),
        ({"mix": [{"source": "a"}, {"source": "a"}]}, "two sources of data.mix are called a"),
        ({"mix": [{"source": "a", "weight": 0}]}, "weight = 0: Input should be greater than 0"),
        ({"mix": [{"sauce": "a"}]}, "sauce"),
    ],
)
def test_mixes_that_contradict_themselves_are_refused(data: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make_recipe({"data": data})


def test_rewards_can_be_for_the_problems_of_one_source(model: Path, folder: Path) -> None:
    own = str(folder / "own.py")
    values = {
        "data": {"mix": [{"source": numbered(folder / f"{w}.jsonl", 4, w), "name": w} for w in "ab"]},
        "reward": [
            {"function": f"{own}:length", "when": {"data_source": "a"}},
            {"function": f"{own}:one", "when": {"data_source": "b"}},
            {"function": f"{own}:one", "name": "all", "weight": 0.5},
        ],
    }
    run = train(recipe(model, folder, values))
    for row in rows(run / "rollouts.jsonl"):
        source = row["problem"][0]
        assert row["scores"].keys() == ({"length", "all"} if source == "a" else {"one", "all"})
        assert row["reward"] == (len(row["text"]) if source == "a" else 1.0) + 0.5
    metrics = rows(run / "metrics.jsonl")[0]
    assert metrics["rewards/one/mean"] == 1.0
    assert metrics["no_verdict"] == 0


def test_a_step_without_problems_of_a_reward_is_no_failure_of_it(
    model: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = str(folder / "own.py")
    values = {
        "data": {"mix": [{"source": numbered(folder / f"{w}.jsonl", 4, w), "name": w} for w in "ab"]},
        "reward": [
            {"function": f"{own}:length", "when": {"data_source": "a"}},
            {"function": f"{own}:one", "when": {"data_source": "b"}},
        ],
    }
    run = train(recipe(model, folder, values, **{"rollout.problems_per_step": 1}))
    assert {tuple(row["scores"]) for row in rows(run / "rollouts.jsonl")} == {("length",), ("one",)}
    assert "verdict" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("when", "words"),
    [
        ({"data_source": "c"}, r"for problems with \{'data_source': 'c'\}, and there is none: data_source is a, b"),
        ({"data_source": "a"}, "no reward with a weight is for problem 'b/0', whose data_source is 'b'"),
    ],
)
def test_conditions_that_leave_a_reward_or_a_problem_alone_are_refused(
    model: Path, folder: Path, when: dict[str, str], words: str
) -> None:
    mix = [{"source": numbered(folder / f"{w}.jsonl", 4, w), "name": w} for w in "ab"]
    with pytest.raises(ValueError, match=words):
        open_with(model, folder, {"mix": mix}, reward=[{"function": f"{folder / 'own.py'}:one", "when": when}])


def test_held_out_problems_have_the_name_that_rewards_ask_for(model: Path, folder: Path) -> None:
    session = open_with(
        model,
        folder,
        {"mix": [{"source": numbered(folder / "a.jsonl", 4), "name": "a"}]},
        eval={"source": numbered(folder / "b.jsonl", 2, "b"), "name": "a"},
        reward=[{"function": f"{folder / 'own.py'}:one", "when": {"data_source": "a"}}],
    )
    assert [problem.info["data_source"] for problem in session.held_out] == ["a", "a"]


def test_duplicates_are_said_and_dropped_if_asked_for(model: Path, folder: Path) -> None:
    data = jsonl(
        folder / "data.jsonl",
        *({"prompt": text, "answer": "1"} for text in ("x  1", "x 1", "y", "z", "held\nout", "w")),
    )
    held_out = {"source": jsonl(folder / "test.jsonl", {"prompt": "held out", "answer": "2"})}
    kept = open_with(model, folder, {"source": data}, eval=held_out)
    assert len(kept.supply.problems) == 6
    note = next(note for note in kept.notes if note.startswith(data))
    assert '1 ask what an earlier one asks: data.duplicates = "drop" leaves them out' in note
    assert '1 are held out, too: data.duplicates = "drop" leaves them out' in note
    dropped = open_with(model, folder, {"source": data, "duplicates": "drop"}, eval=held_out)
    assert [problem.id for problem in dropped.supply.problems] == ["0", "2", "3", "5"]
    assert "1 are held out, too: left out" in next(note for note in dropped.notes if note.startswith(data))


def test_duplicates_are_found_across_the_sources_of_a_mix(model: Path, folder: Path) -> None:
    mix = [{"source": numbered(folder / f"{name}.jsonl", count), "name": name} for name, count in (("a", 3), ("b", 5))]
    session = open_with(model, folder, {"mix": mix, "duplicates": "drop"})
    assert [problem.id for problem in session.supply.problems] == ["a/0", "a/1", "a/2", "b/3", "b/4"]
    assert session.supply.shares == [0.6, 0.4]
    assert any("3 ask what an earlier one asks: left out" in note for note in session.notes)


def test_a_stream_keeps_the_columns_that_were_said_at_the_start(model: Path, folder: Path) -> None:
    rows = [{"question": f"q {n}", "answer": str(n), **({"prompt": "another"} if n > 2 else {})} for n in range(6)]
    session = open_with(model, folder, {"source": jsonl(folder / "a.jsonl", *rows), "stream": 3})
    problems = [problem for _ in range(3) for problem in session.supply.draw(2)]
    assert sorted(problem.prompt[0]["content"] for problem in problems) == [f"q {n}" for n in range(6)]


def test_what_can_not_be_played_deep_in_a_stream_ends_the_run(model: Path, folder: Path) -> None:
    source = jsonl(folder / "a.jsonl", *({"prompt": "a", "answer": "a" if n < 4 else None} for n in range(6)))
    game = {"name": f"{folder / 'own.py'}:Game"}
    made = recipe(model, folder, {"data": {"source": source, "stream": 2}, "env": game, "reward": []})
    with pytest.raises(ValueError, match="there is no answer"):
        train(made)
    assert [path.name for path in (folder / "runs" / "run" / "checkpoints").iterdir()] == ["step_000002"]


def test_games_with_the_same_rules_and_other_secrets_are_no_duplicates(model: Path, folder: Path) -> None:
    source = jsonl(folder / "games.jsonl", *({"prompt": "Guess!", "answer": word} for word in ("one", "two", "one")))
    data, game = {"source": source, "duplicates": "drop"}, {"name": f"{folder / 'own.py'}:Game"}
    session = open_with(model, folder, data, env=game, reward=[])
    assert [problem.answer for problem in session.supply.problems] == ["one", "two"]
    with pytest.raises(ValueError, match="takes 2 different ones of it, and there are 1"):
        open_with(model, folder, data)


def test_a_source_of_nothing_but_held_out_problems_is_refused(model: Path, folder: Path) -> None:
    data = numbered(folder / "a.jsonl", 3)
    with pytest.raises(ValueError, match="are held out, too, .* leaves nothing to learn from"):
        open_with(model, folder, {"source": data, "duplicates": "drop"}, eval={"source": data})


def test_an_empty_table_is_an_error(model: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match="problems has no rows"):
        open_session(recipe(model, folder, {}), problems=[])


def test_prompts_that_are_all_too_long_are_an_error_with_the_shortest(model: Path, folder: Path) -> None:
    with pytest.raises(ValueError, match=r"all 3 prompts of .* longer than the 2 tokens .* the shortest has \d"):
        open_with(model, folder, {"source": numbered(folder / "a.jsonl", 3, "many words"), "max_prompt_tokens": 2})


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
@pytest.mark.parametrize("limit", [None, 5])
def test_a_stream_has_the_rows_of_its_file_in_blocks(folder: Path, ending: str, limit: int | None) -> None:
    path = folder / f"data.{ending}"
    if ending == "jsonl":
        numbered(path, 7)
    elif ending == "csv":
        path.write_text("prompt,answer\n" + "".join(f"a {n},{n}\n" for n in range(7)))
    else:
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        table = pyarrow.table({"prompt": [f"a {n}" for n in range(7)], "answer": [str(n) for n in range(7)]})
        parquet.write_table(table, path)
    count = limit or 7
    stream = Stream(str(path), 3, limit=limit)
    start, seen = 0, []
    for _ in range(6):
        block, following = stream.read(start)
        seen += [int(row["answer"]) for _, row in block]
        again, _ = Stream(str(path), 3, limit=limit).read(start)  # as a run that goes on reads it
        assert again == block
        start = following
    assert seen[: 2 * count] == [*range(count), *range(count)][: len(seen)]


def test_a_stream_of_the_hub_reads_as_it_goes(folder: Path) -> None:
    pytest.importorskip("datasets")
    hub = folder / "hub"
    hub.mkdir()
    numbered(hub / "train.jsonl", 5)
    stream = Stream(str(hub), 2)
    first, following = stream.read(0)
    assert ([row["answer"] for _, row in first], following) == (["0", "1"], 2)
    assert [row["answer"] for _, row in Stream(str(hub), 2).read(4)[0]] == ["4"]


def test_a_task_of_reasoning_gym_is_a_stream_without_end() -> None:
    pytest.importorskip("reasoning_gym")
    long, _ = Stream("reasoning-gym:chain_sum", 9, options={"seed": 3}).read(0)
    short = Stream("reasoning-gym:chain_sum", 3, options={"seed": 3})
    start, rows = 0, []
    for _ in range(3):
        block, start = short.read(start)
        rows += block
    assert start == 9
    assert [row["question"] for _, row in rows] == [row["question"] for _, row in long]
    assert [where for where, _ in rows][-1] == "reasoning-gym:chain_sum item 8"


@pytest.mark.parametrize("task", ["gsm_symbolic", "countdown", "zebra_puzzles"])
def test_a_stream_of_any_task_has_the_rows_of_one_data_set(task: str) -> None:
    gym = pytest.importorskip("reasoning_gym")
    stream, data = Stream(f"reasoning-gym:{task}", 2, options={"seed": 4}), gym.create_dataset(task, seed=4, size=6)
    rows = [row for start in (0, 2, 4) for _, row in stream.read(start)[0]]
    assert [row["question"] for row in rows] == [data[number]["question"] for number in range(6)]


def test_a_task_that_can_not_be_had_twice_is_refused() -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError, match="gives other problems at every call"):
        Stream("reasoning-gym:list_functions", 2).read(0)


def test_options_of_the_held_out_problems_that_have_no_effect_are_refused(model: Path, folder: Path) -> None:
    named = jsonl(folder / "named.jsonl", {"prompt": "a", "answer": "1", "data_source": "x"})
    data = {"source": numbered(folder / "a.jsonl", 3)}
    with pytest.raises(ValueError, match="eval.name = 'b' has no effect"):
        open_with(model, folder, data, eval={"source": named, "name": "b"})
    with pytest.raises(ValueError, match="subset = 'main' is only for hub data sets"):
        open_with(model, folder, data, eval={"source": named, "subset": "main"})
    with pytest.raises(ValueError, match='set env.name = "textarena"'):
        open_with(model, folder, data, eval={"source": "textarena:Mastermind-v0"})


def test_a_run_is_not_continued_with_other_columns(model: Path, folder: Path) -> None:
    path = folder / "a.jsonl"
    jsonl(path, *({"prompt": str(n), "answer": "1", "tests": [n]} for n in range(3)))
    made = recipe(model, folder, {"data": {"source": str(path)}})
    run = train(made)
    jsonl(path, *({"prompt": str(n), "answer": "1", "tests": [n + 1]} for n in range(3)))
    longer = made.model_copy(update={"train": made.train.model_copy(update={"steps": 6})})
    with pytest.raises(ValueError, match="was trained with other problems"):
        train(longer, resume=run)


def test_what_had_no_verdict_is_counted_with_its_causes(model: Path, folder: Path) -> None:
    (folder / "some.py").write_text("def some(completion, prompt):\n    return None if '1' in str(prompt) else 1.0\n")
    data = {"source": jsonl(folder / "a.jsonl", *({"prompt": f"q{n}", "answer": "1"} for n in range(2)))}
    run = train(
        recipe(
            model, folder, {"data": data, "reward": [{"function": f"{folder / 'some.py'}:some"}]}, **{"train.steps": 2}
        )
    )
    summary = json.loads((run / "summary.json").read_text())
    assert summary["no_verdict"] == {"answers": 4, "causes": {"some: returned None": 4}}
    assert [row["groups/no_comparison"] for row in rows(run / "metrics.jsonl")] == [1, 1]


def test_a_level_sets_what_the_curriculum_of_a_task_sets() -> None:
    pytest.importorskip("reasoning_gym")
    by_level = [
        Stream("reasoning-gym:chain_sum", 40, options={"level": level, "max_digits": 1, "min_digits": 1}).read(0)[0]
        for level in (0, 3)
    ]
    terms = [max(row["question"].count("+") + row["question"].count("-") for _, row in rows) for rows in by_level]
    assert terms[0] < terms[1]
    with pytest.raises(ValueError, match=r"curriculum has the levels 0 to \d+, not 99"):
        Stream("reasoning-gym:chain_sum", 2, options={"level": 99}).read(0)


@pytest.mark.parametrize(
    ("source", "options", "words"),
    [
        ("sums", {}, "stream = 3 has no effect on the built-in task sums"),
        ("reasoning-gym:gcd", {"size": 5}, "options.size has no effect on a stream"),
        ("reasoning-gym:acre", {}, "its problems depend on how many there are"),
        ("nothing.jsonl", {}, "there is no file"),
    ],
)
def test_streams_that_can_not_be_are_refused(source: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Stream(source, 3, options=options)


def test_a_run_on_a_stream_and_a_mix_goes_on_as_if_it_had_not_stopped(model: Path, folder: Path) -> None:
    mix = [
        {"source": numbered(folder / "a.jsonl", 7), "name": "a", "weight": 1, "stream": 3},
        {"source": numbered(folder / "b.jsonl", 5, "b"), "name": "b", "weight": 1},
    ]
    values = {"data": {"mix": mix}, "curriculum": {"low": 2.0, "rest": 1}}
    run = train(recipe(model, folder, values, **{"train.steps": 8, "train.save_every": 3}))
    half = run.with_name("half")
    shutil.copytree(run, half)
    for step in (6, 8):
        shutil.rmtree(half / "checkpoints" / f"step_{step:06d}")
    train(resume=half)
    assert (half / "rollouts.jsonl").read_bytes() == (run / "rollouts.jsonl").read_bytes()
    assert (half / "problems.jsonl").read_bytes() == (run / "problems.jsonl").read_bytes()
    assert all("problems/resting" in row for row in rows(run / "metrics.jsonl"))


def test_the_run_folder_has_what_was_seen_of_every_problem(model: Path, folder: Path) -> None:
    run = train(recipe(model, folder, {"data": {"source": numbered(folder / "a.jsonl", 4)}}))
    records, answers = rows(run / "problems.jsonl"), rows(run / "rollouts.jsonl")
    assert {row["id"] for row in records} == {"0", "1", "2", "3"}
    for row in records:
        own = [answer["reward"] for answer in answers if answer["problem"] == row["id"]]
        assert (row["visits"], row["answers"]) == (2, 4)
        assert row["mean"] == pytest.approx(sum(own) / len(own), abs=1e-12)
        assert row["pass_rate"] == sum(own[-2:]) / 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"curriculum": {"low": 1.0, "high": 0.5}}, r"curriculum\.low = 1\.0 must be below curriculum\.high = 0\.5"),
        ({"curriculum": {"rest": 3}}, r"curriculum\.rest has no effect without"),
        (
            {"curriculum": {"high": 1.0, "score": "other"}},
            r"curriculum\.score = 'other' is none of the rewards: length",
        ),
        ({"curriculum": {"high": 1.0}, "stream": 2}, "no effect on streams"),
    ],
)
def test_a_curriculum_without_effect_is_refused(model: Path, folder: Path, values: dict[str, Any], words: str) -> None:
    data = {"source": numbered(folder / "a.jsonl", 4), **({"stream": 2} if "stream" in values else {})}
    with pytest.raises(ValueError, match=words):
        open_with(model, folder, data, curriculum=values["curriculum"])


def test_a_bad_row_deep_in_a_stream_ends_the_run_and_loses_nothing(model: Path, folder: Path) -> None:
    path = folder / "a.jsonl"
    numbered(path, 12)
    good = path.read_text()
    path.write_text(good.replace('"answer": "7"', '"answer": 7,,'))
    run = folder / "runs" / "run"
    made = recipe(
        model, folder, {"data": {"source": str(path), "stream": 4}}, **{"train.save_every": 0, "train.steps": 5}
    )
    with pytest.raises(ValueError, match=r"a\.jsonl:8: not a JSON object"):
        train(made)
    assert [folder.name for folder in (run / "checkpoints").iterdir()] == ["step_000002"]
    path.write_text(good)
    train(resume=run)
    other = train(made.model_copy(update={"train": made.train.model_copy(update={"name": "through"})}))
    assert (run / "rollouts.jsonl").read_bytes() == (other / "rollouts.jsonl").read_bytes()


def test_a_column_that_a_later_block_lacks_is_none_there(model: Path, folder: Path) -> None:
    rows = [{"prompt": str(n), "answer": "1", **({"hint": "h"} if n < 2 else {})} for n in range(4)]
    session = open_with(model, folder, {"source": jsonl(folder / "a.jsonl", *rows), "stream": 2})
    problems = session.supply.draw(2) + session.supply.draw(2)
    assert [problem.info["hint"] for problem in problems] == ["h", "h", None, None]


def test_an_id_that_comes_again_in_a_later_block_is_an_error(model: Path, folder: Path) -> None:
    rows = [{"id": n % 3, "prompt": str(n), "answer": "1"} for n in range(4)]
    session = open_with(model, folder, {"source": jsonl(folder / "a.jsonl", *rows), "stream": 2})
    session.supply.draw(2)
    with pytest.raises(ValueError, match=r"a.jsonl:4: the id 0 is that of an earlier row"):
        session.supply.draw(2)


def test_a_verl_reward_gets_its_ground_truth_as_the_row_has_it() -> None:
    def compute_score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any) -> float:
        return float(ground_truth["target"] == 5 and extra_info == {} and solution_str == "5" and data_source == "x")

    model = {"style": "rule", "ground_truth": {"target": 5, "numbers": [2, 3]}}
    rows = [("data[0]", {"prompt": "2 + 3?", "answer": "five", "reward_model": model, "data_source": "x"})]
    (problem,), _ = make_problems(rows, "data")
    (verdict,) = asyncio.run(score([load_reward(compute_score)], [Reply(problem, "5")]))
    assert verdict.reward == 1.0


def test_rows_of_verl_and_skyrl_have_their_answers(folder: Path) -> None:
    from treewise.data import load_problems

    verl = {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": "2 + 2?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"split": "train", "index": 0},
    }
    [problem], description = load_problems(jsonl(folder / "verl.jsonl", verl))
    assert problem.answer == "4"
    assert problem.info["extra_info"] == {"split": "train", "index": 0}
    assert "answer from 'reward_model'" in description
    skyrl = {"prompt": verl["prompt"], "env_class": "gsm8k", "reward_spec": {"method": "rule", "ground_truth": 4}}
    assert load_problems(jsonl(folder / "skyrl.jsonl", skyrl))[0][0].answer == "4"
    with pytest.raises(ValueError, match="reward_model must be an object with a `ground_truth`: 'rule'"):
        load_problems(jsonl(folder / "bad.jsonl", {**verl, "reward_model": "rule"}))


@pytest.mark.parametrize("name", ["verifiers", "verifiers_v0", "textarena"])
def test_a_library_that_is_not_there_is_named_with_what_to_install(model: Path, folder: Path, name: str) -> None:
    if importlib.util.find_spec(name.removesuffix("_v0")) is not None:
        pytest.skip(f"{name} is installed")
    values = {"data": {"source": f"{name}:something", "stream": 2}, "env": {"name": name}, "reward": []}
    with pytest.raises(ValueError, match=r"needs .*pip install"):
        open_session(recipe(model, folder, values))


def test_a_problem_of_another_source_is_not_played_by_the_environment_of_a_library(model: Path, folder: Path) -> None:
    for name in ("verifiers", "verifiers_v0", "textarena"):
        values = {"data": {"source": numbered(folder / "a.jsonl", 3)}, "env": {"name": name}, "reward": []}
        with pytest.raises(ValueError, match=f"problem '0' is no .* data.source = '{name}:NAME'"):
            open_session(recipe(model, folder, values))


def test_d05_every_problem_of_a_stream_gets_its_whole_group(model: Path, folder: Path) -> None:
    data = {"source": numbered(folder / "a.jsonl", 3), "stream": 2}
    run = train(recipe(model, folder, {"data": data}, **{"rollout.problems_per_step": 1, "train.steps": 3}))
    answers = [(row["step"], row["problem"], row["index"]) for row in rows(run / "rollouts.jsonl")]
    assert sorted(problem for _, problem, _ in answers) == ["0", "0", "1", "1", "2", "2"]
    assert answers == [(step, problem, index) for step, problem, _ in answers[::2] for index in (0, 1)]
