"""Problems that need no download: generated, verifiable, and split so that no test problem is ever trained on.

    sums      problem "7 + 12 + 5"           answer "24"
    wordle    problem "Let's play Wordle…"   answer "abbey", for the environment of that name

and every task of reasoning-gym, which has no splits: other seeds make other problems.

Which split a problem belongs to follows from what it asks, so the two are disjoint whatever the size, seed or
options: a sum that is held out is not even trained on in another order.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

TEST_SHARE = 1 / 3


def _held_out(numbers: Sequence[int]) -> bool:
    """Whether a sum belongs to the test split: the same for all orders of its terms."""
    return _tested(" ".join(map(str, sorted(numbers))))


def _tested(text: str) -> bool:
    return zlib.crc32(text.encode()) < TEST_SHARE * 2**32


def sums(*, split: str, size: int = 1000, seed: int = 0, terms: int = 3, largest: int = 9) -> list[dict[str, str]]:
    """`size` different sums of `terms` numbers from 1 to `largest`.

    Raises:
        ValueError: if there are not that many.
    """
    if not all(isinstance(option, int) for option in (size, seed, terms, largest)):
        raise ValueError(f"sums: the options must be whole numbers, got {size=}, {seed=}, {terms=}, {largest=}")
    if terms < 2 or largest < 1 or seed < 0:
        raise ValueError(f"sums: needs terms >= 2, largest >= 1 and seed >= 0, got {terms=}, {largest=}, {seed=}")
    available = largest**terms
    if available <= 100_000:  # few enough to count what belongs to the split
        every = itertools.product(range(1, largest + 1), repeat=terms)
        available = sum(_held_out(numbers) == (split == "test") for numbers in every)
    else:
        available = available // 4  # surely less than the split has, of so many
    if not 1 <= size <= available:
        raise ValueError(
            f"sums: can't make {size} different problems of {terms} terms up to {largest} for the {split} split; "
            f"there are {available}"
        )
    generator = np.random.default_rng(seed)
    problems: dict[str, str] = {}
    while len(problems) < size:
        numbers = generator.integers(1, largest + 1, terms).tolist()
        if _held_out(numbers) == (split == "test"):
            problems[" + ".join(map(str, numbers))] = str(sum(numbers))
    return [{"id": problem, "problem": problem, "answer": answer} for problem, answer in problems.items()]


def wordle(*, split: str, size: int = 500, seed: int = 0) -> list[dict[str, str]]:
    """`size` games of Wordle with different secret words.

    Raises:
        ValueError: if there are not that many.
    """
    from treewise.env.wordle import RULES, words

    secrets = [word for word in words("answers") if _tested(word) == (split == "test")]
    if not (isinstance(size, int) and isinstance(seed, int) and 1 <= size <= len(secrets) and seed >= 0):
        raise ValueError(
            f"wordle: the {split} split has {len(secrets)} words, and seed is at least 0; got {size=}, {seed=}"
        )
    chosen = np.random.default_rng(seed).permutation(secrets)[:size].tolist()
    return [{"id": word, "problem": RULES, "answer": word} for word in chosen]


# Of reasoning-gym's tasks all but these give the same item i whatever the size, as the first one of seed + i.
OTHER_EACH_TIME = ("list_functions",)  # the same seed gives other items at the next call
BY_SIZE = ("acre",)  # another size, other items
BY_NUMBER = ("gsm_symbolic",)  # item i is that of one data set only

TASKS: Mapping[str, Callable[..., list[dict[str, str]]]] = {"sums": sums, "wordle": wordle}


def generate(name: str, *, split: str, options: Mapping[str, Any]) -> list[dict[str, str]]:
    """The problems of a built-in task.

    Raises:
        ValueError: for a split or an option that the task doesn't have.
    """
    if split not in ("train", "test"):
        raise ValueError(f"the task {name} has the splits train and test, not {split!r}")
    task = TASKS[name]
    known = [*(task.__kwdefaults__ or ())]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"the task {name} has no option {unknown[0]!r}; it has {', '.join(known)}")
    return task(split=split, **options)


def reasoning_gym(task: str, options: Mapping[str, Any], *, start: int = 0) -> list[dict[str, Any]]:
    """The items of a reasoning-gym task from number `start` on, `options["size"]` of them, by default 500.

    Args:
        options: parameters of the task; `level` sets those of its own curriculum, from 0.

    Raises:
        ValueError: for an unknown task, one that can't be had twice, and options that it refuses.
    """
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if task not in DATASETS:
        raise ValueError(f"reasoning-gym has no task {task!r}: it has {', '.join(sorted(DATASETS))}")
    if task in OTHER_EACH_TIME:
        raise ValueError(
            f"reasoning-gym:{task} gives other problems at every call, whatever its seed, so a run could not be "
            "continued; write them to a file once, and read that"
        )
    try:
        chosen = {"seed": 0, "size": 500, **_of_level(task, options)}
        first = start if task in BY_NUMBER else 0
        chosen |= {"size": chosen["size"] + first, "seed": chosen["seed"] + start - first}
        data = reasoning_gym.create_dataset(task, **chosen)
    except (TypeError, ValueError, AssertionError) as error:  # an unknown option; a value out of range
        raise ValueError(f"reasoning-gym:{task} refuses the options {dict(options)}: {error}") from None
    return [{**data[number], "task": task} for number in range(first, len(data))]


def _of_level(task: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with all that the task's curriculum sets in place of `level`. Raises ValueError."""
    from reasoning_gym.factory import create_curriculum, has_curriculum

    given = {name: value for name, value in options.items() if name != "level"}
    if "level" not in options:
        return given
    if not has_curriculum(task):
        raise ValueError("the task has no curriculum, so level has no effect")
    level, curriculum = options["level"], create_curriculum(task)
    levels = {name: len(attribute.levels) for name, attribute in curriculum.attributes.items()}
    if type(level) is not int or not 0 <= level < max(levels.values()):
        raise ValueError(f"its curriculum has the levels 0 to {max(levels.values()) - 1}, not {level!r}")
    for name, count in levels.items():
        curriculum.set_attr_level(name, min(level, count - 1))
    configuration = curriculum.generate_configuration()
    own = {field.name: getattr(configuration, field.name) for field in fields(configuration)}
    return {name: value for name, value in own.items() if name not in ("seed", "size")} | given
