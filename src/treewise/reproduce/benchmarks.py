"""The five benchmarks: what the paper reports of them, and a model's answers.

    hub or file ──▶ problems ──▶ one answer each ──▶ figures
                                               └──▶ ANSWERS/aime24.jsonl

The problems get the recipe's own system message and template, the answers its stop strings, its rewards and the
sampling of its evaluations (greedy unless it says otherwise).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from treewise import models, track
from treewise.benchmarks import BENCHMARKS, FIVE, load
from treewise.config import Recipe
from treewise.evaluate import sampling_of, summarise
from treewise.policy import causal_lm
from treewise.rollout import collect
from treewise.sampler.hf import max_length
from treewise.session import Session, open_session
from treewise.types import Group, Problem

METHODS = {"grpo": "GRPO", "lambda_grpo": "λ-GRPO"}  # the paper's names of presets
Method = tuple[float | None, str | None]  # β and preset; two times None: the model before training

_CELLS = (*FIVE, "mean")
# Table 2 as readers' notes on the paper have it: model, β and preset → its cells in the order of _CELLS.
PAPER: Mapping[str, Mapping[Method, tuple[float | None, ...]]] = {
    "deepseek": {
        (None, None): (0.200, 0.830, 0.750, 0.298, 0.510, 0.518),
        (0.0, "grpo"): (None, None, None, None, None, 0.4837),
        (0.0, "lambda_grpo"): (None, None, None, None, None, 0.5576),
        (0.04, "grpo"): (None, None, None, None, None, 0.5394),
        (0.04, "lambda_grpo"): (0.400, 0.834, 0.800, 0.298, 0.538, 0.5739),
    },
    "llama": {
        (None, None): (0.000, 0.228, 0.075, 0.048, 0.056, 0.081),
        (0.0, "grpo"): (None, None, None, None, None, 0.0842),
        (0.0, "lambda_grpo"): (None, None, None, None, None, 0.1001),
        (0.04, "grpo"): (None, None, None, None, None, 0.0996),
        (0.04, "lambda_grpo"): (0.033, 0.256, 0.075, 0.074, 0.049, 0.0973),
    },
}


def paper_of(model: str, method: Method) -> dict[str, float]:
    """What is known of a row of the paper's table, by benchmark; a preset's further options don't count."""
    beta, preset = method
    row = PAPER[model].get((beta, None if preset is None else preset.partition("+")[0]))
    cells = () if row is None else zip(_CELLS, row, strict=True)
    return {name: value for name, value in cells if value is not None}


def answer(
    recipe: Recipe, problems: Mapping[str, Sequence[Problem]], *, source: Path | None, longest: int
) -> dict[str, list[Group]]:
    """A model's answers to the problems of each benchmark, one each.

    Args:
        problems: by benchmark; those without room for an answer as long as in training are left out.
        source: a folder with the weights, if they are not the recipe's.
        longest: tokens of an answer; fewer where the model reads no longer sequences.
    """
    named = [replace(one, id=f"{name}/{one.id}") for name, own in problems.items() for one in own]
    session = open_session(recipe, source=source, problems=named, held_out=named)
    return {
        name: _answer(recipe, session, [one for one in session.held_out if one.id.startswith(f"{name}/")], longest)
        for name in problems
    }


def _answer(recipe: Recipe, session: Session, problems: Sequence[Problem], longest: int) -> list[Group]:
    room = max_length(causal_lm(session.policy.model).config.get_text_config(decoder=True))
    prompt = max((len(session.chat.encode_prompt(one.prompt)) for one in problems), default=0)
    return collect(
        problems,
        group_size=1,
        sampler=session.sampler,
        sampling=sampling_of(recipe, longest if room is None else min(longest, room - prompt)),
        chat=session.chat,
        rewards=session.rewards,
        seed=(recipe.train.seed,),
        step_separator=recipe.rollout.step_separator,
    )


def evaluate(
    recipe: Recipe,
    benchmarks: Sequence[str],
    *,
    source: Path | None,
    files: Mapping[str, str],
    limit: int | None,
    longest: int,
    folder: Path,
) -> list[dict[str, Any]]:
    """Figures of a model on each benchmark; its answers are written to `folder`. Arguments as above."""
    prompt = {
        "chat": bool(models.load_tokenizer(recipe.model.path).chat_template),
        "system": recipe.data.system,
        "template": recipe.data.template,
        "examples": recipe.data.examples,
    }
    problems = {name: load(BENCHMARKS[name], file=files.get(name), limit=limit, **prompt) for name in benchmarks}
    rows = []
    for name, groups in answer(recipe, problems, source=source, longest=longest).items():
        _write(folder / f"{name}.jsonl", groups)
        rows.append({"benchmark": name, **figures(groups)})
    return rows


def figures(groups: Sequence[Group]) -> dict[str, Any]:
    """Accuracy over the answers that have a verdict, and what else a benchmark's row says."""
    if not groups:
        return {"n": 0, "accuracy": None, "no_verdict": 0, "truncated": None, "length": None}
    found = summarise(groups)
    reward = found.interval("reward")
    return {
        "n": len(groups),
        "accuracy": reward.mean if reward.n else None,
        "no_verdict": len(groups) - reward.n,
        "truncated": found.truncated,
        "length": found.mean_length,
    }


def _write(path: Path, groups: Sequence[Group]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for group in groups:
            (one,) = group.trajectories
            line = {
                "problem": group.problem.id,
                "gold": group.problem.answer,
                "text": one.text,
                "reward": one.reward,
                "scores": dict(one.scores),
                "cause": one.cause,
                "stop_reason": one.stop_reason,
                "tokens": int(one.sampled.sum()),
            }
            file.write(json.dumps(track.plain(line), ensure_ascii=False) + "\n")
