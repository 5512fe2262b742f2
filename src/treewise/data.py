"""Problems from files, hub data sets and reasoning-gym tasks, and the order in which a run takes them.

Columns are found by name, the first of each list that the data has:

    prompt   prompt (text or chat messages) | question | problem
    answer   answer | solution | ground_truth | label        as text, unchanged ("… #### 42" too)
    id       id, otherwise the row number from 0
    info     info (an object, or its JSON text), and every other column under its own name

Reward functions get `answer` and each entry of `info` as keyword arguments.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

import numpy as np

from treewise.sources import Rows, read_rows, shorten
from treewise.types import Message, Problem

PROMPT_COLUMNS = ("prompt", "question", "problem")
ANSWER_COLUMNS = ("answer", "solution", "ground_truth", "label")
# Names of the arguments that the library itself passes to reward functions.
RESERVED_COLUMNS = frozenset({"prompts", "completion", "completions", "completion_ids", "prefill", "turns"})


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

    source: a .jsonl, .parquet or .csv file, `reasoning-gym:TASK`, or a data set on the Hugging Face hub.
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
    chat: bool = False,
    system: str | None = None,
    template: str | None = None,
    examples: Sequence[Sequence[str]] = (),
) -> tuple[list[Problem], str]:
    """Problems from rows of named columns; arguments, result and errors as in `load_problems`."""
    if not rows:
        raise ValueError(f"{source} has no rows")
    if template is not None and "{prompt}" not in template:
        raise ValueError(f"the prompt template {template!r} does not contain {{prompt}}")
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    prompt_column = _first(names, PROMPT_COLUMNS)
    answer_column = _first(names, ANSWER_COLUMNS)
    if prompt_column is None:
        raise ValueError(f"{source} has no column {' or '.join(PROMPT_COLUMNS)}: its columns are {names}")

    problems = []
    for number, (where, row) in enumerate(rows):
        try:
            raw = row.get(prompt_column)
            prompt = _build_prompt(raw, chat=chat, system=system, template=template, examples=examples)
            # A column that only some rows have is None in the others, so that reward functions always get it.
            info = _info({**dict.fromkeys(names), **row}, text=raw if isinstance(raw, str) else None)
            answer = None if answer_column is None else _answer_text(row.get(answer_column))
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
    if problems and not kept:
        raise ValueError(
            f"all {len(problems)} prompts are longer than max_prompt_tokens = {max_prompt_tokens}:"
            f" the shortest has {min(lengths)} tokens"
        )
    return kept, len(problems) - len(kept)


def problem_order(count: int, per_step: int, *, seed: int, start: int = 0) -> Iterator[list[int]]:
    """Yield the problem numbers of step `start`, `start + 1`, … without end.

    Every epoch is a new permutation, a function of (seed, epoch) alone. Steps are always full: a step may
    span two epochs, and the later epoch then starts with problems that the step doesn't hold yet. So each
    epoch uses each problem once, no step holds a problem twice, and `start = k` gives what is left of the
    uninterrupted sequence after k steps.

    Raises ValueError if a step needs more problems than there are.
    """
    if not 1 <= per_step <= count:
        raise ValueError(
            f"a step takes {per_step} different problems, but there are {count}:"
            f" use between 1 and {count} problems per step, or more data"
        )
    return itertools.islice(_steps(count, per_step, seed), start, None)


def _steps(count: int, per_step: int, seed: int) -> Iterator[list[int]]:
    waiting: list[int] = []
    for epoch in itertools.count():
        order = np.random.default_rng([seed, epoch]).permutation(count).tolist()
        held = set(waiting)
        fresh = [number for number in order if number not in held][: per_step - len(waiting)]
        first = set(fresh)
        waiting += fresh + [number for number in order if number not in first]
        full = len(waiting) - len(waiting) % per_step
        yield from (waiting[at : at + per_step] for at in range(0, full, per_step))
        waiting = waiting[full:]


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


def _answer_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    return json.dumps(value, ensure_ascii=False, default=str)
