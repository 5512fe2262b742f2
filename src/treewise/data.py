"""Problems from rows: of files, hub data sets and reasoning-gym tasks.

Columns are found by name, the first of each list that the data has:

    prompt   prompt (text or chat messages) | question | problem
    answer   answer | solution | ground_truth | label        as text, unchanged ("… #### 42" too)
             reward_model | reward_spec                      their `ground_truth`, as verl and SkyRL have it
    id       id, otherwise the row number from 0
    info     info (an object, or its JSON text), and every other column under its own name

Reward functions get `answer` and each entry of `info` as keyword arguments.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from typing import Any

from treewise.sources import Rows, read_rows, shorten
from treewise.types import Message, Problem

PROMPT_COLUMNS = ("prompt", "question", "problem")
ANSWER_COLUMNS = ("answer", "solution", "ground_truth", "label")
TRUTH_COLUMNS = ("reward_model", "reward_spec")  # objects with a `ground_truth`
# Names of the arguments that the library itself passes to reward functions.
RESERVED_COLUMNS = frozenset(
    {"prompts", "completion", "completions", "completion_ids", "environments", "prefill", "solution_str", "turns"}
)


def load_problems(
    source: str,
    *,
    split: str | None = None,
    subset: str | None = None,
    options: Mapping[str, Any] | None = None,
    limit: int | None = None,
    chat: bool = False,
    system: str | None = None,
    template: str | None = None,
    examples: Sequence[Sequence[str]] = (),
) -> tuple[list[Problem], str]:
    """The problems of `source` and one line that says which columns were taken.

    source: a .jsonl, .parquet or .csv file, `reasoning-gym:TASK`, `verifiers:NAME`, `verifiers_v0:NAME`,
        `textarena:NAME`, or a data set on the Hugging Face hub.
    split, subset: of a hub data set; "train" and its default configuration if not given.
    options: of a reasoning-gym task; `seed` is 0 and `size` 500 if not given.
    limit: keep the first `limit` rows.
    chat: make a text prompt a user message (pass whether the model has a chat template).
    system, examples: a system message and (user, assistant) pairs that stand before the problem.
    template: text with "{prompt}" in it, put around the problem and around the user part of each example;
        in a prompt of messages around the last user message. Other braces are left alone.

    Raises ValueError for bad rows (with file and line), missing or reserved columns, duplicate ids, no rows.
    """
    rows = read_rows(source, split=split, subset=subset, options=options)
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}: it must be at least 1")
    return make_problems(rows[:limit], source, chat=chat, system=system, template=template, examples=examples)


def make_problems(
    rows: Rows,
    source: str,
    *,
    first: int = 0,
    columns: tuple[str, str | None] | None = None,
    others: Iterable[str] = (),
    chat: bool = False,
    system: str | None = None,
    template: str | None = None,
    examples: Sequence[Sequence[str]] = (),
) -> tuple[list[Problem], str]:
    """Problems from rows of named columns; arguments, result and errors as in `load_problems`.

    first: number of the first row.
    columns: of prompt and answer, as `find_columns` gives them for other rows of the source.
    others: columns that other rows of the source have.
    """
    if not rows:
        raise ValueError(f"{source} has no rows")
    if template is not None and "{prompt}" not in template:
        raise ValueError(f"the prompt template {template!r} does not contain {{prompt}}")
    names = list(dict.fromkeys([*(name for _, row in rows for name in row), *others]))
    prompt_column, answer_column = columns or find_columns(rows, source)
    problems = []
    for number, (where, row) in enumerate(rows, start=first):
        try:
            raw = row.get(prompt_column)
            prompt = _build_prompt(raw, chat=chat, system=system, template=template, examples=examples)
            # A column that only some rows have is None in the others, so that reward functions always get it.
            info = _info({**dict.fromkeys(names), **row}, text=raw if isinstance(raw, str) else None)
            answer = None if answer_column is None else _answer(row.get(answer_column), answer_column)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        identity = row.get("id")
        problems.append(Problem(str(number if identity is None else identity), prompt, answer, info))
    twice = [name for name, count in Counter(problem.id for problem in problems).items() if count > 1]
    if twice:
        raise ValueError(f"{source}: {len(twice)} ids stand on several rows: {', '.join(twice[:5])}")

    passed = sorted({name for problem in problems for name in problem.info} - {"prompt"})
    description = (
        f"{source}: {len(problems)} problems; prompt from {prompt_column!r}, answer from"
        f" {answer_column!r}, id from {'id' if 'id' in names else 'row number'!r};"
        f" also passed to rewards: {', '.join(passed) or 'nothing'}"
    )
    return problems, description


def filter_long(
    problems: Sequence[Problem], encode: Callable[[str | tuple[Message, ...]], Sized], max_prompt_tokens: int
) -> tuple[list[Problem], int]:
    """The problems whose encoded prompt has at most `max_prompt_tokens` tokens, and how many were dropped.

    Prompts are never cut: that would remove the system message or half of a control sequence.
    """
    lengths = []
    for problem in problems:
        try:
            lengths.append(len(encode(problem.prompt)))
        except Exception as error:  # chat templates are programs, and refuse what they don't expect
            raise ValueError(
                f"the prompt of problem {problem.id!r} can't be encoded: {type(error).__name__}: {error}"
            ) from error
    kept = [p for p, length in zip(problems, lengths, strict=True) if length <= max_prompt_tokens]
    return kept, len(problems) - len(kept)


def question(problem: Problem, *, played: bool) -> str:
    """What two problems have in common that ask the same thing, however the spaces are set.

    played: the answer belongs to it, since in an environment it may be what differs, like the secret of a game.
    """
    texts = [problem.prompt] if isinstance(problem.prompt, str) else [m["content"] for m in problem.prompt]
    return "\0".join(" ".join(text.split()) for text in (*texts, *([problem.answer or ""] if played else ())))


def find_columns(rows: Rows, source: str) -> tuple[str, str | None]:
    """The columns of the prompt and of the answer. Raises ValueError without the former."""
    names = [name for _, row in rows for name in row]
    prompt = _first(names, PROMPT_COLUMNS)
    if prompt is None:
        raise ValueError(
            f"{source} has no column {' or '.join(PROMPT_COLUMNS)}: its columns are {list(dict.fromkeys(names))}"
        )
    return prompt, _first(names, ANSWER_COLUMNS) or _first(names, TRUTH_COLUMNS)


def _first(names: Iterable[str], wanted: Sequence[str]) -> str | None:
    present = set(names)
    return next((name for name in wanted if name in present), None)


def _build_prompt(
    raw: Any, *, chat: bool, system: str | None, template: str | None, examples: Sequence[Sequence[str]]
) -> str | tuple[Message, ...]:
    def around(text: str) -> str:
        return text if template is None else template.replace("{prompt}", text)

    if isinstance(raw, str) and raw.strip():
        if not chat:
            if system is not None or examples:
                raise ValueError("a system message or examples need chat messages, and this prompt is text")
            return around(raw)
        messages: list[Message] = [{"role": "user", "content": around(raw)}]
    elif isinstance(raw, Sequence) and not isinstance(raw, str) and len(raw):
        messages = [_message(item) for item in raw]
        users = [number for number, message in enumerate(messages) if message["role"] == "user"]
        if template is not None and not users:
            raise ValueError(f"the prompt has no user message to put into the template: {shorten(raw)}")
        if users:
            messages[users[-1]]["content"] = around(messages[users[-1]]["content"])
    else:
        raise ValueError(f"the prompt must be text or a list of messages, and not empty: {shorten(raw)}")

    shots: list[Message] = []
    for example in examples:
        if isinstance(example, str) or len(example) != 2:
            raise ValueError(f"an example must be a pair (user, assistant): {shorten(example)}")
        user, assistant = example
        shots += [{"role": "user", "content": around(user)}, {"role": "assistant", "content": assistant}]
    own_system = messages[:1] if messages[0]["role"] == "system" else []
    if system is not None:
        if own_system:
            raise ValueError(f"the prompt has its own system message and one is configured: {shorten(raw)}")
        shots.insert(0, {"role": "system", "content": system})
    return (*own_system, *shots, *messages[len(own_system) :])


def _message(item: Any) -> Message:
    pairs = item.items() if isinstance(item, Mapping) else ()
    filled = {key: value for key, value in pairs if value is not None}  # Parquet fills missing keys with null
    if filled.keys() != {"role", "content"} or not all(isinstance(value, str) for value in filled.values()):
        raise ValueError(f"a message must be a text `role` and a text `content`, nothing else: {shorten(item)}")
    return {"role": filled["role"], "content": filled["content"]}


def _info(row: Mapping[str, Any], *, text: str | None) -> dict[str, Any]:
    """Every column and every entry of `info`, and as `prompt` a text prompt as the data has it, before
    template and messages: reward functions of TRL's kind get their prompts in the data's own form."""
    info = {name: value for name, value in row.items() if name not in {"prompt", "answer", "id", "info"}}
    extra = row.get("info")
    if isinstance(extra, str):
        extra = json.loads(extra)
    if extra is not None:
        if not isinstance(extra, Mapping):
            raise ValueError(f"the column info must be an object (or its JSON text): {shorten(extra)}")
        clash = extra.keys() & {*info, "prompt", "answer"}
        if clash:
            raise ValueError(f"info contains {', '.join(sorted(clash))}, which is the name of a column")
        info.update(extra)
    reserved = RESERVED_COLUMNS & info.keys()
    if reserved:
        raise ValueError(
            f"the column name {', '.join(sorted(reserved))} is reserved for what the library passes to reward"
            " functions: rename the column"
        )
    return info if text is None else {**info, "prompt": text}


def _answer(value: Any, column: str) -> str | None:
    if column in TRUTH_COLUMNS and value is not None:
        if not isinstance(value, Mapping) or "ground_truth" not in value:
            raise ValueError(f"{column} must be an object with a `ground_truth`: {shorten(value)}")
        value = value["ground_truth"]
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)
