"""Benchmarks: where their problems are, how many they have, and how to tell that these are the ones.

    hub or file ──▶ rows ──▶ problems ──▶ as many as known? the same questions?

The columns that say a problem's subject and level stay in its `info`, under these names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from treewise.data import make_problems
from treewise.reward.extract import gold_answer
from treewise.sources import Rows, read_rows
from treewise.types import Problem


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A data set on the hub, and which of its columns hold what.

    Attributes:
        problem, answer: columns; some data sets have further ones by names that a data file may use.
        count: problems.
        questions: what `fingerprint` gives for them.
        subset: configuration on the hub.
        subject, level: columns to break results down by.
    """

    title: str
    source: str
    split: str
    problem: str
    answer: str
    count: int
    questions: str
    subset: str | None = None
    subject: str | None = None
    level: str | None = None


# Hub ids and columns of the five as in the evaluation of Open-RS (knoveleng/open-rs). Which ids arXiv 2509.21154 used
# is not known to us; the known cells of its Table 2 are whole numbers of these counts. The fingerprints are those of
# the files in QwenLM/Qwen2.5-Math at a45202b (evaluation/data), of MATH-500 in openai/prm800k at 7ecc794 and of GSM8K
# in openai/grade-school-math at 3101c7d. OlympiadBench: the open-ended, English problems in mathematics without
# pictures; 675 as in Qwen2.5-Math's evaluation, the data set's own paper counts 674.
BENCHMARKS: Mapping[str, Benchmark] = MappingProxyType(
    {
        "aime24": Benchmark(
            "AIME24", "HuggingFaceH4/aime_2024", "train", "problem", "answer", 30, "5282d7a0d5883427"
        ),
        "math500": Benchmark(
            "MATH-500", "HuggingFaceH4/MATH-500", "test", "problem", "answer", 500, "b52fb95b6048ec87",
            subject="subject", level="level",
        ),
        "amc23": Benchmark("AMC23", "knoveleng/AMC-23", "train", "problem", "answer", 40, "d151db2d965c4fd0"),
        "minerva": Benchmark(
            "Minerva Math", "knoveleng/Minerva-Math", "train", "problem", "solution", 272, "846ef43d37b50c44"
        ),
        "olympiadbench": Benchmark(
            "OlympiadBench", "knoveleng/OlympiadBench", "train", "question", "answer", 675, "93d4ad8176a36660",
            subject="subfield",
        ),
        "gsm8k": Benchmark(
            "GSM8K", "openai/gsm8k", "test", "question", "answer", 1319, "ef59b52230e0b4a3", subset="main"
        ),
    }
)  # fmt: skip
FIVE = ("aime24", "math500", "amc23", "minerva", "olympiadbench")  # those of arXiv 2509.21154


def load(
    benchmark: Benchmark, *, file: str | None = None, limit: int | None = None, **prompt: Any
) -> tuple[Problem, ...]:
    """The problems of a benchmark, from the hub or from a file in its place.

    Args:
        limit: the first problems only.
        prompt: what `make_problems` puts around them.

    Raises:
        ValueError: for data that can't be loaded, or lack a column.
    """
    if file is not None:
        rows = read_rows(file, split=None, subset=None, options=None)
    else:
        rows = read_rows(benchmark.source, split=benchmark.split, subset=benchmark.subset, options=None)
        rows = [(where, _columns(row, where, benchmark)) for where, row in rows]
    return problems_of(rows[:limit], file or benchmark.source, **prompt)


def problems_of(rows: Rows, name: str, **prompt: Any) -> tuple[Problem, ...]:
    """Problems with the gold answer alone, where a column holds whole solutions."""
    problems, _ = make_problems(rows, name, **prompt)
    return tuple(replace(one, answer=None if one.answer is None else gold_answer(one.answer)) for one in problems)


def _columns(row: Mapping[str, Any], where: str, benchmark: Benchmark) -> dict[str, Any]:
    names = {"problem": benchmark.problem, "answer": benchmark.answer}
    names |= {"subject": benchmark.subject} if benchmark.subject else {}
    names |= {"level": benchmark.level} if benchmark.level else {}
    if missing := set(names.values()) - row.keys():
        raise ValueError(f"{where} has no column {', '.join(sorted(missing))}, only {', '.join(row)}")
    return {name: row[column] for name, column in names.items()}


def fingerprint(questions: Sequence[str]) -> str:
    """A hash of a set of questions that only letters and digits decide, not order, spaces, case or punctuation."""
    letters = ("".join(filter(str.isalnum, text.casefold())) for text in questions)
    each = sorted(hashlib.sha256(text.encode()).hexdigest() for text in letters)
    return hashlib.sha256("".join(each).encode()).hexdigest()[:16]


def difference(benchmark: Benchmark, problems: Sequence[Problem]) -> str | None:
    """In what the problems are not the benchmark's; None if they are."""
    if len(problems) != benchmark.count:
        return f"{len(problems)} of {benchmark.count} problems"
    found = fingerprint([str(problem.info.get("prompt", problem.prompt)) for problem in problems])
    if found != benchmark.questions:
        return f"other questions (fingerprint {found}, known is {benchmark.questions})"
    return None
