"""Recorded rollouts: one trajectory a line, from a run folder or from any trainer's log.

    {"group": "7", "tokens": [12, 7, 9], "reward": 1.0, "text": "so 7"}
    {"group": "7", "tokens": [12, 7, 4, 4], "mask": [1, 1, 0, 0], "reward": null}

`tokens` (or `completion_ids`) is what follows the prompt, `reward` null where there is no verdict, and
`mask` 1 where the model sampled the token (the default). `logprobs`, `old_logprobs` and `ref_logprobs`
have one number per token; what stands at mask 0 is ignored, null and nan included. So have `sampler_logprobs` (null
where the sampler could not tell) and `entropies`. `steps` are [position, reward] of each step's last token, `scores`
the single rewards by name, `starts` the positions at which another transcript of the episode begins, prompt included
(its chat template changed earlier turns), `stop_reason` is "length" for an answer that was cut, and `branched` true for
a group that was sampled with branches; `kept` is false for a group that was filtered out. Other keys are ignored.
The rows of a group need not be adjacent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from treewise.config import Recipe
from treewise.recipe import load_recipe
from treewise.types import PENALTY, BoolArray, FloatArray, IntArray

LARGEST_TOKEN = 2**31 - 1
LARGEST_LOGPROB = 1e-3  # engines round a sure token's 0 upwards
LARGEST_NUMBER = 1e100  # so that no mean, square or difference overflows


@dataclass(frozen=True, slots=True)
class RecordedTrajectory:
    """One line: what followed the prompt, `tokens[n]`, `sampled[n]` and log-probs `[n]` (0 at mask 0).

    `where` is file:line, for messages, and `number` counts the trajectories of the file from 0.
    """

    where: str
    number: int
    tokens: IntArray
    sampled: BoolArray
    reward: float | None
    text: str | None = None
    logprobs: FloatArray | None = None
    old_logprobs: FloatArray | None = None
    ref_logprobs: FloatArray | None = None
    sampler_logprobs: FloatArray | None = None
    entropies: FloatArray | None = None
    steps: tuple[tuple[int, float], ...] = ()
    starts: tuple[int, ...] = ()
    scores: Mapping[str, float | None] = field(default_factory=dict)
    cut: bool = False
    branched: bool = False
    kept: bool = True

    @property
    def scored(self) -> bool:
        """Whether it counts: it has a verdict, and is not masked from end to end (an overlong filter).

        A masked trajectory leaves its group like one without a verdict; an empty answer stays.
        """
        return self.reward is not None and (len(self.tokens) == 0 or bool(self.sampled.any()))


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """The trajectories of one `group`, in the order of the file."""

    id: str | int
    trajectories: tuple[RecordedTrajectory, ...]


def run_recipe(path: str | Path) -> Recipe | None:
    """The recipe of the run whose folder a file stands in; `None` elsewhere."""
    try:
        return load_recipe(Path(path).with_name("config.json"))
    except ValueError:
        return None


def reward_weights(recipe: Recipe | None, groups: Sequence[RecordedGroup]) -> dict[str, float] | None:
    """The weights of the recipe's reward functions, if it is theirs that the scores are of; else `None`."""
    if recipe is None:
        return None
    weights = {item.label: item.weight for item in recipe.reward} | (recipe.env.weights or {})
    names = {name for group in groups for row in group.trajectories for name in row.scores} - {PENALTY}
    return weights if names <= weights.keys() else None  # a run from Python may have had functions of its own


def read_groups(path: str | Path) -> list[RecordedGroup]:
    """Read recorded rollouts, groups in the order of their first row.

    Raises:
        ValueError: naming file and line, if the file can't be read, holds no trajectory, or a row is wrong.
    """
    groups: dict[str | int, list[RecordedTrajectory]] = {}
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give a JSONL file, one trajectory a line") from error
    count = 0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        row = parse_object(line, where)
        groups.setdefault(parse_group(row, where), []).append(parse_trajectory(row, where, count))
        count += 1
    if not groups:
        raise ValueError(f"{path}: no trajectories; give one object a line with group, tokens and reward")
    return [RecordedGroup(key, tuple(rows)) for key, rows in groups.items()]


def parse_object(line: bytes, where: str) -> Mapping[str, Any]:
    """The JSON object of a line. Raises ValueError naming `where` the line stands, as the functions below do."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where}: not valid JSON ({error}); write one object a line") from error
    if not isinstance(row, dict):
        raise ValueError(f'{where}: {_short(row)} is not an object; write {{"group": …, "tokens": …, …}}')
    return row


def parse_group(row: Mapping[str, Any], where: str) -> str | int:
    """Which group a line's trajectory belongs to."""
    if "group" not in row:
        raise ValueError(f'{where}: no "group"; give every answer to the same prompt the same id')
    value = row["group"]
    if type(value) not in (str, int):
        raise ValueError(f'{where}: "group" is {_short(value)}; it must be a string or an integer')
    return value  # type: ignore[no-any-return]


def parse_trajectory(row: Mapping[str, Any], where: str, number: int) -> RecordedTrajectory:
    """The trajectory of a line; `number` counts them."""
    tokens = _tokens(row, where)
    sampled = _mask(row, len(tokens), where)
    text = row.get("text")
    if text is not None and not isinstance(text, str):
        raise ValueError(f'{where}: "text" is {_short(text)}; it must be a string')
    return RecordedTrajectory(
        where=where,
        number=number,
        tokens=tokens,
        sampled=sampled,
        reward=_reward(row, where),
        text=text,
        logprobs=_logprobs(row, "logprobs", sampled, where),
        old_logprobs=_logprobs(row, "old_logprobs", sampled, where),
        ref_logprobs=_logprobs(row, "ref_logprobs", sampled, where),
        sampler_logprobs=_logprobs(row, "sampler_logprobs", sampled, where, unknown=True),
        entropies=_logprobs(row, "entropies", sampled, where),
        steps=_steps(row, sampled, where),
        starts=_starts(row, len(sampled), where),
        scores=_scores(row, where),
        cut=row.get("stop_reason") == "length",
        branched=row.get("branched") is True,
        kept=row.get("kept") is not False,
    )


def _tokens(row: Mapping[str, Any], where: str) -> IntArray:
    keys = [key for key in ("tokens", "completion_ids") if key in row]
    if not keys:
        raise ValueError(f'{where}: no "tokens"; give the token ids after the prompt, [] for an empty answer')
    if len(keys) == 2:
        raise ValueError(f'{where}: both "tokens" and "completion_ids"; they mean the same, leave one out')
    value = row[keys[0]]
    if not isinstance(value, list):
        raise ValueError(f'{where}: "{keys[0]}" is {_short(value)}; it must be a list of token ids')
    for position, token in enumerate(value):
        if type(token) is not int or not 0 <= token <= LARGEST_TOKEN:
            raise ValueError(
                f'{where}: "{keys[0]}" has {_short(token)} at position {position}; '
                f"token ids are integers from 0 to {LARGEST_TOKEN}"
            )
    return np.array(value, dtype=np.int64)


def _per_token(row: Mapping[str, Any], key: str, length: int, where: str) -> list[Any]:
    value = row[key]
    if not isinstance(value, list):
        raise ValueError(f'{where}: "{key}" is {_short(value)}; it must be a list with one entry per token')
    if len(value) != length:
        raise ValueError(f'{where}: "{key}" has {len(value)} entries for {length} tokens; give one per token')
    return value


def _mask(row: Mapping[str, Any], length: int, where: str) -> BoolArray:
    if row.get("mask") is None:
        return np.ones(length, dtype=bool)
    value = _per_token(row, "mask", length, where)
    for position, mark in enumerate(value):
        if type(mark) not in (int, bool) or mark not in (0, 1):
            raise ValueError(
                f'{where}: "mask" has {_short(mark)} at position {position}; give 1 where the model sampled'
            )
    return np.array(value, dtype=bool)


def _reward(row: Mapping[str, Any], where: str) -> float | None:
    if "reward" not in row:
        raise ValueError(f'{where}: no "reward"; give a number, or null where there is no verdict')
    value = row["reward"]
    if value is None:
        return None
    if not _is_number(value):
        raise ValueError(
            f'{where}: "reward" is {_short(value)}; give a finite number (up to {LARGEST_NUMBER:g}), '
            "or null where there is no verdict"
        )
    return float(value)


def _logprobs(
    row: Mapping[str, Any], key: str, sampled: BoolArray, where: str, *, unknown: bool = False
) -> FloatArray | None:
    """A number for every token; nan where it may be `unknown` and is null or not finite."""
    if row.get(key) is None:
        return None
    value = _per_token(row, key, len(sampled), where)
    known = [_is_number(x) for x in value]
    for position in np.flatnonzero(sampled):
        if not known[position] and not (unknown and isinstance(value[position], float | None)):
            raise ValueError(
                f'{where}: "{key}" has {_short(value[position])} at position {position}; '
                f"a sampled token needs a finite {'entropy' if key == 'entropies' else 'log-prob'}"
            )
    filled = [x if number else np.nan for x, number in zip(value, known, strict=True)]
    found = np.where(sampled, np.array(filled, dtype=np.float64), 0.0)
    wrong = np.flatnonzero(found < 0 if key == "entropies" else found > LARGEST_LOGPROB)
    if len(wrong):
        what = "an entropy is at least 0" if key == "entropies" else "a log-prob is at most 0"
        raise ValueError(f'{where}: "{key}" has {_short(value[wrong[0]])} at position {wrong[0]}; {what}')
    return found


def _steps(row: Mapping[str, Any], sampled: BoolArray, where: str) -> tuple[tuple[int, float], ...]:
    value = row.get("steps")
    if value is None or not sampled.any():
        return ()
    if not isinstance(value, list):
        raise ValueError(f'{where}: "steps" is {_short(value)}; give a list of [position, reward]')
    for step in value:
        if not (isinstance(step, list) and len(step) == 2 and type(step[0]) is int and _is_number(step[1])):
            raise ValueError(f'{where}: "steps" has {_short(step)}; give [position of its last token, reward]')
        if not 0 <= step[0] < len(sampled) or not sampled[: step[0] + 1].any():
            raise ValueError(
                f'{where}: "steps" has one that ends at position {step[0]} of {len(sampled)} tokens; '
                "a step must end at or behind a sampled token"
            )
    return tuple((step[0], float(step[1])) for step in value)


def _starts(row: Mapping[str, Any], length: int, where: str) -> tuple[int, ...]:
    value = row.get("starts")
    if value is None:
        return ()
    whole = isinstance(value, list) and all(type(one) is int for one in value)
    if not whole or not all(a < b for a, b in pairwise([0, *value, length])):
        raise ValueError(
            f'{where}: "starts" is {_short(value)}; give increasing positions inside of the {length} tokens'
        )
    return tuple(value)


def _scores(row: Mapping[str, Any], where: str) -> Mapping[str, float | None]:
    value = row.get("scores")
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(x is None or _is_number(x) for x in value.values()):
        raise ValueError(f'{where}: "scores" is {_short(value)}; give a number or null for every reward function')
    return {name: None if x is None else float(x) for name, x in value.items()}


def _is_number(value: Any) -> bool:
    """Whether it is a finite number of a sane size; true and false are not numbers here."""
    return type(value) in (int, float) and abs(value) <= LARGEST_NUMBER  # false for nan


def _short(value: Any) -> str:
    shown = json.dumps(value)  # as it stands in the file: null, true, NaN
    return shown if len(shown) <= 40 else shown[:37] + "..."
