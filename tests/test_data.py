"""Problems from files, hub data sets and reasoning-gym; long prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from treewise.data import filter_long, load_problems
from treewise.types import Problem


def jsonl(folder: Path, *rows: Any, name: str = "data.jsonl") -> str:
    path = folder / name
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize(
    ("columns", "prompt", "answer"),
    [
        (["prompt", "question", "problem", "answer", "solution"], "prompt", "answer"),
        (["question", "problem", "solution", "ground_truth", "label"], "question", "solution"),
        (["problem", "ground_truth", "label"], "problem", "ground_truth"),
        (["problem", "label"], "problem", "label"),
        (["label", "answer", "problem", "prompt"], "prompt", "answer"),
    ],
)
def test_columns_are_found_in_a_fixed_order(tmp_path: Path, columns: list[str], prompt: str, answer: str) -> None:
    source = jsonl(tmp_path, {name: f"the {name}" for name in columns})
    [problem], description = load_problems(source)
    assert (problem.prompt, problem.answer) == (f"the {prompt}", f"the {answer}")
    assert f"prompt from '{prompt}', answer from '{answer}', id from 'row number'" in description
    # Every column but these two names is there under its own name as well, for functions that ask for it.
    assert problem.info == {"prompt": f"the {prompt}"} | {
        name: f"the {name}" for name in columns if name not in {"prompt", "answer"}
    }


def test_the_description_names_the_columns_that_rewards_get(tmp_path: Path) -> None:
    source = jsonl(tmp_path, {"id": "a", "problem": "1+1?", "answer": "2", "level": 3})
    assert load_problems(source)[1] == (
        f"{source}: 1 problems; prompt from 'problem', answer from 'answer', id from 'id';"
        " also passed to rewards: level, problem"
    )


def test_answers_stay_as_they_are(tmp_path: Path) -> None:
    gsm8k = "48/2 = <<48/2=24>>24\n#### 72"
    answers = [gsm8k, 72, 0.5, None, ["a", "b"]]
    source = jsonl(tmp_path, *({"question": "q", "answer": answer} for answer in answers))
    assert [p.answer for p in load_problems(source)[0]] == [gsm8k, "72", "0.5", None, '["a", "b"]']


def test_info_joins_the_other_columns(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "info": {"depth": 1}, "level": 2},
        {"prompt": "b", "info": '{"depth": 3}', "level": 4},
        {"prompt": "c", "info": None, "level": 5},
    ]
    infos = [p.info for p in load_problems(jsonl(tmp_path, *rows))[0]]
    assert infos == [
        {"level": 2, "depth": 1, "prompt": "a"},
        {"level": 4, "depth": 3, "prompt": "b"},
        {"level": 5, "prompt": "c"},
    ]


@pytest.mark.parametrize(("info", "words"), [({"level": 1}, "level"), ([1], "object"), ({"answer": 1}, "answer")])
def test_info_that_can_not_be_joined_is_an_error(tmp_path: Path, info: Any, words: str) -> None:
    with pytest.raises(ValueError, match=rf"data.jsonl:1: .*{words}"):
        load_problems(jsonl(tmp_path, {"prompt": "a", "level": 2, "info": info}))


@pytest.mark.parametrize("name", ["completions", "completion", "prompts", "completion_ids", "prefill"])
def test_r07_a_reserved_column_name_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is reserved"):
        load_problems(jsonl(tmp_path, {"prompt": "a", name: "x"}))
    with pytest.raises(ValueError, match=f"{name} is reserved"):
        load_problems(jsonl(tmp_path, {"prompt": "a", "info": {name: "x"}}))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": "a"', "not a JSON object"),
        ("[1, 2]", "not a JSON object"),
        ("nonsense", "not a JSON object.*nonsense"),
        ('{"prompt": "\\ud800"}', "surrogate"),
        ('{"prompt": ""}', "not empty"),
        ('{"prompt": "  "}', "not empty"),
        ('{"prompt": []}', "not empty"),
        ('{"prompt": 7}', "text or a list of messages"),
        ('{"answer": "7"}', "text or a list of messages"),
        ('{"prompt": [{"role": "user"}]}', "message"),
        ('{"prompt": ["hi"]}', "message"),
        ('{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}', "message"),
    ],
)
def test_bad_lines_are_named_with_file_and_line(tmp_path: Path, line: str, words: str) -> None:
    source = jsonl(tmp_path, {"prompt": "fine"}, "\n", line + "\n", {"prompt": "fine"})
    with pytest.raises(ValueError, match=rf"(?s)data\.jsonl:3: .*{words}"):
        load_problems(source)


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n{"prompt": "\xff"}\n')
    with pytest.raises(ValueError, match=r"data\.jsonl:2"):
        load_problems(str(path))


def test_line_separators_inside_of_strings_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes('{"prompt": "a\u2028b\u0085c"}\r\n{"prompt": "d"}'.encode())
    assert [p.prompt for p in load_problems(str(path))[0]] == ["a\u2028b\u0085c", "d"]


def test_a_source_without_problems_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rows"):
        load_problems(jsonl(tmp_path, "\n"))
    with pytest.raises(ValueError, match=r"no file .*missing\.jsonl"):
        load_problems(str(tmp_path / "missing.jsonl"))
    (tmp_path / "data.txt").write_text("hello")
    with pytest.raises(ValueError, match=r"must end in \.jsonl, \.parquet, \.csv"):
        load_problems(str(tmp_path / "data.txt"))
    with pytest.raises(ValueError, match="prompt or question or problem: its columns are"):
        load_problems(jsonl(tmp_path, {"text": "hello"}))


def test_ids_are_row_numbers_or_the_data_sets_own_and_unique(tmp_path: Path) -> None:
    numbered = load_problems(jsonl(tmp_path, {"prompt": "a"}, {"prompt": "b"}))[0]
    assert [p.id for p in numbered] == ["0", "1"]
    named = load_problems(jsonl(tmp_path, {"prompt": "a", "id": "x"}, {"prompt": "b", "id": 5}))[0]
    assert [p.id for p in named] == ["x", "5"]
    with pytest.raises(ValueError, match="1 ids stand on several rows: x"):
        load_problems(jsonl(tmp_path, *({"prompt": "a", "id": name} for name in "xyx")))


def test_limit_keeps_the_first_rows(tmp_path: Path) -> None:
    source = jsonl(tmp_path, *({"prompt": name} for name in "abc"))
    assert [p.prompt for p in load_problems(source, limit=2)[0]] == ["a", "b"]
    with pytest.raises(ValueError, match="limit is 0"):
        load_problems(source, limit=0)


def test_a_text_prompt_becomes_messages_with_system_and_examples(tmp_path: Path) -> None:
    source = jsonl(tmp_path, {"question": 'What is {"x"} and {prompt}?', "answer": "7"})
    [problem], _ = load_problems(
        source, chat=True, system="Be brief.", template="Q: {prompt} {n}", examples=[("1+1?", "2")]
    )
    assert problem.prompt == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Q: 1+1? {n}"},
        {"role": "assistant", "content": "2"},
        {"role": "user", "content": 'Q: What is {"x"} and {prompt}? {n}'},
    )
    assert problem.info["prompt"] == 'What is {"x"} and {prompt}?'


def test_a_text_prompt_without_chat_stays_text(tmp_path: Path) -> None:
    source = jsonl(tmp_path, {"question": "1+1?"})
    assert load_problems(source, template="Q: {prompt}\nA:")[0][0].prompt == "Q: 1+1?\nA:"
    with pytest.raises(ValueError, match="need chat messages"):
        load_problems(source, system="Be brief.")
    with pytest.raises(ValueError, match=r"does not contain \{prompt\}"):
        load_problems(source, template="Q:")


def test_messages_keep_their_order_around_system_template_and_examples(tmp_path: Path) -> None:
    talk = [("system", "s"), ("user", "one"), ("assistant", "two"), ("user", "three")]
    messages = [{"role": role, "content": content} for role, content in talk]
    source = jsonl(tmp_path, {"prompt": messages})
    [problem], _ = load_problems(source, template="<{prompt}>", examples=[["a", "b"]])
    assert [(m["role"], m["content"]) for m in problem.prompt] == [  # type: ignore[index]
        ("system", "s"),
        ("user", "<a>"),
        ("assistant", "b"),
        ("user", "one"),
        ("assistant", "two"),
        ("user", "<three>"),
    ]
    assert "prompt" not in problem.info
    with pytest.raises(ValueError, match="its own system message"):
        load_problems(source, system="another")


def test_csv_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text('question,answer,level\n"a, ""b""\nc",7,\nd,,2\n', encoding="utf-8-sig")
    problems, _ = load_problems(str(path))
    assert [(p.prompt, p.answer) for p in problems] == [('a, "b"\nc', "7"), ("d", None)]
    assert problems[0].info["level"] is None
    path.write_text("question,answer\na,7\nb,8,9\n")
    with pytest.raises(ValueError, match=r"data\.csv:3: not 2 columns"):
        load_problems(str(path))


def test_parquet_files_are_read(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [
        {"prompt": [{"role": "user", "content": "hi", "name": None}], "answer": 7, "level": "easy"},
        {"prompt": [{"role": "user", "content": "ho", "name": None}], "answer": None, "level": None},
    ]
    path = tmp_path / "data.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    problems, _ = load_problems(str(path))
    assert problems[0] == Problem("0", ({"role": "user", "content": "hi"},), "7", {"level": "easy"})
    assert problems[1].answer is None
    path.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="not a Parquet file"):
        load_problems(str(path))


def test_a_hub_data_set_is_loaded_by_its_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    # A folder stands in for the hub: the same function of the same library loads both.
    folder = tmp_path / "folder"
    folder.mkdir()
    for split in ("train", "test"):
        jsonl(folder, {"question": f"{split}?", "answer": "7"}, name=f"{split}.jsonl")
    assert load_problems(str(folder))[0][0].prompt == "train?"
    assert load_problems(str(folder), split="test")[0][0].prompt == "test?"
    with pytest.raises(ValueError, match="can't load"):
        load_problems(str(folder), split="validation")


def test_reasoning_gym_tasks_are_seeded_and_take_options() -> None:
    def load(**options: Any) -> list[Problem]:
        return load_problems("reasoning-gym:gcd", options={"size": 4, **options})[0]

    problems = load()
    assert len(problems) == 4
    assert problems == load(seed=0)
    assert problems != load(seed=1)
    assert problems[0].answer is not None
    assert problems[0].answer.isdigit()
    assert problems[0].info["task"] == "gcd"
    assert "metadata" in problems[0].info
    assert all("3 numbers" in p.prompt or p.prompt.count(",") >= 2 for p in load(min_numbers=3, max_numbers=3))  # type: ignore[operator,union-attr]


def test_options_without_an_effect_are_errors(tmp_path: Path) -> None:
    source = jsonl(tmp_path, {"prompt": "a"})
    with pytest.raises(ValueError, match="only for generated tasks"):
        load_problems(source, options={"size": 3})
    with pytest.raises(ValueError, match="which has no splits"):
        load_problems(source, split="test")
    with pytest.raises(ValueError, match="only for hub data sets"):
        load_problems("sums", subset="easy")
    with pytest.raises(ValueError, match="no option 'digits'; it has size, seed"):
        load_problems("sums", options={"digits": 3})
    with pytest.raises(ValueError, match="has the splits train and test, not 'dev'"):
        load_problems("sums", split="dev")
    with pytest.raises(ValueError, match="can't make 100 different problems"):
        load_problems("sums", split="test", options={"size": 100, "terms": 2})
    with pytest.raises(ValueError, match="there are [01]$"):
        load_problems("sums", split="test", options={"size": 2, "terms": 2, "largest": 1})
    with pytest.raises(ValueError, match="must be whole numbers"):
        load_problems("sums", options={"size": "x"})
    with pytest.raises(ValueError, match="no task 'gdc'"):
        load_problems("reasoning-gym:gdc")
    with pytest.raises(ValueError, match="refuses the options"):
        load_problems("reasoning-gym:gcd", options={"colour": 3})


def test_t10_long_prompts_are_dropped_and_counted() -> None:
    problems = [Problem(str(n), "x" * n) for n in (3, 12, 8, 9)]
    kept, dropped = filter_long(problems, lambda prompt: list(str(prompt)), 8)
    assert [p.id for p in kept] == ["3", "8"]
    assert dropped == 2
    assert filter_long(problems, lambda prompt: list(str(prompt)), 2) == ([], 4)


def test_more_sums_than_there_are_is_an_error_and_no_endless_search() -> None:
    with pytest.raises(ValueError, match="can't make 400000 different problems"):
        load_problems("sums", split="test", options={"size": 400_000, "largest": 100})


def test_a_built_in_task_never_trains_on_a_test_problem() -> None:
    training, _ = load_problems("sums", options={"size": 400, "seed": 3})
    held_out, _ = load_problems("sums", split="test", options={"size": 120})
    assert len({p.id for p in training}) == 400
    sorted_addends = [{tuple(sorted(p.id.split(" + "))) for p in problems} for problems in (training, held_out)]
    assert not sorted_addends[0] & sorted_addends[1]
    assert all(sum(map(int, str(p.prompt).split(" + "))) == int(p.answer or "") for p in [*training, *held_out])
    again, _ = load_problems("sums", options={"size": 400, "seed": 3})
    other, _ = load_problems("sums", options={"size": 400, "seed": 4})
    assert training == again
    assert training != other
