"""Reading recipes: sparse TOML over defaults, options from the command line on top.

    quickstart | recipe.toml | RUN/config.json  +  --section.field value  ──▶  Recipe

An unknown option is an error that names the nearest valid one.
"""

from __future__ import annotations

import copy
import difflib
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from treewise.config import Recipe

QUICK_START = "quickstart"

# What people who come from TRL will try first.
TRL_NAMES = {
    "num_generations": "rollout.group_size",
    "max_completion_length": "rollout.max_new_tokens",
    "temperature": "rollout.temperature",
    "beta": "objective.kl_coef",
    "epsilon": "objective.clip_low",
    "epsilon_high": "objective.clip_high",
    "loss_type": "objective.preset",
    "scale_rewards": "objective.scale",
    "num_iterations": "train.updates_per_batch",
    "steps_per_generation": "train.minibatches",
    "max_steps": "train.steps",
    "learning_rate": "optimizer.learning_rate",
    "chat_template_kwargs": "data.template_options",
}


def _fields(model: type[BaseModel] = Recipe, prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, entry in model.model_fields.items():
        if isinstance(entry.annotation, type) and issubclass(entry.annotation, BaseModel):
            yield from _fields(entry.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry


def options() -> Iterator[tuple[str, Any, str]]:
    """Every option as (dotted name, default, help)."""
    for name, entry in _fields():
        words = " | ".join(_choices(entry.annotation))
        yield name, entry.get_default(), f"{entry.description} ({words})" if words else str(entry.description)


def _choices(annotation: Any) -> tuple[str, ...]:
    """The words that an option allows, if it allows only some."""
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    parts = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else get_args(annotation)[:1]
    return next((words for part in parts if (words := _choices(part))), ())


def parse_overrides(arguments: Sequence[str]) -> dict[str, Any]:
    """`--section.field value` or `--section.field=value` pairs as a flat dict.

    Values are read as TOML, or as they stand where the option is a text; `none` unsets an option.

    Raises:
        ValueError: for a stray word or a missing value.
    """
    texts = {name for name, entry in _fields() if entry.annotation in (str, str | None)}
    words_with_none = {name for name, entry in _fields() if "none" in _choices(entry.annotation)}
    overrides: dict[str, Any] = {}
    words = list(arguments)
    while words:
        word = words.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"expected an option such as --train.steps 100, got {word!r}")
        name, equals, text = word[2:].partition("=")
        if not equals:
            if not words or words[0].startswith("--"):
                raise ValueError(f"--{name} needs a value")
            text = words.pop(0)
        if name in overrides:
            raise ValueError(f"--{name} is given twice")
        if name in words_with_none and text == "none":
            overrides[name] = text
            continue
        if text == "none" or name in texts:
            overrides[name] = None if text == "none" else text  # TOML has no word for an option that is not set
            continue
        try:
            (overrides[name],) = tomllib.loads(f"value = {text}").values()
        except ValueError:
            overrides[name] = text
    return overrides


def bundled_recipes() -> dict[str, Path]:
    """The recipes that come with treewise, by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "recipes").glob("*.toml"))}


def load_recipe(path: str | Path = QUICK_START, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe and put the overrides on top.

    Args:
        path: a TOML file, a run's `config.json`, or the name of a bundled recipe.
        overrides: flat dict of dotted names, such as `{"train.steps": 100}`.

    Raises:
        ValueError: for an unreadable file, an unknown option (naming the nearest valid one), a value of the
            wrong kind, or options that contradict each other.
    """
    bundled = bundled_recipes()
    file = bundled.get(str(path), Path(path))
    read = json.loads if file.suffix == ".json" else tomllib.loads
    try:
        values = read(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(
            f"can't read recipe {path}: {error.strerror}; bundled recipes are {', '.join(bundled)}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"recipe {path} can't be parsed: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"recipe {path} holds {type(values).__name__}, not sections")
    return make_recipe(values, overrides)


def make_recipe(values: dict[str, Any], overrides: Mapping[str, Any] | None = None) -> Recipe:
    """A recipe from nested sections as a TOML file has them, and flat overrides; see `load_recipe`."""
    defaults = {name: default for name, default, _ in options()}
    values = copy.deepcopy(values)
    for name, value in (overrides or {}).items():
        *sections, field = name.split(".")
        if name not in defaults and not isinstance(defaults.get(".".join(sections)), dict):
            raise ValueError(_unknown(name))
        table = values
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                raise ValueError(f"{section} = {table!r} in the recipe is not a section, so {name} can't be set")
        table[field] = value
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise ValueError(explain_fault(error)) from error


def _unknown(name: str) -> str:
    if name.removeprefix("rollout.") in ("top_p", "top_k", "min_p", "repetition_penalty"):
        return (
            f"{name} is refused: training needs the log-prob of the distribution that tokens were drawn from, and "
            "filters change it; there is rollout.temperature, and the eval section has the filters"
        )
    if (last := name.rpartition(".")[2]) in TRL_NAMES:
        return f"unknown option {name}; TRL's {last} is {TRL_NAMES[last]} here"
    return f"unknown option {name}; the nearest is {nearest(name, [known for known, _, _ in options()])}"


def nearest(name: str, known: Sequence[str]) -> str:
    """The known name that looks most like this one."""
    return difflib.get_close_matches(name, known, n=1, cutoff=0.0)[0]


def explain_fault(error: ValidationError) -> str:
    """One line per fault, in the words of the recipe."""
    lines = []
    for fault in error.errors():
        name = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "default_factory_not_called":  # the consequence of another fault
            continue
        if fault["type"] == "extra_forbidden":
            lines.append(_unknown(name))
        elif fault["type"] == "value_error":
            lines.append(fault["msg"].removeprefix("Value error, "))
        else:
            lines.append(f"{name} = {fault['input']!r}: {fault['msg']}")
    return "\n".join(lines)
